"""The reconciliation of a sum: accepted = folded + waiting + parked, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models.sums import sum_key
from pipelines.sums import reconciliation, sums
from pipelines.sums.sums import Count
from rollforward.fork_join.queue import OutcomeUnknownError
from rollforward.tasks.dead_task_entities import open_dead_tasks
from tests.infra.world import World
from tests.pipelines.sums.loading import LOAD, both_sides
from tests.rollforward.fork_join.searches.failing_commits import lost_replies


def test_both_sides_are_equal_after_a_kill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had counted in memory is in the items: equal at rest, to the amount."""
    monkeypatch.setattr("pipelines.sums.tally_buffer.FLUSH_INTERVAL_S", 3600)
    with world.clients.context():
        for amount in (5, -2):
            sums.add(world.clients, "s", amount, idempotency_key=None)
        sums.add_once(world.clients, "s", LOAD, 100)
    world.clients.process_state.clear()  # Killed: no last act.
    with world.clients.context():
        sums.add(world.clients, "s", 7, idempotency_key=None)
    world.settle()

    assert both_sides(world) == (Count(4, 110), Count(4, 110), 0)


def test_what_was_found_out_by_a_repeat_is_accepted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 503 whose commit took effect, then the client's retry, which is no second item."""
    with world.clients.context():
        with lost_replies(monkeypatch), pytest.raises(OutcomeUnknownError):
            sums.add(world.clients, "s", 5, idempotency_key="k")
        assert sums.add(world.clients, "s", 5, idempotency_key="k").is_duplicate
    world.settle()

    assert both_sides(world) == (Count(1, 5), Count(1, 5), 0)


def test_what_was_tallied_and_is_not_found_is_missing(world: World) -> None:
    """An item that was lost would be seen, also beside one that was not tallied."""
    with world.clients.context():
        for amount in (5, 6):
            sums.add(world.clients, "s", amount, idempotency_key=None)
    world.settle()
    with world.context():
        row = sum_key("s").get()
        row.items, row.total, row.api_items, row.api_amount = 1, 5, 1, 5
        row.put()

    assert both_sides(world) == (Count(2, 11), Count(1, 5), 0)


def test_what_is_added_by_a_form_is_no_addition_of_the_api(world: World) -> None:
    """Were a form's item folded twice, the two sides would differ."""
    with world.clients.context():
        sums.add_once(world.clients, "s", LOAD, 5)
    world.settle()
    with world.context():
        row = sum_key("s").get()
        row.items, row.total = 2, 10
        row.put()

    assert both_sides(world) == (Count(1, 5), Count(2, 10), 0)


def fails_at_13(join: Callable[..., Any]) -> Callable[..., Any]:
    """Return a join function that cannot add 13."""

    def fails(clients: Any, batch: Any, items: Any) -> Any:
        if any(item.amount == 13 for item in items):
            raise ValueError("unlucky")
        return join(clients, batch, items)

    return fails


def test_an_item_that_cannot_be_folded_is_parked_and_still_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accepted = folded + waiting + parked, whatever becomes of an item."""
    monkeypatch.setattr(sums.add_up, "join", fails_at_13(sums.add_up.join))
    with world.clients.context():
        for amount in (1, 13, 2):
            sums.add(world.clients, "s", amount, idempotency_key=None)
    world.settle()

    with world.context():
        found = reconciliation.status("s")
    assert (found.folded, found.waiting) == (Count(2, 3), 0)
    assert found.parked == Count(1, 13)
    assert found.by_api == Count(3, 16)
    assert both_sides(world)[0] == Count(3, 16)


def test_both_sides_are_equal_at_every_moment_of_a_parking_and_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accepted = folded + waiting + parked, after each delivery."""

    def deliver_each() -> None:
        for _ in range(60):
            for due in world.engine.due():
                world.deliver(due.task_name)
                accepted, folded, waiting = both_sides(world)
                with world.context():
                    parked = reconciliation.status("s").parked.items
                assert folded.items + waiting + parked == 2 == accepted.items
            wake_at = world.engine.wake_at()
            if wake_at is None:
                return
            world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)

    with monkeypatch.context() as patch:
        patch.setattr(sums.add_up, "join", fails_at_13(sums.add_up.join))
        with world.clients.context():
            for amount in (1, 13):
                sums.add(world.clients, "s", amount, idempotency_key=None)
        deliver_each()
    with world.context():
        (dead,) = open_dead_tasks().fetch()
        replay = world.app.extensions["wiring"].registry.tasks["/tasks/dead/replay"]
        replay.enqueue(world.clients, replay.args(dead.key.id()))
    deliver_each()

    assert both_sides(world) == (Count(2, 14), Count(2, 14), 0)
