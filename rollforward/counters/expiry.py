"""Deletes receipts after their time: 32 days, which no delivery of a task outlives.

A receipt whose idempotency key was used anew since the query stays
(rollforward/datastore/expiry.py).
"""

from __future__ import annotations

from rollforward.counters.entities import expired_receipts
from rollforward.datastore.expiry import delete_expired
from rollforward.fork_join.entities import PARTITIONS, expiry
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks.expiry import Expiry


def _delete_page(clients: Clients, partition: str, limit: int) -> int:
    before = expiry(partition, naive_utc(clients.clock.now()))
    keys = expired_receipts(partition, before).fetch(limit, keys_only=True)
    delete_expired(keys, before)
    return len(keys)


RECEIPTS = Expiry(
    "/tasks/counters/delete-expired", PARTITIONS, _delete_page, page_size=250, max_tasks=24
)
