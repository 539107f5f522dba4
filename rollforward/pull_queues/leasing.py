"""Leases: taken, renewed, acked and released, each by one compare-and-set for all items.

A lease is a commit that moves its items' time to the lease's end, under the versions at which they
were read. So of two workers that lease the same item one is refused, with all that it asked for; it
continues in another partition. An ack deletes the items at the versions that their leases left: a
worker whose item was leased to another since is refused. It leaves a receipt, which tells an ack
whose reply was lost from one that another worker made.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import OUTCOME_UNKNOWN, RETRIED
from rollforward.datastore.versions import CHANGED, commit_if_current, read_versions
from rollforward.pull_queues.add import make_ready
from rollforward.pull_queues.entities import (
    PullItem,
    PullReceipt,
    ack_key,
    dead_at,
    item_key,
    items_with_tag,
    ready_items,
    tag_group,
    time_of,
)
from rollforward.pull_queues.items import ItemId, Lease, Oldest
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

# Items of one commit: of the largest payloads these are 4 MB, and a request has at most 10 MiB.
MAX_ITEMS = 40
MAX_ATTEMPTS = 3
PAUSE_S = 0.03
# Of so many tags the oldest items may be dead letters, or leased by others at this moment.
MAX_TAGS = 100
# For so long an ack that is repeated is known.
ACKS_FOR = datetime.timedelta(hours=1)

Versioned = tuple[PullItem, int]


@dataclass(frozen=True)
class Shape:
    """Name, partitions and limits of a queue."""

    name: str
    partitions: int
    max_deliveries: int


@dataclass(frozen=True)
class _Call:
    """One call of a worker that leases: of which group of tags, None: of any; from when to when."""

    clients: Clients
    shape: Shape
    group: str | None
    now_utc: datetime.datetime
    ends: datetime.datetime

    def fill(self, leased: list[Lease], limit: int, partitions: Sequence[int]) -> list[int]:
        """Lease items of some partitions until there are enough, commit by commit.

        Returns:
            The partitions where another worker was faster.
        """
        contended = []
        for partition in partitions:
            size, is_over = min(limit - len(leased), MAX_ITEMS), False
            while not is_over and len(leased) < limit:
                items = self._take(partition, limit - len(leased), size)
                if items is None:
                    contended.append(partition)
                    break
                leases, is_over = items
                leased += leases
                # If the head of the partition was dead letters, there may be many.
                size = min(limit - len(leased), MAX_ITEMS) if leases else MAX_ITEMS
        return contended

    def _take(self, partition: int, limit: int, size: int) -> tuple[list[Lease], bool] | None:
        """Lease items among the first of one partition, in one commit.

        Returns:
            The leases, and whether no items are behind them; None: another worker was faster.
        """
        keys = self._query(partition).fetch(size, keys_only=True)
        rows = self._read(keys, limit)
        if not rows:
            return None if keys else ([], True)
        proof = self.clients.new_id()
        for item, _ in rows:
            _claim_item(item, self.shape, proof, self.now_utc, self.ends)
        versions = _commit(self.clients, rows, proof)
        if versions is None:
            return None
        pairs = zip(rows, versions, strict=True)
        leases = [_leased(i, at, self.ends) for (i, _), at in pairs if i.dead is None]
        return leases, len(keys) < size

    def _read(self, keys: Sequence[Any], limit: int) -> list[Versioned]:
        """Read items that can be leased, up to a limit, and all that become dead letters.

        They are read after the query: another worker may have leased one in between.
        """
        rows = read_versions(self.clients.datastore, keys) if keys else []
        ready = [row for row in rows if row is not None and self._is_ready(row[0])]
        used_up = [row for row in ready if row[0].deliveries >= self.shape.max_deliveries]
        return used_up + [row for row in ready if row not in used_up][:limit]

    def _query(self, partition: int) -> Any:
        if self.group is None:
            return ready_items(self.shape.name, partition, self.now_utc)
        return items_with_tag(self.group, partition, self.now_utc)

    def _is_ready(self, item: PullItem) -> bool:
        return item.ready is not None and time_of(item.ready) <= self.now_utc


def lease(
    clients: Clients, shape: Shape, limit: int, lease_s: float, tag: str | Oldest | None
) -> list[Lease]:
    """Lease up to `limit` items, the oldest of their partition first.

    Empty partitions are passed over; one where another worker leases at this moment is tried once
    more, behind the others.
    """
    now_utc = naive_utc(clients.clock.now())
    ends = now_utc + datetime.timedelta(seconds=lease_s)
    if isinstance(tag, Oldest):
        return _lease_oldest(clients, shape, limit, now_utc, ends)
    group = None if tag is None else tag_group(shape.name, tag)
    return _lease(_Call(clients, shape, group, now_utc, ends), limit)


def _lease_oldest(
    clients: Clients, shape: Shape, limit: int, now_utc: datetime.datetime, ends: datetime.datetime
) -> list[Lease]:
    """Lease items of the oldest one's tag; if all of them are dead letters now, of the next tag."""
    for _ in range(MAX_TAGS):
        head = oldest(shape, now_utc)
        if head is None:
            break
        group = tag_group(shape.name, head.tag)
        if leased := _lease(_Call(clients, shape, group, now_utc, ends), limit):
            return leased
    return []


def _lease(call: _Call, limit: int) -> list[Lease]:
    partitions = list(range(call.shape.partitions))
    random.Random(call.clients.new_id()).shuffle(partitions)
    leased: list[Lease] = []
    try:
        contended = call.fill(leased, limit, partitions)
        call.fill(leased, limit, contended)
    except rpc_errors.GoogleAPIError:
        if not leased:
            raise
    return leased  # What is leased already is its caller's, who may know of nothing else.


def oldest(shape: Shape, now_utc: datetime.datetime) -> PullItem | None:
    """Return the item that can be leased and waits longest."""
    futures = [
        ready_items(shape.name, partition, now_utc).get_async()
        for partition in range(shape.partitions)
    ]
    heads = [head for head in (future.result() for future in futures) if head is not None]
    return min(heads, key=lambda head: time_of(head.ready), default=None)


def _claim_item(
    item: PullItem, shape: Shape, proof: str, now_utc: datetime.datetime, ends: datetime.datetime
) -> None:
    """Lease an item, or let it be a dead letter if it was leased as often as it may be."""
    item.lease = proof
    if item.deliveries >= shape.max_deliveries:
        item.ready = item.tagged = None
        item.dead = dead_at(shape.name, now_utc)
        return
    item.deliveries += 1
    make_ready(item, shape.partitions, ends)


def _commit(clients: Clients, rows: Sequence[Versioned], proof: str) -> list[int] | None:
    """Write items at their versions; return the new ones. None: another worker was faster."""
    try:
        return commit_if_current(clients.datastore, puts=rows)
    except OUTCOME_UNKNOWN:
        stored = read_versions(clients.datastore, [item.key for item, _ in rows])
        if any(row is None or row[0].lease != proof for row in stored):
            return None  # Not written; or written, and another worker has leased one since.
        return [row[1] for row in stored if row is not None]
    except RETRIED + CHANGED:
        return None


def _leased(item: PullItem, version: int, ends: datetime.datetime) -> Lease:
    id_ = ItemId(item.key.id().partition("|")[2])
    return Lease(id_, item.payload, item.tag, item.deliveries, ends, version)


def move(
    clients: Clients, shape: Shape, leases: Sequence[Lease], to: datetime.datetime
) -> list[Lease]:
    """Move the end of leases; return the leases that are still held, with their new fences."""
    proof = clients.new_id()
    for _ in range(MAX_ATTEMPTS):
        rows = _rows(clients, shape, leases)
        held = [row for row, lease in zip(rows, leases, strict=True) if _has_version(row, lease)]
        movable = [row for row in held if row is not None]
        if not movable:
            break  # All are lost, or a commit without a reply has landed since.
        for item, _version in movable:
            item.lease = proof
            make_ready(item, shape.partitions, to)
        versions = _commit(clients, movable, proof)
        if versions is not None:
            return [_leased(i, at, to) for (i, _), at in zip(movable, versions, strict=True)]
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
    """Delete leased items, each named once; return the leases that were lost.

    The commit leaves a receipt of the items that it deletes. An item that is gone was acked by
    these leases if the receipt names it, and otherwise by another worker.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service does not say; acking again is
            safe.
    """
    open_, failures = list(leases), 0
    receipt_key = ack_key(shape.name, [(lease.id, lease.version) for lease in leases])
    while open_:
        try:
            _delete(clients, shape, open_, receipt_key)
        except (*CHANGED, rpc_errors.AlreadyExists):
            pass
        except RETRIED:
            failures += 1
            if failures == MAX_ATTEMPTS:
                raise
            clients.clock.sleep(PAUSE_S)
        else:
            break
        rows = _rows(clients, shape, open_)
        pairs = zip(rows, open_, strict=True)
        open_ = [lease for row, lease in pairs if _has_version(row, lease)]
        receipt = receipt_key.get()  # Read last: what the commit deleted is in it.
        if receipt is not None:
            acked = json.loads(receipt.item)
            return [lease for lease in leases if lease.id not in acked]
    return [lease for lease in leases if lease not in open_]


def _delete(clients: Clients, shape: Shape, leases: Sequence[Lease], receipt_key: Any) -> None:
    receipt = PullReceipt(
        key=receipt_key,
        item=json.dumps([lease.id for lease in leases]),
        digest="ack",
        expires=naive_utc(clients.clock.now()) + ACKS_FOR,
    )
    versions = [lease.version for lease in leases]
    deletes = list(zip(_keys(shape, leases), versions, strict=True))
    commit_if_current(clients.datastore, puts=[(receipt, None)], deletes=deletes)
