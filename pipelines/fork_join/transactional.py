"""Inserts that are part of a transaction: the work is committed with the data, or not at all.

The epoch is entered by the first try and left when the transaction is over, so every try writes
the same packs: their keys are chosen once, and tell what is in them. A try that decides otherwise
writes other packs, and takes none away from the try before, which may be committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from models.fork_join import PackId, WorkPack, pack_key
from models.transactions import Transaction, current_transaction
from pipelines.fork_join.epochs import Admission
from pipelines.fork_join.insert import MAX_GROUP_BYTES, BadItemError, Insertion
from pipelines.runtime.clients import Clients

if TYPE_CHECKING:
    from pipelines.fork_join.queue import ForkJoin


class TransactionalInserts:
    """The stays in epochs of one transaction, through all of its tries."""

    def __init__(self, clients: Clients, queue: ForkJoin[Any], transaction: Transaction) -> None:
        self._clients = clients
        self._queue = queue
        self._transaction = transaction
        self._entries: dict[str, Admission] = {}  # By key, as the packs.
        self._packs: dict[str, PackId] = {}
        self._puts = 0  # Of this try: two equal items are two.

    def put(self, insertions: Sequence[Insertion], tag: str | None) -> str:
        """Write a pack of items of one key in the transaction; return its key."""
        key = insertions[0].key
        items = f"[{','.join(insertion.item for insertion in insertions)}]"
        size = len(items.encode())
        if len(insertions) > self._queue.max_batch_size:
            raise BadItemError(
                f"one insert in a transaction has at most {self._queue.max_batch_size} items"
            )
        if size > MAX_GROUP_BYTES:
            raise BadItemError(f"{size} bytes are too many for one insert in a transaction")
        entry = self._entries.get(key)
        if entry is None:
            slot = self._queue.slot(self._clients, key)
            entry = self._queue.epochs(self._clients).enter(self._clients, slot, len(insertions))
            self._entries[key] = entry
        digest = hashlib.sha256(f"{key}\0{tag}\0{items}".encode()).hexdigest()[:16]
        id_ = f"{self._transaction.id[:16]}-{self._puts}-{digest}"
        self._puts += 1
        kilobytes = size // 1024
        pack = PackId(self._queue.name, entry.epoch, len(insertions), kilobytes, id_)
        self._packs[key] = pack
        WorkPack(
            key=pack_key(pack.text),
            batch_key=key,
            items=items,
            tag=tag,
        ).put()
        return pack.text

    def _stays(self) -> list[tuple[Admission, PackId]]:
        return [(entry, self._packs[key]) for key, entry in self._entries.items()]

    def on_retry(self, cause: Exception) -> None:
        """Stay: the next try writes the same."""
        self._puts = 0

    def on_commit(self) -> None:
        self._queue.start(self._clients, list(self._entries.values()))
        self._queue.leave(self._clients, self._stays())

    def on_give_up(self) -> None:
        """Leave all the same: a try may be committed, and others may have followed inside."""
        self.on_commit()
        if self._transaction.doubt is not None:
            self._queue.look_again(self._clients, self._stays())


def current_inserts(clients: Clients, queue: ForkJoin[Any]) -> TransactionalInserts:
    """Return the stays of the transaction that this code runs in.

    Raises:
        NoTransactionError: it runs in none.
    """
    transaction = current_transaction()
    return transaction.hook(
        f"fork-join:{queue.name}", lambda: TransactionalInserts(clients, queue, transaction)
    )
