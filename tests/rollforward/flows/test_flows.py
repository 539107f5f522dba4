"""Flows: steps in their order, waits of any length, undos, events, retries."""

from __future__ import annotations

from tests.infra.world import World
from tests.rollforward.flows.shop import BANK, DAY_S, SWEEP, FlowMail, FlowStock, order


def pass_days(world: World, days: float) -> None:
    """Let days pass, and then a sweep and what is due."""
    world.clock.sleep(days * DAY_S)
    world.sweep(SWEEP)
    world.settle(patience_s=60)


def test_an_order_goes_through_its_steps_to_its_result(world: World) -> None:
    """Each step has one effect, over 45 days and as many deliveries as it takes."""
    assert order.start(world.clients, "A1", "boots")
    assert not order.start(world.clients, "A1", "other boots")
    world.settle(patience_s=60)
    assert order.state("A1").steps["courier"].state == "waiting"
    order.signal(world.clients, "A1", "courier", {"at": "the door"})
    world.settle(patience_s=60)
    assert order.state("A1").state == "running"
    pass_days(world, 45)
    world.settle(patience_s=60)
    state = order.state("A1")
    assert state.state == "succeeded", state
    assert state.result.endswith("{'at': 'the door'}, 2 mails")
    assert FlowStock.get_by_id("boots").taken == 1
    assert BANK.asked == {"charge": 1}
    assert len(FlowMail.query().fetch()) == 2
