"""A pull queue for tests, and others beside it that have the same tags."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.pull_queues import Lease, PullQueue
from rollforward.pull_queues.entities import PullItem, item_key, items_of, ready_at, tag_group
from rollforward.runtime import naive_utc
from tests.infra.world import World

WORK = PullQueue("work", max_deliveries=3, partitions=4)
ELSEWHERE = "beside"  # A namespace.


def add(world: World, *payloads: str, tag: str | None = None) -> None:
    for payload in payloads:
        WORK.add(world.clients, payload, tag=tag)


def lease(world: World, limit: int = 10, **options: Any) -> list[Lease]:
    return WORK.lease(world.clients, limit=limit, **options)


def payloads(leases: Sequence[Lease]) -> list[str]:
    return sorted(lease.payload for lease in leases)


def waiting() -> int:
    return len(items_of("work").fetch(keys_only=True))


def put_items(world: World, queue: PullQueue, partition: int, used_up: int, good: int) -> None:
    """Store items of a partition: those whose deliveries are used up come first."""
    now_utc, group = naive_utc(world.clock.now()), tag_group(queue.name, "t")
    rows = []
    for number in range(used_up + good):
        at = now_utc - datetime.timedelta(seconds=100 - number)
        key = item_key(queue.name, f"{partition}-{number:02d}")
        row = PullItem(key=key, payload="work", tag="t", added_at=at)
        row.deliveries = int(number < used_up)
        row.ready, row.tagged = ready_at(queue.name, partition, at), ready_at(group, partition, at)
        rows.append(row)
    ndb.put_multi(rows)


@contextmanager
def neighbours(world: World, queues: Sequence[PullQueue]) -> Iterator[None]:
    """Fill other queues, and one of another namespace; in the end all of them are as they were.

    Args:
        queues: In the first one, which allows one delivery, an item is dead, and one is leased.
    """
    for queue in queues:
        for tag in (None, "a", "b", "t"):
            queue.add(world.clients, "a", tag=tag)
    queues[0].lease(world.clients, tag="a", lease_s=1)
    world.clock.sleep(2)
    assert queues[0].lease(world.clients, tag="a") == []
    queues[0].lease(world.clients, tag="b")
    assert len(queues[0].dead_letters()) == 1
    rows = PullItem.query().fetch()
    copies = [_copy(row) for row in rows]
    ndb.put_multi(copies)
    stored_before = _stored(queues)

    yield

    assert _stored(queues) == stored_before, "a queue beside the one under test was touched"


def _copy(row: PullItem) -> PullItem:
    """Return an item of the queue under test in another namespace."""
    names = {name: getattr(row, name) for name in ("ready", "tagged", "dead")}
    work = {name: value and f"work{value[value.index('|') :]}" for name, value in names.items()}
    id_ = f"work|{row.key.id().partition('|')[2]}"
    key = ndb.Key(PullItem, id_, namespace=ELSEWHERE)
    return PullItem(key=key, payload=row.payload, added_at=row.added_at, **work)


def _stored(queues: Sequence[PullQueue]) -> list[PullItem]:
    elsewhere = PullItem.query(namespace=ELSEWHERE).fetch()
    names = {queue.name for queue in queues}
    own = [row for row in PullItem.query() if row.key.id().partition("|")[0] in names]
    return sorted([*own, *elsewhere], key=lambda row: str(row.key))


@dataclass
class Ahead:
    """A clock that is ahead of another one."""

    clock: Any
    by: datetime.timedelta

    def now(self) -> datetime.datetime:
        now_utc: datetime.datetime = self.clock.now()
        return now_utc + self.by

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
