"""The sweep of a fork-join queue: it wakes what waits longer than its period.

An idle queue costs one query. Few stranded batches are woken here; for many, each partition of
the key space gets a task.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from google.cloud import ndb
from pydantic import Field

from models.fork_join import (
    PARTITIONS,
    EpochId,
    PackId,
    expired_outcomes,
    expired_receipts,
    expiry,
    packs_of_queue,
)
from pipelines.clients import Clients
from pipelines.clock import naive

if TYPE_CHECKING:
    from pipelines.fork_join import ForkJoin

# A batch that its own joiner should have folded by now.
STALE_S = 10.0
# Beyond this age it is woken when it is twice as old, not each minute.
PATIENT_AFTER_S = 600.0
SWEEP_S = 60.0
MOST_HERE = 500
MOST_FORGOTTEN = 500
MOST_PAGES_FORGOTTEN = 20


@dataclass(frozen=True)
class Walk:
    """Which partition of a queue to walk through, from where, in which minute."""

    partition: Annotated[str, Field(pattern="^[0-9a-f]$")]
    minute: Annotated[str, Field(max_length=20)]
    after: Annotated[str, Field(max_length=300)] = ""


@dataclass(frozen=True)
class Swept:
    """What a sweep did: batches woken, or partitions handed to tasks."""

    woken: int = 0
    partitions: int = 0


def sweep(clients: Clients, queue: ForkJoin[Any]) -> Swept:
    """Wake what is stranded."""
    keys = packs_of_queue(queue.name).fetch(MOST_HERE + 1, keys_only=True)
    if len(keys) <= MOST_HERE:
        return Swept(woken=_wake(clients, queue, keys))
    minute = f"{clients.clock.now():%Y%m%dT%H%M}"
    walks = [Walk(partition, minute) for partition in PARTITIONS]
    names = [(minute, walk.partition, "") for walk in walks]
    created = queue.walk_task.enqueue_many(clients, walks, names=names)
    return Swept(partitions=sum(created))


def walk(clients: Clients, queue: ForkJoin[Any], args: Walk) -> None:
    """Wake what is stranded in a partition; pass on to another task what is too much."""
    query = packs_of_queue(queue.name, args.partition, after=args.after)
    keys = query.fetch(MOST_HERE, keys_only=True)
    if len(keys) == MOST_HERE:
        after = keys[-1].id()
        queue.walk_task.enqueue(
            clients,
            Walk(args.partition, args.minute, after),
            name=(args.minute, args.partition, after),
        )
    _wake(clients, queue, keys)


def _wake(clients: Clients, queue: ForkJoin[Any], keys: Sequence[Any]) -> int:
    """Create a task for each batch that is due again."""
    now = naive(clients.clock.now())
    packs = {PackId.parse(key.id()).epoch: key for key in keys}
    due = {epoch: key for epoch, key in packs.items() if _is_due(queue, epoch, now)}
    found = dict(zip(due, ndb.get_multi(list(due.values())), strict=True))
    keys_of = {epoch: pack.batch_key for epoch, pack in found.items() if pack is not None}
    queue.wake(clients, keys_of, minute=f"{now:%Y%m%dT%H%M}")
    return len(keys_of)


def _is_due(queue: ForkJoin[Any], epoch: str, now: datetime.datetime) -> bool:
    age_s = (now - EpochId.parse(epoch).opened).total_seconds() - queue.period_s
    if age_s < -SWEEP_S:
        return True  # From a clock far ahead.
    if age_s < PATIENT_AFTER_S:
        return age_s >= STALE_S
    return _doublings(age_s) > _doublings(age_s - 2 * SWEEP_S)


def _doublings(age_s: float) -> int:
    return int(age_s / PATIENT_AFTER_S).bit_length()


def forget(clients: Clients) -> int:
    """Delete receipts and outcomes that have expired; return how many.

    One partition of 16, so that an idle sweep costs two queries. If there is much in it, there is
    in the others: then all of them, up to 10,000 rows.
    """
    before = naive(clients.clock.now())
    partitions = list(PARTITIONS)
    clients.random.shuffle(partitions)
    forgotten = 0
    for pages, partition in enumerate(partitions * MOST_PAGES_FORGOTTEN):
        found = _forget_page(partition, expiry(partition, before))
        forgotten += found
        if (pages == 0 and found < MOST_FORGOTTEN) or pages == MOST_PAGES_FORGOTTEN - 1:
            break
    return forgotten


def _forget_page(partition: str, before: str) -> int:
    keys = [
        key
        for query in (expired_receipts(partition, before), expired_outcomes(partition, before))
        for key in query.fetch(MOST_FORGOTTEN, keys_only=True)
    ]
    ndb.delete_multi(keys)
    return len(keys)
