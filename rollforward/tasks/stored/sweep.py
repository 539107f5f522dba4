"""Deletion of expired arguments: their chunks go with them."""

from __future__ import annotations

from google.cloud import ndb

from rollforward.datastore.expiry import expired, expiry
from rollforward.datastore.transactions import transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.expiry import Expiry
from rollforward.tasks.stored.entities import StoredArguments


class ArgumentsExpiry(Expiry):
    """Deletes arguments with their chunks, each in a transaction of its own."""

    def delete_page(self, clients: Clients, partition: str) -> int:
        """Delete a page of a partition; return how many had expired."""
        expires_before = expiry(partition, naive_utc(clients.clock.now()))
        query = expired(StoredArguments, partition, expires_before)
        keys = query.fetch(self.page_size, keys_only=True)
        for key in keys:
            transact(lambda key=key: _delete(key, expires_before))  # type: ignore[misc]
        return len(keys)


def _delete(key: ndb.Key, expires_before: str) -> None:
    head = key.get()
    if head is not None and head.expires is not None and head.expires < expires_before:
        ndb.delete_multi([head.key, *head.chunk_keys])


EXPIRED_ARGUMENTS = ArgumentsExpiry(
    "/tasks/stored-arguments/expire", [StoredArguments], page_size=50, max_tasks=100
)
