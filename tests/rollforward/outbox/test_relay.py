"""The relay: a row goes when its task exists, and the caller never fails by it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox.relay import relay
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import World
from tests.rollforward.datastore.counters import break_call
from tests.rollforward.outbox.order_tasks import (
    STEPS,
    Order,
    Step,
    place,
    ran,
    rows_here,
    step,
    waiting,
)
from tests.rollforward.outbox.rows import away, give_up, steps_sent, strand

# Relay


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
@pytest.mark.parametrize("call", ["BatchCreateTasks", "Commit"])
def test_a_relay_that_fails_is_none_of_the_callers_business(
    watched_world: World, call: str, kind: str
) -> None:
    """B1: the transaction is committed, so nothing is raised and the body does not run again."""
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        Order(id="o").put()
        outbox.enqueue(watched_world.clients, step, Step("o", "pack"))
        outbox.enqueue(watched_world.clients, step, Step("o", "print"))
        break_call(watched_world, "-", kind)
        watched_world.plan.at = {"BatchCreateTasks": 1, "Commit": 2}[call]

    transact(body)

    assert watched_world.plan.fired
    assert call in watched_world.plan.fired
    assert len(runs) == 1
    assert Order.get_by_id("o") is not None


def test_a_commit_stands_while_cloud_tasks_is_away(world: World) -> None:
    """B1, B4: without an answer the rows wait, and the sweep delivers them."""
    runs: list[int] = []
    clients = replace(world.clients, tasks=away(world))

    def body() -> None:
        runs.append(1)
        place(clients, "o")

    with world.context():
        transact(body)
    waiting_rows = len(waiting(world))
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert len(runs) == 1
    assert waiting_rows == len(STEPS)
    assert ran(world, "o") == Counter(STEPS)


def test_a_row_goes_only_when_its_task_is_known_to_exist(world: World) -> None:
    """B4: the call's answer is lost, so the row stays; asked again, the task exists."""
    strand(world, 1)
    rows = waiting(world)
    world.plan.kind, world.plan.at = REPLY_LOST, 0

    with world.clients.context(), world.plan.watched():
        result = relay(world.clients, rows)
        row_count = len(rows_here())
        second = relay(world.clients, rows)

    assert world.plan.fired == "reply-lost at call 0 (CreateTask)"
    assert (result.created, row_count) == (0, 1)
    assert (second.created, waiting(world)) == (1, [])
    assert steps_sent(world) == ["s0"]


# The relay after the response


def test_a_script_finds_out_at_once(watched_world: World) -> None:
    """B1: without a thread the check is made before the call returns."""
    give_up(watched_world, watched_world.clients, REPLY_LOST)

    assert steps_sent(watched_world) == ["pack"]
    assert rows_here() == []
