"""Ticks: a row moves to its next tick in the commit that enqueues the work of those before."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import pydantic
from google.cloud import ndb

from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.datastore.transactions import current_transaction, running_transaction, transact
from rollforward.outbox.cancellable import enqueue_tracked
from rollforward.outbox.enqueue import enqueue
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import MessageLane
from rollforward.schedules.cron import Missed, next_tick, ticks_to_run
from rollforward.schedules.entities import ScheduleRow
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import BadArgumentsError, OtherVersionError
from rollforward.tasks.stored.distant import MAX_AHEAD_S

MAX_TEXT_CHARS = 1_500  # A key's text.
# Of each tick's work: the rows of its task and its handle, without the arguments.
ROW_BYTES = 2_000
LONGEST_DELAY = datetime.timedelta(seconds=MAX_AHEAD_S)


@dataclass(frozen=True)
class Tick:
    """A tick of a row: its time, and the revision of the row that has it."""

    row: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]
    at: datetime.datetime
    revision: Annotated[str, pydantic.Field(max_length=MAX_TEXT_CHARS)]


@dataclass(frozen=True)
class DeclaredSchedule:
    """A declaration: the name in the keys of its rows, and the task of each tick's work."""

    name: str
    task: Task[Any]
    missed: Missed = "once"

    def lane_of(self, row_id: str) -> MessageLane | None:
        """Return the key of a lane in which the work of a row waits; None: in none."""
        return None


def _not_registered(clients: Clients, tick: Tick) -> NoReturn:
    raise NotImplementedError("the task of an app's pattern is delivered in the place of this one")


# For enqueuing; the pattern has the task that is delivered, which knows the app's schedules.
TICK = Task("/tasks/schedules/tick", "default", Tick, _not_registered)


def put_row(clients: Clients, key: Any, cron: str, tz: str, body: str | None) -> None:
    """Write a row and enqueue its next tick, in this transaction; unless it is there already."""
    transaction, row = current_transaction(), key.get()
    # What this transaction has written before is not in what it reads.
    is_read = not transaction.counts[_changes_of(key)]
    if is_read and row is not None and (row.cron, row.tz, row.body) == (cron, tz, body):
        return
    transaction.count(_changes_of(key))
    revision = f"{transaction.id}.{transaction.count('schedule')}"
    recent = row.recent if row is not None else None
    row = ScheduleRow(key=key, cron=cron, tz=tz, body=body, revision=revision, recent=recent)
    _move(clients, row, clients.clock.now())


def delete_row(key: Any) -> None:
    """Delete a row; in a transaction, with it."""
    transaction = running_transaction()
    if transaction is not None:
        transaction.count(_changes_of(key))
    key.delete()


def _changes_of(key: Any) -> str:
    return f"changes of the schedule {key.id()}"


def advance(clients: Clients, schedules: Mapping[str, DeclaredSchedule], tick: Tick) -> int:
    """Enqueue the work of the ticks that are due, and move the row; return how many run.

    Raises:
        OtherVersionError: this version does not know the schedule, or cannot read its arguments.
    """
    declared = schedules.get(tick.row.partition("|")[0])
    if declared is None:
        raise OtherVersionError(f"there is no schedule for the row {tick.row}")
    return transact(lambda: _advance(clients, declared, tick))


def _advance(clients: Clients, declared: DeclaredSchedule, tick: Tick) -> int:
    row = ndb.Key(ScheduleRow, tick.row).get()
    if row is None or row.revision != tick.revision or row.next_at != naive_utc(tick.at):
        return 0  # It was moved before, changed or removed.
    now_utc = max(clients.clock.now(), tick.at)  # The queue's clock may be ahead of ours.
    since = row.first_missed.replace(tzinfo=datetime.UTC)
    ticks = ticks_to_run(row.cron, row.tz, since, now_utc, declared.missed)
    # The next tick is due at once, and takes those that the commit has no room for.
    work_bytes = ROW_BYTES + len((row.body or "").encode())
    ticks = ticks[: max(1, MAX_COMMIT_BYTES // work_bytes)]
    for at in ticks:
        _enqueue_work(clients, declared, row, at)
    row.note_ticks(ticks, declared.task.path, declared.task.queue)
    is_cut = declared.missed == "all"
    _move(clients, row, ticks[-1] if is_cut else now_utc)
    return len(ticks)


def _move(clients: Clients, row: ScheduleRow, start: datetime.datetime) -> None:
    """Write a row with its first tick after a time, and enqueue that tick's task.

    A tick beyond the longest delay of a task has none: the sweep finds the row by its time.
    """
    following = next_tick(row.cron, row.tz, start)
    row.next_at = naive_utc(following) if following is not None else None
    row.put()
    if following is not None and following - clients.clock.now() < LONGEST_DELAY:
        tick = Tick(row.key.id(), following, row.revision)
        enqueue(clients, TICK, tick, name=name_of(tick), at=following)


def _enqueue_work(
    clients: Clients, declared: DeclaredSchedule, row: ScheduleRow, at: datetime.datetime
) -> None:
    tick, task = Tick(row.key.id(), at, row.revision), declared.task
    if row.body is not None:
        try:
            args = task.read(row.body.encode())
        except BadArgumentsError as error:
            raise OtherVersionError(str(error)) from error
    else:
        takes_time = "at" in task.args.__signature_of_task__.parameters
        args = task.args(at=at) if takes_time else task.args()
    lane = declared.lane_of(row.key.id().partition("|")[2])
    enqueue_tracked(clients, task, args, name=name_of(tick), lane=lane)


def name_of(tick: Tick) -> tuple[str, str, str]:
    """Return the name of the task of a tick, and of its work."""
    return tick.row, tick.revision, tick.at.isoformat()
