"""Leases: taken, renewed, acked and released, each by one compare-and-set for all items.

A lease is a commit that moves its items' time to the lease's end, under the versions at which they
were read. So of two workers that lease the same item one is refused, with all that it asked for; it
goes on in another partition. An ack deletes the item at the version that the lease left: a worker
whose item was leased to another since is refused.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors

from models.commits import CHANGED, commit_unchanged, read_versions
from models.pull_queues import (
    PullItem,
    dead_at,
    item_key,
    ready_items,
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


def lease(
    clients: Clients, shape: Shape, limit: int, lease_s: float, tag: str | Oldest | None
) -> list[Lease]:
    """Lease up to so many items, those that wait longest in their partition first.

    Empty partitions are passed over; one where another worker leases at this moment is tried once
    more, behind the others.
    """
    now = naive_utc(clients.clock.now())
    wanted = _tag_of_oldest(shape, now) if isinstance(tag, Oldest) else tag
    if isinstance(tag, Oldest) and wanted is None:
        return []
    order = list(range(shape.partitions))
    random.Random(clients.new_id()).shuffle(order)
    leased: list[Lease] = []
    contended: list[int] = []
    # The partitions that were contended by then come once more.
    for partition in itertools.chain(order, _late(contended)):
        try:
            room = limit - len(leased)
            is_free = _fill(clients, shape, partition, room, now, lease_s, wanted, leased)
        except rpc_errors.GoogleAPIError:
            if not leased:
                raise
            return leased  # What is leased already is its caller's, who may know of nothing else.
        if not is_free:
            contended.append(partition)
    return leased


def _fill(
    clients: Clients,
    shape: Shape,
    partition: int,
    room: int,
    now: datetime.datetime,
    lease_s: float,
    tag: str | None,
    leased: list[Lease],
) -> bool:
    """Lease items of a partition, commit by commit; return whether no other worker was faster."""
    while room > 0:
        taken = _lease_of(clients, shape, partition, min(room, MAX_ITEMS), now, lease_s, tag)
        if taken is None:
            return False
        leased += taken
        room -= len(taken)
        if len(taken) < MAX_ITEMS:
            return True
    return True


def _late(contended: Sequence[int]) -> Iterator[int]:
    yield from tuple(contended)  # Made when it is asked for the first time.


def _tag_of_oldest(shape: Shape, now: datetime.datetime) -> str | None:
    futures = [
        ready_items(shape.name, partition, now).get_async() for partition in range(shape.partitions)
    ]
    heads = [head for head in (future.result() for future in futures) if head is not None]
    oldest = min(heads, key=lambda head: time_of(head.ready), default=None)
    return None if oldest is None else oldest.tag


def _lease_of(
    clients: Clients,
    shape: Shape,
    partition: int,
    limit: int,
    now: datetime.datetime,
    lease_s: float,
    tag: str | None,
) -> list[Lease] | None:
    """Lease items of one partition; None: another worker was faster."""
    query = (
        ready_items(shape.name, partition, now)
        if tag is None
        else tagged_items(shape.name, tag, partition, now)
    )
    keys = query.fetch(limit, keys_only=True)
    if not keys:
        return []
    found = [each for each in read_versions(clients.datastore, keys) if each is not None]
    # Read after the query: another worker may have leased one in between.
    found = [each for each in found if each[0].ready is not None and time_of(each[0].ready) <= now]
    if not found:
        return None
    proof, ends = clients.new_id(), now + datetime.timedelta(seconds=lease_s)
    for item, _ in found:
        _hand_out(item, shape, proof, now, ends)
    versions = _commit(clients, found, proof)
    if versions is None:
        return None
    return [
        _leased(item, version, ends)
        for (item, _), version in zip(found, versions, strict=True)
        if item.dead is None
    ]


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
    found = _held(clients, shape, leases)
    for _ in range(MAX_ATTEMPTS):
        for item, _version in found:
            item.lease = proof
            make_ready(item, shape.partitions, to)
        versions = _commit(clients, found, proof) if found else []
        if versions is not None:
            return [_leased(i, at, to) for (i, _), at in zip(found, versions, strict=True)]
        clients.clock.sleep(PAUSE_S)
        found = _held(clients, shape, leases)
    return []


def _held(clients: Clients, shape: Shape, leases: Sequence[Lease]) -> list[Versioned]:
    rows = read_versions(clients.datastore, _keys(shape, leases))
    return [
        row
        for row, lease in zip(rows, leases, strict=True)
        if row is not None and row[1] == lease.version
    ]


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
