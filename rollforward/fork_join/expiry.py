"""Deletes receipts and outcomes after their time; those whose keys were used anew since stay."""

from __future__ import annotations

from rollforward.datastore.expiry import delete_expired
from rollforward.fork_join.entities import PARTITIONS, expired_outcomes, expired_receipts, expiry
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.expiry import Expiry


def _delete_page(clients: Clients, partition: str, limit: int) -> int:
    before = expiry(partition, naive_utc(clients.clock.now()))
    queries = (expired_receipts(partition, before), expired_outcomes(partition, before))
    keys = [key for query in queries for key in query.fetch(limit, keys_only=True)]
    delete_expired(keys, before)
    return len(keys)


RECEIPTS_AND_OUTCOMES = Expiry(
    "/tasks/fork-join/delete-expired", PARTITIONS, _delete_page, page_size=500, max_tasks=12
)
