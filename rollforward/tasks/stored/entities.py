"""Rows of tasks.

StoredArguments
    Key: a hash of the task's path, its name and the arguments. In the place of a name that it
    lacks: the row of the outbox, or a random id. So a call that is repeated writes the same rows.
    Queries: a range of `expires`, which is a partition and an hour: expired rows. Single-property
    index.
    Growth: a row for each task of more than 1,000,000 bytes (100,000 bytes if a transaction
    enqueues it), for 32 days after it is due. While a dead task refers to it, it does not expire.

ArgumentsChunk
    Key: "<id of the StoredArguments>|<number>".
    Queries: none. Growth: a row for each 1,000,000 bytes, until the task is done; of a task that
    was never created, as long as its StoredArguments.

DistantTask
    Key: a hash of the task's path and its name. In the place of a name that it lacks: the row of
    the outbox, or a random id.
    Queries: waits_until <= a time, by waits_until: tasks that are near. A range of `expires`:
    expired rows. Single-property indexes.
    Growth: a row for each task due in more than 30 days, until two days before it is due; a named
    one for nine days more. 500 a second and more with about the same time would be slowed down.

CancellableTask
    Key: the task's handle.
    Queries: a range of `expires`: expired rows. Single-property index.
    Growth: a row for each cancellable task and each tick of a schedule, until the task has ended,
    or for ten years if it waits in a lane. A named or a cancelled one has it until 32 days after it
    was due; a tracked one that was cancelled or given up, for 32 days.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import key_of_client

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
WAITING, BEGUN, CANCELLED, GIVEN_UP = "waiting", "begun", "cancelled", "given up"


class StoredArguments(ndb.Model):
    """Arguments of one task, in chunks."""

    chunks = ndb.IntegerProperty(indexed=False, required=True)
    size = ndb.IntegerProperty(indexed=False, required=True)  # In bytes.
    done = ndb.BooleanProperty(indexed=False, default=False)  # The task has ended, its chunks gone.
    expires = ndb.StringProperty()  # None: a dead task, or one in a lane, refers to it.

    @property
    def chunk_keys(self) -> list[Any]:
        return [chunk_key(self.key.id(), number) for number in range(self.chunks)]


class ArgumentsChunk(ndb.Model):
    """A part of some arguments."""

    data = ndb.BlobProperty(required=True)


def stored_key(stored_id: str) -> Any:
    """Return the key of some arguments."""
    return key_of_client(StoredArguments, stored_id)


def chunk_key(stored_id: str, number: int) -> Any:
    """Return the key of a chunk."""
    return key_of_client(ArgumentsChunk, f"{stored_id}|{number:04d}")


class DistantTask(ndb.Model):
    """A task that is due in more than 30 days."""

    path = ndb.TextProperty(required=True)
    queue = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)
    name = ndb.TextProperty()  # The caller's; None: made of the row's key.
    due = ndb.DateTimeProperty(indexed=False, required=True)
    # When it is due; later if it was refused or not answered. None: created.
    waits_until = ndb.DateTimeProperty()
    max_attempts = ndb.IntegerProperty(indexed=False)
    deadline_s = ndb.IntegerProperty(indexed=False)
    call_id = ndb.TextProperty()  # The call that wrote it: the idempotency guard.
    traceparent = ndb.TextProperty()  # From the code that enqueued it; None: it had no trace.
    expires = ndb.StringProperty()  # None: the task does not exist yet.


class CancellableTask(ndb.Model):
    """A task with a handle: waiting, begun or cancelled.

    A tracked one is waiting until it has ended, cancelled or given up.
    """

    state = ndb.TextProperty(required=True)
    dead_id = ndb.TextProperty()  # The last dead task of a tracked one; None: it never was dead.
    expires = ndb.StringProperty(required=True)


def distant_key(row: str) -> Any:
    """Return the key of a distant task."""
    return key_of_client(DistantTask, row)


def waiting_until(end_utc: datetime.datetime) -> Any:
    """Return the query for the distant tasks that wait until some time, the first one first."""
    waits_until: Any = DistantTask.waits_until
    # The lower bound keeps out those that were created: None sorts first.
    query = DistantTask.query(waits_until > EPOCH, waits_until <= end_utc)
    return query.order(waits_until)


def handle_key(handle: str) -> Any:
    """Return the key of a cancellable task."""
    return key_of_client(CancellableTask, handle)
