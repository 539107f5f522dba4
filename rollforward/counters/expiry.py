"""Deletes receipts after their time: 32 days, which no delivery of a task outlives.

A receipt whose idempotency key was used anew since the query stays (models/expiry.py).
"""

from __future__ import annotations

from models.counters import expired_receipts
from models.expiry import delete_expired
from models.fork_join import PARTITIONS, expiry
from pipelines.runtime import Clients, naive_utc
from pipelines.tasks.expiry import Expiry


def _delete_page(clients: Clients, partition: str, limit: int) -> int:
    before = expiry(partition, naive_utc(clients.clock.now()))
    keys = expired_receipts(partition, before).fetch(limit, keys_only=True)
    delete_expired(keys, before)
    return len(keys)


RECEIPTS = Expiry(
    "/tasks/counters/delete-expired", PARTITIONS, _delete_page, page_size=250, max_tasks=24
)
