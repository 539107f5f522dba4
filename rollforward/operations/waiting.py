"""Tasks that wait: in queues, as far as Cloud Tasks tells, in the outbox, and after failures."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.partitions import PARTITIONS
from rollforward.outbox.entities import (
    LONG_AGO,
    OutboxTask,
    RowId,
    outbox_rows,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import time_text
from rollforward.runtime.process.recent_answer import RecentAnswer
from rollforward.tasks.attempt_entities import TaskAttempts, latest_attempts
from rollforward.tasks.cloud_tasks import CloudTaskQueue, QueueState, WaitingPage
from rollforward.tasks.runs import parse_cursor, timed_cursor

# Of an address: an id with its time.
MAX_OUTBOX_CURSOR = 1_530
STATES_KEPT_S = 5.0


class CannotListError(Exception):
    """The queues of this app cannot be listed; the text says why."""


@dataclass(frozen=True)
class OutboxRow:
    """A row of the outbox: a task that is committed, and not known to exist or to have ended."""

    id: str
    created: datetime.datetime
    is_unacked: bool
    path: str
    queue: str
    tag: str
    due: datetime.datetime | None
    body: str


@dataclass(frozen=True)
class OutboxPage:
    """Rows of the outbox, the oldest first; `next_cursor` is "" on the last page."""

    rows: Sequence[OutboxRow]
    next_cursor: str


def queue_states(clients: Clients) -> Sequence[QueueState]:
    """Return the queues, with their states and limits.

    Raises:
        CannotListError: they cannot be listed.
    """
    try:
        return queue_client(clients).queue_states()
    except rpc_errors.PermissionDenied as error:
        raise CannotListError(_NO_RIGHT.format("cloudtasks.queues.list")) from error


def recent_queue_states(clients: Clients) -> Sequence[QueueState] | None:
    """Return the queues as this process asked for them within five seconds.

    All pages that are open share one call. None: they cannot be listed.
    """

    def ask() -> Sequence[QueueState] | None:
        try:
            return queue_states(clients)
        except (CannotListError, rpc_errors.GoogleAPICallError):
            return None

    return _recent(clients).get(ask, STATES_KEPT_S)


def forget_queue_states(clients: Clients) -> None:
    """Let the next page ask for the queues again: one of them is changed."""
    _recent(clients).forget()


def _recent(clients: Clients) -> RecentAnswer[Sequence[QueueState] | None]:
    return clients.process_state.get_or_create("operations:queues", RecentAnswer)


def list_waiting(clients: Clients, queue: str, *, cursor: str = "", limit: int = 20) -> WaitingPage:
    """Return tasks that a queue keeps, by name.

    Raises:
        CannotListError: they cannot be listed, or there is no queue of this name.
    """
    try:
        return queue_client(clients).waiting(queue, limit=limit, cursor=cursor)
    except rpc_errors.PermissionDenied as error:
        raise CannotListError(_NO_RIGHT.format("cloudtasks.tasks.list")) from error
    except (rpc_errors.NotFound, rpc_errors.InvalidArgument) as error:
        raise CannotListError(f"Cloud Tasks cannot list {queue!r:.100}: {error.message}") from error


def list_outbox(*, cursor: str = "", limit: int) -> OutboxPage:
    """Return rows of the outbox, the oldest of all partitions first.

    Keys alone of each partition are read, and the rows of the page.

    Args:
        cursor: `next_cursor` of a page; "": the first one.

    Raises:
        BadCursorError: it is of no page.
    """
    begin = parse_cursor(cursor, "cursor must be next_cursor of a list")
    futures = [
        outbox_rows(partition, after=_begin_in(partition, begin)).fetch_async(
            limit + 1, keys_only=True
        )
        for partition in PARTITIONS
    ]
    created = begin[0] if begin else LONG_AGO
    keys = [key for future in futures for key in _timed(future.get_result(), created)]
    keys.sort(key=lambda timed: (timed[0], str(timed[1].id())))
    shown = keys[:limit]
    rows = ndb.get_multi([key for _, key in shown])
    next_cursor = timed_cursor(shown[-1][0], shown[-1][1].id()) if len(keys) > limit else ""
    return OutboxPage([_row(row) for row in rows if row is not None], next_cursor)


def _begin_in(partition: str, place: tuple[datetime.datetime, str] | None) -> str:
    """Return the id behind which a partition has the rows of the next page; "": all of them."""
    if place is None:
        return ""
    created, row_id = place
    own_partition = max((known for known in PARTITIONS if known <= row_id), default=PARTITIONS[0])
    if partition == own_partition:
        return row_id
    # Rows of the same instant are in the order of their ids, and so of their partitions.
    return f"{partition}|{time_text(created)}{'|' if partition > own_partition else '~'}"


def _timed(keys: Sequence[ndb.Key], created: datetime.datetime) -> Iterator[tuple[Any, ndb.Key]]:
    """Yield the keys of a partition with their times, which never fall.

    A key made by hand names no time. It takes the time of the row before it.
    """
    times = (RowId.read(key.id()).created for key in keys)
    rising = itertools.accumulate(times, max, initial=created)
    yield from zip(itertools.islice(rising, 1, None), keys, strict=True)


def failing_tasks(limit: int) -> Sequence[TaskAttempts]:
    """Return the attempts of tasks that have failed and are retried, the latest first."""
    return latest_attempts().fetch(limit)  # type: ignore[no-any-return]


_NO_RIGHT = "Grant the app's account {} to see this: roles/cloudtasks.viewer has it."


def queue_client(clients: Clients) -> CloudTaskQueue:
    """Return the queues of Cloud Tasks.

    Raises:
        CannotListError: the app has others, as in a test.
    """
    if not isinstance(clients.tasks, CloudTaskQueue):
        raise CannotListError(f"{type(clients.tasks).__name__} cannot list its tasks.")
    return clients.tasks


def _row(row: OutboxTask) -> OutboxRow:
    row_id = RowId.read(row.key.id())
    return OutboxRow(
        id=str(row.key.id()),
        created=row_id.created.replace(tzinfo=datetime.UTC),
        is_unacked=row_id.is_unacked,
        path=row.path or "",
        queue=row.queue or "",
        tag=row.tag or "",
        due=None if row.at is None else row.at.replace(tzinfo=datetime.UTC),
        body=row.body or "",
    )
