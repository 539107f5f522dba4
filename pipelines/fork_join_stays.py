"""Inserts that are part of a transaction: the work is committed with the data, or not at all.

The epoch is entered by the first try and left when the transaction is over, so every try writes
the same packs: their keys are chosen once, and tell what is in them. A try that decides otherwise
writes other packs, and takes none away from the try before, which may be committed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from models.fork_join import PackId, WorkPack, pack_key
from models.transactions import Transaction, current_transaction
from pipelines.clients import Clients
from pipelines.epochs import Entry, Slot
from pipelines.fork_join_inserts import Insertion

if TYPE_CHECKING:
    from pipelines.fork_join import ForkJoin


class Stays:
    """The stays in epochs of one transaction, through all of its tries."""

    def __init__(self, clients: Clients, queue: ForkJoin[Any], transaction: Transaction) -> None:
        self._clients = clients
        self._queue = queue
        self._transaction = transaction
        self._entries: dict[Slot, Entry] = {}
        self._packs: dict[Slot, PackId] = {}

    def put(self, insertion: Insertion, topic: str | None) -> str:
        """Write a pack of one item in the transaction; return its key."""
        slot = Slot(self._queue.name, insertion.key, insertion.shard)
        entry = self._entries.get(slot)
        if entry is None:
            entry = self._queue.epochs(self._clients).enter(self._clients, slot, 1)
            self._entries[slot] = entry
        digest = hashlib.sha256(f"{insertion.key}\0{insertion.item}".encode()).hexdigest()[:16]
        id_ = f"{self._transaction.id[:16]}-{digest}"
        pack = PackId(self._queue.name, entry.epoch, 1, insertion.bytes // 1024, id_)
        self._packs[slot] = pack
        WorkPack(
            key=pack_key(pack.text),
            key_=insertion.key,
            items=f"[{insertion.item}]",
            topic=topic,
        ).put()
        return pack.text

    def retried(self, cause: Exception) -> None:
        """Stay: the next try writes the same."""

    def committed(self) -> None:
        for slot, entry in self._entries.items():
            self._queue.start(self._clients, entry)
            self._queue.leave(self._clients, entry, self._packs[slot])

    def given_up(self) -> None:
        """Leave all the same: a try may be committed, and others may have followed inside."""
        self.committed()


def stays_here(clients: Clients, queue: ForkJoin[Any]) -> Stays:
    """Return the stays of the transaction that this code runs in.

    Raises:
        NoTransactionError: it runs in none.
    """
    transaction = current_transaction()
    return transaction.listener(
        f"fork-join:{queue.name}", lambda: Stays(clients, queue, transaction)
    )
