"""Entries of the log for dead tasks: one for each way to die, found by alerts and by class."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.batches import Completed, TaskBatch
from rollforward.datastore.transactions import transact
from rollforward.fork_join import Batch, fork_join
from rollforward.lanes import Call, Lane, debounced
from rollforward.operations import DeadTaskFilter, list_dead_tasks
from rollforward.runtime import Clients
from rollforward.tasks import dead_tasks, task
from rollforward.tasks.dead_task_entities import DeadTask, open_dead_tasks
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = one_emulator

ALONE = Lane("test-entries")


@dataclass(frozen=True)
class Coin:
    """An item of a fork-join queue, and of a window."""

    cents: int


@task("/tasks/tests/entries-fail", queue="default", max_attempts=2)
def fail(clients: Clients, tag: str) -> None:
    """Fail each time."""
    raise KeyError(tag)


@fork_join("test-entries", queue="fork-join", period_s=1)
def fold(clients: Clients, batch: Batch, items: Sequence[Coin]) -> None:
    """Fail each time."""
    raise KeyError("fold")


@task("/tasks/tests/entries-member", queue="default")
def member(clients: Clients, tag: str) -> None:
    """Do nothing."""


@task("/tasks/tests/entries-callback", queue="default", max_attempts=2)
def call_back(clients: Clients, done: Completed) -> None:
    """Fail each time."""
    raise KeyError("callback")


BATCH = TaskBatch("test-entries", members=[member], on_complete=call_back)


@debounced("test-entries-window", wait_s=1, max_attempts=2)
def digest(key: str, calls: Sequence[Call[Coin]]) -> None:
    """Fail each time."""
    raise KeyError("window")


def enqueue(clients: Clients) -> None:
    fail.enqueue(clients, fail.bind("task"))


def wait_in_lane(clients: Clients) -> None:
    fail.enqueue(clients, fail.bind("lane"), lane=ALONE("ada"))


def insert(clients: Clients) -> None:
    fold.insert(clients, "k", Coin(1))


def complete(clients: Clients) -> None:
    BATCH.populate(clients, "b", [(member, member.bind("x"))], seal=True)


def call(clients: Clients) -> None:
    assert digest.call(clients, "ada", Coin(1))


@pytest.mark.parametrize("begin", [enqueue, wait_in_lane, insert, complete, call])
def test_each_way_to_die_is_an_entry_with_the_id_and_the_class_of_error(
    services: Services, caplog: pytest.LogCaptureFixture, begin: Any
) -> None:
    """Once; and the list of dead tasks finds it by its class."""
    world = World(services, tasks=[fail], fork_joins=[fold], batches=[BATCH], lanes=[ALONE, digest])
    with world.context():
        begin(world.clients)
    for _ in range(3):
        world.settle()
        world.clock.sleep(120)
        world.sweep()

    with world.context():
        [dead] = open_dead_tasks().fetch()
        found = list_dead_tasks(DeadTaskFilter(error="KeyError")).dead_tasks
    entries = [record for record in caplog.records if hasattr(record, "dead_task")]
    assert [(e.dead_task, e.error_class, e.levelno) for e in entries] == [  # type: ignore[attr-defined]
        (dead.key.id(), "KeyError", logging.ERROR)
    ]
    assert [row.key for row in found] == [dead.key]


def keep(world: World) -> None:
    dead_tasks.dead_letter_in_transaction(
        world.clients, dead_id="d", path="/x", queue="q", body=b"{}", reason="KeyError: x"
    )


@pytest.mark.parametrize(("fault", "count"), [(None, 1), ("error:ABORTED", 1), (REPLY_LOST, 1)])
def test_an_entry_is_written_when_its_transaction_may_be_committed(
    services: Services, caplog: pytest.LogCaptureFixture, fault: str | None, count: int
) -> None:
    """Once, however often the body runs; none for one that raises."""
    world = World(services)

    def body(*, fails: bool = False) -> None:
        if DeadTask.get_by_id("d") is None:
            keep(world)
        if fails:
            raise LookupError

    with world.clients.context():
        with pytest.raises(LookupError):
            transact(lambda: body(fails=True))
        if fault:
            world.plan.break_next("Commit", fault)
        transact(body)

    entries = [record for record in caplog.records if hasattr(record, "dead_task")]
    assert len(entries) == count


def test_a_transaction_that_lost_every_race_logs_no_dead_task(
    services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was written: the task comes again."""
    world = World(services)

    with world.clients.context():
        world.plan.break_next("Commit", "error:ABORTED", times=100)
        with pytest.raises(rpc_errors.Aborted):
            transact(lambda: keep(world))
    world.plan.pending = []

    assert not [record for record in caplog.records if hasattr(record, "dead_task")]
