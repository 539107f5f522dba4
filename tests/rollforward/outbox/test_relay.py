"""The relay: a row goes when its task exists, and the caller never fails by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox import background
from rollforward.outbox.entities import RowId
from rollforward.outbox.relay import relay
from rollforward.runtime import Clients, naive_utc
from rollforward.runtime.messages import Message, TaskQueue
from rollforward.tasks.errors import NotAttemptedError
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import World
from tests.rollforward.datastore.counters import break_call
from tests.rollforward.outbox.gates import Gate, finish
from tests.rollforward.outbox.order_tasks import (
    STEPS,
    Order,
    Settle,
    Step,
    place,
    ran,
    rows_here,
    settle,
    step,
    waiting,
)
from tests.rollforward.outbox.rows import (
    away,
    enqueue,
    give_up,
    sent,
    steps_sent,
    strand,
    stranded_row,
)

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


def test_a_row_that_stays_names_its_queue_and_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """B7: whoever reads the log sees which queue it is, also if several rows stay."""
    sick = {"default": rpc_errors.ResourceExhausted("quota"), "fan-out": NotAttemptedError()}
    missing = rpc_errors.PermissionDenied("no right to create tasks")

    def create_all(messages: Sequence[Message]) -> list[bool | Exception]:
        return [sick.get(message.queue, missing) for message in messages]

    tasks = cast("TaskQueue", SimpleNamespace(create_all=create_all))
    with world.context():
        rows = [
            stranded_row(
                RowId(str(number), naive_utc(world.clock.now()), 0, is_unacked=False),
                0,
                {"queue": queue},
            )
            for number, queue in enumerate(["fan-out", "default", "imports", "default"])
        ]
        relay(replace(world.clients, tasks=tasks), rows)

    [text] = [entry.getMessage() for entry in caplog.records if "outbox" in entry.name]
    assert text == (
        "4 of 4 rows stay in the outbox: queue 'default': ResourceExhausted: 429 quota; "
        "queue 'imports': PermissionDenied: 403 no right to create tasks"
    )


def test_a_queue_that_is_away_takes_no_place_from_another(
    world: World, gate: Gate, behind: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a process with as many rows of a sick queue as it keeps relays those of others."""
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    gate.answers = [rpc_errors.ServiceUnavailable("away")]
    gate.is_open.set()

    with world.context():
        enqueue(behind, "s0", "s1", "s2", order="one")
        finish(behind)
        transact(lambda: outbox.enqueue(behind, settle, Settle("o", "row")))
        finish(behind)

    assert sent(world, "fan-out") == [{"order": "o", "row": "row"}]
    assert len(waiting(world)) == 3
