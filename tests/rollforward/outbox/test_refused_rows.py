"""Rows that Cloud Tasks refuses, and rows that are not as they should be."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.operations import replay_dead_task
from rollforward.outbox.entities import OutboxTask
from rollforward.outbox.sweep import sweep
from rollforward.tasks.dead_tasks import ReplayDeadTask, replay_task
from rollforward.testing.injection import KINDS, Crash
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.outbox.order_tasks import Order, Settle, Step, ran, settle, step, waiting
from tests.rollforward.outbox.rows import (
    dead_tasks_of,
    deliver_drains,
    make_queue,
    steps_sent,
    strand,
)

# One bad row


def enqueue_one_bad(world: World, queue: str) -> None:
    def body() -> None:
        Order(id="o").put()
        for step_name, task in [("a", step), ("bad", replace(step, queue=queue)), ("b", step)]:
            outbox.enqueue(world.clients, task, Step("o", step_name))

    with world.context():
        transact(body)


def test_one_bad_row_blocks_no_other_and_is_dead_lettered_with_its_reason(
    world: World, missing_queue: str
) -> None:
    """B7: its neighbours are delivered at once; after ten minutes it is a dead task."""
    enqueue_one_bad(world, missing_queue)
    assert steps_sent(world) == ["a", "b"]

    world.clock.sleep(590)
    world.sweep()
    early = dead_tasks_of(world)
    world.clock.sleep(60)
    world.sweep()

    assert early == []
    [dead] = dead_tasks_of(world)
    assert (dead.path, dead.queue, json.loads(dead.body)["what"]) == (
        step.path,
        missing_queue,
        "bad",
    )
    assert dead.reason.startswith("Cloud Tasks refuses it. UnknownQueueError: ")
    assert waiting(world) == []


def test_a_row_whose_queue_comes_in_time_is_not_dead_lettered(
    world: World, missing_queue: str
) -> None:
    """B1: a deployment that brings the code before the queue loses nothing."""
    enqueue_one_bad(world, missing_queue)
    make_queue(world, missing_queue)

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["a", "b", "bad"])
    assert dead_tasks_of(world) == []


def test_a_row_that_was_dead_lettered_can_be_replayed(world: World, missing_queue: str) -> None:
    """B7: once its cause is mended, a replay runs the task with the arguments it had."""
    enqueue_one_bad(world, missing_queue)
    world.clock.sleep(660)
    world.sweep()
    [dead] = dead_tasks_of(world)
    make_queue(world, missing_queue)

    with world.context():
        replay_task({}).enqueue(world.clients, ReplayDeadTask(dead.key.id()))
    world.settle()

    assert ran(world, "o") == Counter(["a", "b", "bad"])
    assert [dead.resolved for dead in dead_tasks_of(world)] == [True]


@pytest.mark.parametrize("way", ["by a task", "by an operator"])
def test_a_row_whose_queue_was_renamed_is_replayed_into_the_one_of_now(
    world: World, missing_queue: str, way: str
) -> None:
    """B7: its queue never comes back, so each replay into it would be a dead task again."""
    enqueue_one_bad(world, missing_queue)
    world.clock.sleep(660)
    world.sweep()
    [dead] = dead_tasks_of(world)

    with world.context():
        if way == "by a task":
            replay_task({}).enqueue(world.clients, ReplayDeadTask(dead.key.id()))
        else:
            known = world.registry.tasks
            replay_dead_task(world.clients, dead.key.id(), known_paths=known)
    world.settle()

    assert ran(world, "o") == Counter(["a", "b", "bad"])
    assert [dead.resolved for dead in dead_tasks_of(world)] == [True]


@one_emulator
def test_an_unacked_row_stays_when_its_task_is_dead_lettered(
    world: World, missing_queue: str
) -> None:
    """B7: its work is not done, so the row stays; a replay does the work."""
    task = replace(settle, queue=missing_queue)
    with world.context():
        transact(
            lambda: outbox.enqueue_with_ack(
                world.clients, task, lambda row: Settle("o", row), tag="t"
            )
        )
        Order(id="o").put()
    for _ in range(100):
        world.clock.sleep(60)
        world.sweep("/cron/outbox/sweep")
    [dead] = dead_tasks_of(world)
    waiting_rows = len(waiting(world))
    make_queue(world, missing_queue)

    with world.context():
        replay_task({}).enqueue(world.clients, ReplayDeadTask(dead.key.id()))
    world.settle()

    assert waiting_rows == 1
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []
    assert [dead.resolved for dead in dead_tasks_of(world)] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_dead_lettering_a_row_is_counted_once_and_loses_nothing_under_faults(
    world: World, kind: str
) -> None:
    """B7: a fault at each call of the sweep that keeps it; in the end there is one dead task."""
    for at in range(20):
        strand(world, 1, queue=f"nowhere-{at}")
        world.clock.sleep(660)
        plan = world.plan
        plan.calls, plan.fired, plan.kind, plan.at = [], "", kind, at
        with world.clients.context(), plan.watched():
            try:
                sweep(world.clients)
            except (Crash, rpc_errors.GoogleAPIError):
                world.bury()
        plan.at = None
        world.clock.sleep(60)
        world.sweep()

        assert waiting(world) == [], plan.fired
        queues = Counter(dead.queue for dead in dead_tasks_of(world))
        assert queues[f"nowhere-{at}"] == 1, plan.fired
        if not plan.fired:
            return
    raise AssertionError("the sweep makes more calls than this test breaks")


# Rows that are not as they should be


ODD_IDS = {
    "of the version before the digest": "c|20200101T000000000000|o|c0ffee|0000",
    "without a time": "c|now|o|c0ffee|0000|1a2b3c4d",
    "without a number": "c|20200101T000000000000|o|c0ffee|many|1a2b3c4d",
    "of another kind of key": "made by hand",
    "behind all partitions": "zzz|20200101T000000000000",
    "between two partitions": "0~",
    "of one letter": "1",
    "a number": 5629499534213120,
}


def put_odd(world: World, odd: str | int, **values: Any) -> None:
    with world.context():
        Order(id="o").put()
        made = {"path": step.path, "queue": step.queue, "body": '{"order": "o", "what": "odd"}'}
        OutboxTask(id=odd, **{**made, **values}).put()


@pytest.mark.parametrize("many", [1, 150], ids=["few", "many"])
@pytest.mark.parametrize("odd", ODD_IDS.values(), ids=ODD_IDS)
def test_a_row_with_an_odd_key_stops_no_other_and_is_delivered(
    world: World, odd: str | int, many: int
) -> None:
    """B7: another version's row, or one made by hand: it is old and due, and named by its key."""
    strand(world, many)
    put_odd(world, odd)
    world.clock.sleep(60)

    with world.context():
        sweep(world.clients)
        depth = outbox.depth(world.clients)
    deliver_drains(world)

    assert steps_sent(world) == sorted(["odd", *[f"s{i}" for i in range(many)]])
    assert waiting(world) == []
    assert depth.is_truncated is False


def test_a_row_with_an_odd_key_is_shown_while_it_waits(world: World) -> None:
    """The console shows it, without an error page."""
    put_odd(world, "made by hand")

    answer = world.app.test_client().get("/metrics", headers=world.cron_headers())

    assert answer.status_code == 200
    assert b"outbox_waiting 1\n" in answer.data


@pytest.mark.parametrize("lacking", ["path", "queue", "body"])
def test_a_row_that_lacks_a_value_stops_no_other(
    world: World, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a row that was made by hand and not to the end does no harm, and leaves the outbox."""
    strand(world, 2)
    with monkeypatch.context() as patch:
        patch.setattr(getattr(OutboxTask, lacking), "_required", False)
        put_odd(world, "made by hand", **{lacking: None})
    world.clock.sleep(60)

    world.sweep()

    arrived = [task for queue in ("default", "fan-out") for task in world.live_tasks(queue)]
    assert len(arrived) == (2 if lacking == "queue" else 3)
    assert len(dead_tasks_of(world)) == (1 if lacking == "queue" else 0)
    assert waiting(world) == []


# A row with a time of its own


def test_a_delayed_row_of_a_missing_queue_is_dead_lettered_as_any_other(
    world: World, missing_queue: str
) -> None:
    """B7: its sender learns today that the queue of a task for next week is missing."""
    with world.context():
        bad = replace(step, queue=missing_queue)
        transact(lambda: outbox.enqueue(world.clients, bad, Step("o", "x"), delay_s=7 * 86_400))

    world.clock.sleep(660)
    world.sweep()

    assert [dead.queue for dead in dead_tasks_of(world)] == [missing_queue]
    assert waiting(world) == []


# Rows with values that Cloud Tasks cannot be asked for

ODD_VALUES: dict[str, dict[str, Any]] = {
    "negative deadline": {"deadline_s": -1},
    "deadline beyond a duration": {"deadline_s": 10**12},
    "deadline beyond a timedelta": {"deadline_s": 2**62},
    "empty name": {"name": ""},
    "name of two words": {"name": "two words"},
    "long name": {"name": "x" * 600},
    "path of two lines": {"path": "/tasks/a\nb"},
    "path without a slash": {"path": "tasks"},
    "queue of another location": {"queue": "a/tasks/b"},
    "trace of two lines": {"traceparent": "00-\nX-Other: 1"},
    "time of the past": {"at": datetime.datetime(1, 1, 1)},  # noqa: DTZ001
    "time far ahead": {"at": datetime.datetime(9999, 12, 31)},  # noqa: DTZ001
}


@one_emulator
@pytest.mark.parametrize("values", ODD_VALUES.values(), ids=ODD_VALUES)
def test_a_row_with_an_odd_value_stops_no_other(world: World, values: dict[str, Any]) -> None:
    """B7: another version's row, or one made by hand: it is delivered, or a dead task."""
    strand(world, 2)
    put_odd(world, "made by hand", **values)
    world.clock.sleep(60)

    world.sweep()

    assert {"s0", "s1"} <= set(steps_sent(world))
    assert waiting(world) == []
