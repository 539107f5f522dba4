"""Deletes receipts after their time: 32 days, which no delivery of a task outlives.

A receipt whose idempotency key was used anew since the query stays (models/expiry.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from models import expiry as expired_rows
from models.counters import expired_receipts
from models.fork_join import PARTITIONS, expiry
from pipelines.runtime import Clients, naive_utc
from pipelines.tasks import task

MAX_DELETED = 250
# A task that deletes takes some thousands, in seconds; a sweep starts chains of at most so many.
PAGES_PER_TASK = 10
MAX_DELETING = 24


@dataclass(frozen=True)
class DeleteReceipts:
    """In which partition to delete; how many tasks of the chain came before."""

    partition: Annotated[str, Field(pattern="^[0-9a-f]$")]
    minute: Annotated[str, Field(max_length=20)]
    number: int = 0


def delete_expired(clients: Clients) -> int:
    """Delete receipts that have expired; return how many.

    One partition of 16. If there is much in it, there is in the others: then each gets a task.
    """
    found = _delete_page(clients, clients.random.choice(PARTITIONS))
    if found >= MAX_DELETED:
        minute = f"{clients.clock.now():%Y%m%dT%H%M}"
        names = [(minute, partition, 0) for partition in PARTITIONS]
        tasks = [DeleteReceipts(partition, minute) for partition in PARTITIONS]
        delete_partition.enqueue_many(clients, tasks, names=names)
    return found


@task("/tasks/counters/delete-expired", queue="default")
def delete_partition(clients: Clients, args: DeleteReceipts) -> None:
    """Delete what has expired in a partition; pass on to another task what is too much."""
    for _ in range(PAGES_PER_TASK):
        if _delete_page(clients, args.partition) < MAX_DELETED:
            return
    number = args.number + 1
    if number < MAX_DELETING:
        following = replace(args, number=number)
        delete_partition.enqueue(clients, following, name=(args.minute, args.partition, number))


def _delete_page(clients: Clients, partition: str) -> int:
    before = expiry(partition, naive_utc(clients.clock.now()))
    keys = expired_receipts(partition, before).fetch(MAX_DELETED, keys_only=True)
    expired_rows.delete_expired(keys, before)
    return len(keys)
