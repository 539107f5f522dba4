"""A pull queue for tests, and others beside it that have the same tags."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.pull_queues import Lease, PullQueue
from rollforward.pull_queues.entities import PullItem, items_of
from tests.infra.world import World

WORK = PullQueue("work", max_deliveries=3, partitions=4)
ELSEWHERE = "beside"  # A namespace.


def add(here: World, *payloads: str, tag: str | None = None) -> None:
    for payload in payloads:
        WORK.add(here.clients, payload, tag=tag)


def lease(here: World, limit: int = 10, **options: Any) -> list[Lease]:
    return WORK.lease(here.clients, limit=limit, **options)


def payloads(leases: Sequence[Lease]) -> list[str]:
    return sorted(each.payload for each in leases)


def waiting() -> int:
    return len(items_of("work").fetch(keys_only=True))


@contextmanager
def neighbours(here: World, queues: Sequence[PullQueue]) -> Iterator[None]:
    """Fill other queues, and one of another namespace; in the end all of them are as they were.

    Args:
        queues: In the first one, which allows one delivery, an item is dead, and one is leased.
    """
    for queue in queues:
        for tag in (None, "a", "b", "t"):
            queue.add(here.clients, "a", tag=tag)
    queues[0].lease(here.clients, tag="a", lease_s=1)
    here.clock.sleep(2)
    assert queues[0].lease(here.clients, tag="a") == []
    queues[0].lease(here.clients, tag="b")
    assert len(queues[0].dead_letters()) == 1
    rows = PullItem.query().fetch()
    copies = [_copy(row) for row in rows]
    ndb.put_multi(copies)
    before = _stored(queues)

    yield

    assert _stored(queues) == before, "a queue beside the one under test was touched"


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
    here = [row for row in PullItem.query() if row.key.id().partition("|")[0] in names]
    return sorted([*here, *elsewhere], key=lambda row: str(row.key))


@dataclass
class Ahead:
    """A clock that is ahead of another one."""

    clock: Any
    by: datetime.timedelta

    def now(self) -> datetime.datetime:
        now: datetime.datetime = self.clock.now()
        return now + self.by

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
