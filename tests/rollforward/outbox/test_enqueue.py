"""Tasks that a transaction enqueues, also if its body runs again."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore.transactions import NoTransactionError, current_transaction, transact
from rollforward.local.cloudtasks.protocol import messages
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime.messages import BORN_HEADER
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.errors import BadArgumentsError, TooLargeError
from rollforward.tasks.stored.names import MAX_COMMITTED_BYTES
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.faults.partly_done import run_again
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.datastore.counters import break_call, no_pause
from tests.rollforward.outbox.order_tasks import (
    STEPS,
    Order,
    Settle,
    Step,
    dying,
    place,
    ran,
    rows_here,
    settle,
    step,
    waiting,
)
from tests.rollforward.outbox.rows import enqueue, sent, steps_sent

pytestmark = pytest.mark.fast

# Enqueue


def test_what_a_transaction_enqueues_is_delivered_and_its_rows_go(world: World) -> None:
    """B1, B3: each task runs once, after the commit of its data."""
    with world.context():
        transact(lambda: place(world.clients, "o"))
    world.settle()

    assert ran(world, "o") == Counter(STEPS)
    assert waiting(world) == []


def test_the_task_is_created_after_the_commit_and_the_row_deleted_after_that(
    watched_world: World,
) -> None:
    """B3, B4: one commit, one call for all tasks, one commit that deletes the rows."""
    enqueue(watched_world.clients, "pack", "print")

    assert watched_world.plan.calls[:4] == [
        "BeginTransaction",
        "Commit",
        "BatchCreateTasks",
        "Commit",
    ]
    assert steps_sent(watched_world) == ["pack", "print"]
    assert rows_here() == []


def test_a_task_of_the_outbox_is_the_task_that_enqueue_creates(world: World) -> None:
    """Address, body, queue, time and token are the same; so is a name of one's own."""
    at = world.clock.now() + datetime.timedelta(hours=1)
    with world.context():
        step.enqueue(world.clients, Step("o", "a"), name=("direct",), at=at)
        transact(
            lambda: outbox.enqueue(
                world.clients, step, Step("o", "a"), name=("in a transaction",), at=at
            )
        )

    [queue] = [
        candidate for candidate in world.engine.queues.all() if candidate.name.endswith("/default")
    ]
    direct, relayed = [messages.Task.FromString(task.spec) for task in queue.tasks.values()]
    for each in (direct, relayed):
        assert each.http_request.headers.pop(BORN_HEADER)  # Drawn for each.
    assert relayed.http_request == direct.http_request
    assert relayed.schedule_time == direct.schedule_time
    assert relayed.name.endswith(hashed_name(step.path, "in a transaction"))


@one_emulator
def test_a_name_that_exists_is_an_answer(world: World) -> None:
    """B4: it was enqueued before: there is one task, and no row remains."""
    with world.context():
        step.enqueue(world.clients, Step("o", "first"), name=("x",))
        transact(lambda: outbox.enqueue(world.clients, step, Step("o", "second"), name=("x",)))

    assert steps_sent(world) == ["first"]
    assert waiting(world) == []


@one_emulator
def test_enqueue_outside_of_a_transaction_is_refused(watched_world: World) -> None:
    """It would be a task without its data: the caller learns of it at once."""
    with pytest.raises(NoTransactionError):
        outbox.enqueue(watched_world.clients, step, Step("o", "pack"))
    with pytest.raises(NoTransactionError):
        outbox.enqueue_with_ack(
            watched_world.clients, settle, lambda row: Settle("o", row), tag="t"
        )

    assert watched_world.plan.calls == []


@one_emulator
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (Step(5, "pack"), BadArgumentsError),  # type: ignore[arg-type]
        (Settle("o", "row"), BadArgumentsError),
        (Step("o", "x" * MAX_COMMITTED_BYTES), TooLargeError),
    ],
    ids=["type", "class", "size"],
)
def test_bad_arguments_stop_the_transaction(
    watched_world: World, args: Any, error: type[Exception]
) -> None:
    """B2: what no delivery could read is refused in the body: neither data nor tasks are there."""

    def body() -> None:
        Order(id="o").put()
        outbox.enqueue(watched_world.clients, step, Step("o", "pack"))
        outbox.enqueue(watched_world.clients, step, args)

    with pytest.raises(error):
        transact(body)

    assert (Order.get_by_id("o"), rows_here(), sent(watched_world)) == (None, [], [])


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), rpc_errors.Aborted("lost the race")], ids=["bug", "aborted"]
)
def test_what_an_aborted_transaction_enqueued_is_never_delivered(
    world: World, error: Exception
) -> None:
    """B2: a body that raises after it enqueued, once or on every try, leaves nothing."""

    def body() -> None:
        place(world.clients, "o")
        raise error

    with world.context(), pytest.raises(type(error)):
        transact(body, sleep=no_pause)
    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter()
    assert waiting(world) == []


def test_tasks_of_a_try_that_was_not_committed_are_not_delivered(watched_world: World) -> None:
    """B2: the first commit fails, and the second run decides otherwise."""
    break_call(watched_world, "Commit", ERROR)
    steps = iter(["pack", "print"])

    transact(
        lambda: outbox.enqueue(watched_world.clients, step, Step("o", next(steps))), sleep=no_pause
    )

    assert watched_world.plan.fired
    assert steps_sent(watched_world) == ["print"]


# Bodies that run again


def test_a_body_that_runs_again_writes_the_same_rows(watched_world: World) -> None:
    """B6: the answer to the first commit is lost; the rows of both runs are the same."""
    break_call(watched_world, "Commit", REPLY_LOST)
    runs: list[set[str]] = []

    def body() -> None:
        place(dying(watched_world), "o")
        runs.append({row.key.id() for row in current_rows()})

    transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    assert len(runs) == 2
    assert runs[0] == runs[1] == {row.key.id() for row in rows_here()}
    assert len(runs[0]) == len(STEPS)


def current_rows() -> list[OutboxTask]:
    """Return the rows of the current transaction."""
    outgoing: Any = current_transaction().hooks["outbox"]
    rows: list[OutboxTask] = outgoing.rows
    return rows


def test_rows_in_doubt_are_relayed_at_once(watched_world: World) -> None:
    """B1: the second run finds its proof and enqueues nothing; no row waits for the sweep."""
    break_call(watched_world, "Commit", REPLY_LOST)

    def body() -> None:
        if Order.get_by_id("o") is None:
            Order(id="o").put()
            outbox.enqueue(watched_world.clients, step, Step("o", "pack"))

    transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    assert steps_sent(watched_world) == ["pack"]
    assert rows_here() == []


def test_rows_of_a_try_in_doubt_are_relayed_at_once_although_the_last_one_failed(
    watched_world: World,
) -> None:
    """B1: the first try was committed without a reply; the second one, of another mind, was not."""
    break_call(watched_world, "Commit", REPLY_LOST)
    steps = iter(["pack", "send"])

    def body() -> None:
        step_name = next(steps)
        Order(id=step_name).put()
        outbox.enqueue(watched_world.clients, step, Step("o", step_name))
        if step_name == "send":
            raise rpc_errors.Aborted("made by a test")

    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact(body, attempts=2, sleep=no_pause)

    assert watched_world.plan.fired
    assert steps_sent(watched_world) == ["pack"]
    assert rows_here() == []


ASKED = {
    "name": [(step, ("one",)), (step, ("two",))],
    "queue": [(step, None), (replace(step, queue="fan-out"), None)],
    "path": [(step, None), (replace(settle, queue="default", args=Step), None)],
    "nothing": [(step, None), (step, None)],
}


@one_emulator
@pytest.mark.parametrize("differs_in", ASKED)
def test_a_second_run_that_asks_for_another_task_overwrites_no_row(
    watched_world: World, differs_in: str
) -> None:
    """B1: a row's key contains name, queue and path as well as the arguments."""
    break_call(watched_world, "Commit", REPLY_LOST)
    asked = iter(ASKED[differs_in])

    def body() -> None:
        Order(id="o").put()
        task, name = next(asked)
        outbox.enqueue(dying(watched_world), task, Step("o", "pack"), name=name)

    transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    rows = {(row.path, row.queue, row.name) for row in rows_here()}
    assert len(rows_here()) == len(rows) == (1 if differs_in == "nothing" else 2)


@one_emulator
def test_a_second_run_that_asks_under_another_tag_overwrites_no_row(watched_world: World) -> None:
    """B1: a reader of the first tag still finds its row."""
    break_call(watched_world, "Commit", REPLY_LOST)
    tags = iter(["one", "two"])

    def body() -> None:
        Order(id="o").put()
        tag = next(tags)
        outbox.enqueue_with_ack(dying(watched_world), settle, lambda row: Settle("o", row), tag=tag)

    transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    assert sorted(row.tag for row in rows_here()) == ["one", "two"]


@pytest.mark.parametrize("is_unacked", [False, True])
def test_a_second_run_takes_nothing_from_the_first(watched_world: World, is_unacked: bool) -> None:
    """B1: both tries are committed, each with a task of its own: both are delivered.

    The first reply is lost, another writer commits, and the second run reads other data.
    """
    break_call(watched_world, "Commit", REPLY_LOST)
    orders = iter(["one", "two"])

    def body() -> None:
        order = next(orders)
        Order(id=order).put()
        if is_unacked:
            outbox.enqueue_with_ack(
                watched_world.clients, settle, lambda row: Settle(order, row), tag="t"
            )
        else:
            outbox.enqueue(watched_world.clients, step, Step(order, "pack"))

    transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    messages = sent(watched_world, "fan-out" if is_unacked else "default")
    assert sorted(args["order"] for args in messages) == ["one", "two"]


def test_a_second_run_that_finds_a_part_done_enqueues_the_rest_once(watched_world: World) -> None:
    """B6: the place of a task among others, which are not enqueued again, is no part of its row."""

    def enqueued(*names: str) -> list[Callable[[], None]]:
        return [
            partial(outbox.enqueue, watched_world.clients, step, Step("o", name)) for name in names
        ]

    run_again(watched_world, *enqueued("pack", "send", "print", "print"))

    assert sorted(steps_sent(watched_world)) == ["pack", "print", "print", "send"]
    assert rows_here() == []
