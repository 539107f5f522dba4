"""Tasks that wait: in queues, as far as Cloud Tasks tells, in the outbox, and after failures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.outbox.entities import OutboxTask, RowId, outbox_rows
from rollforward.runtime.clients import Clients
from rollforward.tasks.attempt_entities import TaskAttempts, newest_attempts
from rollforward.tasks.cloud_tasks import CloudTaskQueue, QueueState, WaitingPage

# Keys alone, which are cheap: the oldest of so many are read.
MAX_KEYS = 300


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


def queue_states(clients: Clients) -> Sequence[QueueState]:
    """Return the queues, with their states and limits.

    Raises:
        CannotListError: they cannot be listed.
    """
    try:
        return lister(clients).queue_states()
    except rpc_errors.PermissionDenied as error:
        raise CannotListError(_NO_RIGHT.format("cloudtasks.queues.list")) from error


def list_waiting(clients: Clients, queue: str, *, cursor: str = "", limit: int = 20) -> WaitingPage:
    """Return tasks that a queue keeps, by name.

    Raises:
        CannotListError: they cannot be listed, or there is no queue of this name.
    """
    try:
        return lister(clients).waiting(queue, limit=limit, cursor=cursor)
    except rpc_errors.PermissionDenied as error:
        raise CannotListError(_NO_RIGHT.format("cloudtasks.tasks.list")) from error
    except (rpc_errors.NotFound, rpc_errors.InvalidArgument) as error:
        raise CannotListError(f"Cloud Tasks cannot list {queue!r:.100}: {error.message}") from error


def oldest_rows(limit: int) -> Sequence[OutboxRow]:
    """Return the oldest rows of the outbox, of the first few hundred."""
    keys = outbox_rows().fetch(MAX_KEYS, keys_only=True)
    keys.sort(key=lambda key: RowId.read(key.id()).created)
    rows = ndb.get_multi(keys[:limit])
    return [_row(row) for row in rows if row is not None]


def failing_tasks(limit: int) -> Sequence[TaskAttempts]:
    """Return the attempts of tasks that have failed and are retried, the latest first."""
    return newest_attempts().fetch(limit)  # type: ignore[no-any-return]


_NO_RIGHT = "Grant the app's account {} to see this: roles/cloudtasks.viewer has it."


def lister(clients: Clients) -> CloudTaskQueue:
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
