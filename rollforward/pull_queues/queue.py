"""A pull queue: items wait until a worker leases them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollforward.datastore.batched import batched
from rollforward.datastore.transactions import check_outside, current_transaction, transact
from rollforward.pull_queues import add as adding
from rollforward.pull_queues import leasing
from rollforward.pull_queues.add import make_ready
from rollforward.pull_queues.entities import (
    PullItem,
    dead_items,
    group_items,
    item_key,
    tag_group,
    time_of,
)
from rollforward.pull_queues.items import DeadLetter, ItemId, Lease, Oldest, check, check_delay
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import age_s, naive_utc
from rollforward.runtime.process.optional_clients import optional_clients

NAME = re.compile(r"[a-z][a-z0-9-]{0,49}")
MAX_LEASE_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class PullQueue:
    """A queue whose workers come for their work.

    Attributes:
        name: Lower-case letters, digits and hyphens; part of each key.
        max_deliveries: How often an item is leased before it becomes a dead letter.
        partitions: Workers that lease at the same time meet rarely when there are more
            partitions than workers; an empty queue costs a query for each. Items stay in theirs:
            do not change it while items wait.
    """

    name: str
    max_deliveries: int = 10
    partitions: int = 8

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name must match {NAME.pattern}, got {self.name!r}")
        if self.max_deliveries < 1 or not 1 <= self.partitions <= 64:
            raise ValueError(
                "max_deliveries must be at least 1 and partitions between 1 and 64, got "
                f"{self.max_deliveries} and {self.partitions}"
            )

    @optional_clients
    def add(
        self,
        clients: Clients,
        payload: str,
        *,
        tag: str | None = None,
        delay_s: float = 0.0,
        idempotency_key: str | None = None,
    ) -> ItemId:
        """Add an item; return its id once it is stored, in one round trip.

        Args:
            payload: Text, at most 100,000 bytes of UTF-8.
            tag: By which workers may lease.
            delay_s: From then on it can be leased.
            idempotency_key: Added again with the same key within 24 hours, it stays one item.

        Raises:
            BadItemError: it cannot be added.
            DifferentItemError: the idempotency key was used for another item.
            RuntimeError: a transaction runs here, which would not undo it.
            google.api_core.exceptions.GoogleAPICallError: what the service said. With an
                idempotency key it is safe to add it again.
        """
        check(payload, tag, idempotency_key)
        check_outside(f"add to {self.name}", "add_in_transaction")
        item = adding.new_item(clients, payload, tag, delay_s)
        return adding.add(clients, self.name, self.partitions, item, idempotency_key)

    @optional_clients
    def add_in_transaction(
        self, clients: Clients, payload: str, *, tag: str | None = None, delay_s: float = 0.0
    ) -> ItemId:
        """Add an item with the writes of the caller's transaction, or not at all.

        Raises:
            BadItemError: it cannot be added.
            rollforward.datastore.transactions.NoTransactionError: there is no transaction.
        """
        return adding.add_in_transaction(clients, self.name, self.partitions, payload, tag, delay_s)

    @optional_clients
    def lease(
        self,
        clients: Clients,
        *,
        limit: int = 1,
        lease_s: float = 60.0,
        tag: str | Oldest | None = None,
    ) -> list[Lease]:
        """Lease up to `limit` items; an empty list if none can be leased.

        Args:
            lease_s: In seconds; an item that is not acked by then can be leased again.
            tag: Only items of this tag; OLDEST: the tag of the oldest item, or, when
                that has none, only items without a tag.

        Raises:
            ValueError: `limit` is not from 1 to 1,000, or `lease_s` not from 1 s to a week.
            RuntimeError: a transaction runs here, which would not undo it.
            google.api_core.exceptions.GoogleAPICallError: what the service said.
        """
        if not 1 <= limit <= 1000:
            raise ValueError(f"limit must be between 1 and 1,000, got {limit}")
        _check_lease_s(lease_s)
        check_outside(f"lease of {self.name}")
        return leasing.lease(clients, self._shape, limit, lease_s, tag)

    @optional_clients
    def renew(
        self, clients: Clients, leases: Sequence[Lease], *, lease_s: float = 60.0
    ) -> list[Lease]:
        """Lease items for longer, from now on; return the new leases of those still held.

        Raises:
            ValueError, RuntimeError: as of `lease`.
        """
        _check_lease_s(lease_s)
        check_outside(f"renew of {self.name}")
        ends = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=lease_s)
        return self._move(clients, leases, ends)

    @optional_clients
    def release(self, clients: Clients, leases: Sequence[Lease], *, delay_s: float = 0.0) -> None:
        """Give items back before their leases end; lost leases are passed over.

        Raises:
            BadItemError: `delay_s` is above ten years.
            RuntimeError: a transaction runs here, which would not undo it.
        """
        check_delay(delay_s)
        check_outside(f"release of {self.name}")
        ready = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=delay_s)
        self._move(clients, leases, ready)

    @optional_clients
    def ack(self, clients: Clients, leases: Sequence[Lease]) -> list[Lease]:
        """Delete items that are done; return the leases that were lost to another worker.

        At most one lease of an item is still valid. Its worker may do what must be done once. The
        same leases may be acked again within an hour.

        Raises:
            RuntimeError: a transaction runs here, which would not undo it.
            google.api_core.exceptions.GoogleAPICallError: the service does not say; acking again
                is safe.
        """
        check_outside(f"ack of {self.name}")
        leases = list(leases)  # Read twice: a generator would have lost none.
        newest = _latest(leases)
        groups = batched(newest, leasing.MAX_ITEMS)
        lost = [lost for group in groups for lost in leasing.ack(clients, self._shape, group)]
        return [lease for lease in leases if lease not in newest or lease in lost]

    def has_items(self, tag: str) -> bool:
        """Return whether there are items of a tag, leased ones included, dead ones not."""
        return group_items(tag_group(self.name, tag)).get(keys_only=True) is not None

    def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """Return items that were delivered as often as they may be, the oldest first."""
        return [_dead_letter(row) for row in dead_items(self.name).fetch(limit)]

    @optional_clients
    def replay(self, clients: Clients, id_: ItemId) -> bool:
        """Let a dead letter be leased again, as if it were new; return whether it was dead."""
        now_utc = naive_utc(clients.clock.now())
        was_dead = False

        def body() -> bool:
            nonlocal was_dead
            row = item_key(self.name, id_).get()
            if row is None or row.dead is None:
                # An attempt before this one took effect, and its reply was lost.
                return was_dead and current_transaction().doubt is not None
            was_dead = True
            row.dead, row.deliveries = None, 0
            make_ready(row, self.partitions, now_utc)
            row.put()
            return True

        return transact(body)

    @optional_clients
    def discard(self, clients: Clients, id_: ItemId) -> bool:
        """Delete a dead letter; return whether there was one."""
        was_dead = False

        def body() -> bool:
            nonlocal was_dead
            row = item_key(self.name, id_).get()
            if row is None or row.dead is None:
                return was_dead and current_transaction().doubt is not None
            was_dead = True
            row.key.delete()
            return True

        return transact(body)

    def _move(
        self, clients: Clients, leases: Sequence[Lease], to: datetime.datetime
    ) -> list[Lease]:
        groups = batched(_latest(leases), leasing.MAX_ITEMS)
        return [held for group in groups for held in leasing.move(clients, self._shape, group, to)]

    @optional_clients
    def oldest_ready_s(self, clients: Clients) -> float:
        """Return for how long the oldest item has been ready to be leased; 0: none is."""
        item = leasing.oldest(self._shape, naive_utc(clients.clock.now()))
        return age_s(clients.clock, time_of(item.ready)) if item is not None else 0.0

    @property
    def _shape(self) -> leasing.Shape:
        return leasing.Shape(self.name, self.partitions, self.max_deliveries)


def _latest(leases: Sequence[Lease]) -> list[Lease]:
    """Return the newest lease of each item, in an order of their own: a commit names it once."""
    by_version = sorted(leases, key=lambda lease: lease.version)
    newest = {lease.id: lease for lease in by_version}
    return [newest[id_] for id_ in sorted(newest)]


def _check_lease_s(lease_s: float) -> None:
    if not 1 <= lease_s <= MAX_LEASE_S:
        raise ValueError(f"lease_s must be between 1 and {MAX_LEASE_S:g}, got {lease_s}")


def _dead_letter(row: PullItem) -> DeadLetter:
    return DeadLetter(ItemId(row.key.id().partition("|")[2]), row.payload, row.tag, row.deliveries)
