"""Deletion of expired rows of tasks; the chunks of arguments go with them."""

from __future__ import annotations

from google.cloud import ndb

from rollforward.datastore.expiry import expired, expiry
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.expiry import Expiry
from rollforward.tasks.stored.entities import CancellableTask, DistantTask, StoredArguments


class TaskRowsExpiry(Expiry):
    """Deletes expired rows, and arguments with their chunks, each in its own transaction."""

    def delete_page(self, clients: Clients, partition: str) -> int:
        """Delete a page of a partition; return how many rows of a kind had expired, at most."""
        others = super().delete_page(clients, partition)
        expires_before = expiry(partition, naive_utc(clients.clock.now()))
        query = expired(StoredArguments, partition, expires_before)
        keys = query.fetch(self.page_size, keys_only=True)
        for key in keys:
            transact(lambda key=key: _delete(key, expires_before))  # type: ignore[misc]
        return max(len(keys), others)


def _delete(key: ndb.Key, expires_before: str) -> None:
    head = key.get()
    if head is not None and head.expires is not None and head.expires < expires_before:
        ndb.delete_multi([head.key, *head.chunk_keys])


EXPIRED = TaskRowsExpiry(
    "/tasks/task-rows/expire", [DistantTask, CancellableTask], page_size=50, max_tasks=100
)
