"""Leases: taken, renewed, acked and released, each by one compare-and-set for all items.

A lease is a commit that moves its items' time to the lease's end, under the versions at which they
were read. So of two workers that lease the same item one is refused, with all that it asked for; it
goes on in another partition. An ack deletes the item at the version that the lease left: a worker
whose item was leased to another since is refused.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors

from models.commits import CHANGED, commit_unchanged, read_versions
from models.pull_queues import (
    PullItem,
    dead_at,
    item_key,
    ready_items,
    tag_group,
    tagged_items,
    time_of,
)
from models.transactions import OUTCOME_UNKNOWN, RETRIED
from pipelines.pull_queues.add import make_ready
from pipelines.pull_queues.items import ItemId, Lease, Oldest
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc

# Items of one commit: of the largest payloads these are 4 MB, and a request has at most 10 MiB.
MAX_ITEMS = 40
MAX_ATTEMPTS = 3
PAUSE_S = 0.03

Versioned = tuple[PullItem, int]


@dataclass(frozen=True)
class Shape:
    """What leasing has to know of a queue."""

    name: str
    partitions: int
    max_deliveries: int


@dataclass(frozen=True)
class _Call:
    """One call of a worker that leases: of which group of tags, None: of any; from when to when."""

    clients: Clients
    shape: Shape
    group: str | None
    now: datetime.datetime
    ends: datetime.datetime

    def fill(self, leased: list[Lease], limit: int, partitions: Sequence[int]) -> list[int]:
        """Lease items of some partitions until there are enough, commit by commit.

        Returns:
            The partitions where another worker was faster.
        """
        contended = []
        for partition in partitions:
            taken: list[Lease] | None = []
            wanted = 0
            while taken is not None and len(taken) == wanted and len(leased) < limit:
                wanted = min(limit - len(leased), MAX_ITEMS)
                taken = self._take(partition, wanted)
                leased += taken or []
            if taken is None:
                contended.append(partition)
            if len(leased) >= limit:
                break
        return contended

    def _take(self, partition: int, limit: int) -> list[Lease] | None:
        """Lease items of one partition, in one commit; None: another worker was faster."""
        keys = self._query(partition).fetch(limit, keys_only=True)
        rows = read_versions(self.clients.datastore, keys) if keys else []
        # Read after the query: another worker may have leased one in between.
        found = [row for row in rows if row is not None and self._is_ready(row[0])]
        if not found:
            return None if keys else []
        proof = self.clients.new_id()
        for item, _ in found:
            _hand_out(item, self.shape, proof, self.now, self.ends)
        versions = _commit(self.clients, found, proof)
        if versions is None:
            return None
        return [
            _leased(item, version, self.ends)
            for (item, _), version in zip(found, versions, strict=True)
            if item.dead is None
        ]

    def _query(self, partition: int) -> Any:
        if self.group is None:
            return ready_items(self.shape.name, partition, self.now)
        return tagged_items(self.group, partition, self.now)

    def _is_ready(self, item: PullItem) -> bool:
        return item.ready is not None and time_of(item.ready) <= self.now


def lease(
    clients: Clients, shape: Shape, limit: int, lease_s: float, tag: str | Oldest | None
) -> list[Lease]:
    """Lease up to so many items, those that wait longest in their partition first.

    Empty partitions are passed over; one where another worker leases at this moment is tried once
    more, behind the others.
    """
    now = naive_utc(clients.clock.now())
    group = None
    if isinstance(tag, Oldest):
        oldest = _oldest(shape, now)
        if oldest is None:
            return []
        group = tag_group(shape.name, oldest.tag)
    elif tag is not None:
        group = tag_group(shape.name, tag)
    call = _Call(clients, shape, group, now, now + datetime.timedelta(seconds=lease_s))
    partitions = list(range(shape.partitions))
    random.Random(clients.new_id()).shuffle(partitions)
    leased: list[Lease] = []
    try:
        contended = call.fill(leased, limit, partitions)
        call.fill(leased, limit, contended)
    except rpc_errors.GoogleAPIError:
        if not leased:
            raise
    return leased  # What is leased already is its caller's, who may know of nothing else.


def _oldest(shape: Shape, now: datetime.datetime) -> PullItem | None:
    """Return the item that can be leased and waits longest."""
    futures = [
        ready_items(shape.name, partition, now).get_async() for partition in range(shape.partitions)
    ]
    heads = [head for head in (future.result() for future in futures) if head is not None]
    return min(heads, key=lambda head: time_of(head.ready), default=None)


def _hand_out(
    item: PullItem, shape: Shape, proof: str, now: datetime.datetime, ends: datetime.datetime
) -> None:
    """Lease an item, or let it be a dead letter if it was leased as often as it may be."""
    item.lease = proof
    if item.deliveries >= shape.max_deliveries:
        item.ready = item.tagged = None
        item.dead = dead_at(shape.name, now)
        return
    item.deliveries += 1
    make_ready(item, shape.partitions, ends)


def _commit(clients: Clients, found: Sequence[Versioned], proof: str) -> list[int] | None:
    """Write items at their versions; return the new ones. None: another worker was faster."""
    try:
        return commit_unchanged(clients.datastore, puts=found)
    except OUTCOME_UNKNOWN:
        rows = read_versions(clients.datastore, [item.key for item, _ in found])
        if any(row is None or row[0].lease != proof for row in rows):
            return None  # Not written; or written, and one is leased by somebody else since.
        return [row[1] for row in rows if row is not None]
    except RETRIED + CHANGED:
        return None


def _leased(item: PullItem, version: int, ends: datetime.datetime) -> Lease:
    id_ = ItemId(item.key.id().partition("|")[2])
    return Lease(id_, item.payload, item.tag, item.deliveries, ends, version)


def move(
    clients: Clients, shape: Shape, leases: Sequence[Lease], to: datetime.datetime
) -> list[Lease]:
    """Let leases end at another time; return those that are still held, with their new fences."""
    proof = clients.new_id()
    for _ in range(MAX_ATTEMPTS):
        rows = _rows(clients, shape, leases)
        held = [row for row, each in zip(rows, leases, strict=True) if _has_version(row, each)]
        found = [row for row in held if row is not None]
        if not found:
            break  # All are lost, or a commit without a reply has landed since.
        for item, _version in found:
            item.lease = proof
            make_ready(item, shape.partitions, to)
        versions = _commit(clients, found, proof)
        if versions is not None:
            return [_leased(i, at, to) for (i, _), at in zip(found, versions, strict=True)]
        clients.clock.sleep(PAUSE_S)
    rows = _rows(clients, shape, leases)
    return [_leased(*row, to) for row in rows if row is not None and row[0].lease == proof]


def _rows(clients: Clients, shape: Shape, leases: Sequence[Lease]) -> list[Versioned | None]:
    return read_versions(clients.datastore, _keys(shape, leases))


def _has_version(row: Versioned | None, lease: Lease) -> bool:
    return row is not None and row[1] == lease.version


def _keys(shape: Shape, leases: Sequence[Lease]) -> list[Any]:
    return [item_key(shape.name, lease.id) for lease in leases]


def ack(clients: Clients, shape: Shape, leases: Sequence[Lease]) -> list[Lease]:
    """Delete leased items; return the leases that were lost: another worker has those items.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service does not say; acking again is
            safe.
    """
    open_, doubt = list(leases), False
    lost: list[Lease] = []
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if not open_:
            return lost
        pairs = zip(_keys(shape, open_), (lease.version for lease in open_), strict=True)
        try:
            commit_unchanged(clients.datastore, deletes=list(pairs))
        except CHANGED:
            pass
        except RETRIED as error:
            if attempt == MAX_ATTEMPTS:
                raise
            doubt = doubt or isinstance(error, OUTCOME_UNKNOWN)
            clients.clock.sleep(PAUSE_S)
        else:
            return lost
        rows = read_versions(clients.datastore, _keys(shape, open_))
        for row, each in zip(rows, tuple(open_), strict=True):
            if row is not None and row[1] == each.version:
                continue
            open_.remove(each)
            if row is not None or not (doubt or _is_sure(clients, each)):
                lost.append(each)
    return lost + open_


def _is_sure(clients: Clients, lease: Lease) -> bool:
    """Return whether nobody else can have acked an item that is gone."""
    return naive_utc(clients.clock.now()) < lease.expires_at
