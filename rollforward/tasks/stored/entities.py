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
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class StoredArguments(ndb.Model):
    """Arguments of one task, in chunks."""

    chunks = ndb.IntegerProperty(indexed=False, required=True)
    size = ndb.IntegerProperty(indexed=False, required=True)  # In bytes.
    done = ndb.BooleanProperty(indexed=False, default=False)  # The task has ended, its chunks gone.
    expires = ndb.StringProperty()  # None: a dead task refers to it.

    @property
    def chunk_keys(self) -> list[Any]:
        return [chunk_key(self.key.id(), number) for number in range(self.chunks)]


class ArgumentsChunk(ndb.Model):
    """A part of some arguments."""

    data = ndb.BlobProperty(required=True)


def stored_key(stored_id: str) -> Any:
    """Return the key of some arguments."""
    return ndb.Key(StoredArguments, stored_id)


def chunk_key(stored_id: str, number: int) -> Any:
    """Return the key of a chunk."""
    return ndb.Key(ArgumentsChunk, f"{stored_id}|{number:04d}")
