"""Inserts that are part of a transaction: the work is committed with the data, or not at all.

The epoch is entered by the first try and left when the transaction is over, so every try writes
the same packs: their keys are chosen once, and tell what is in them. A try that decides otherwise
writes other packs, and takes none away from the try before, which may be committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rollforward.datastore.transactions import Transaction, current_transaction
from rollforward.fork_join.entities import PackId, WorkPack, pack_key
from rollforward.fork_join.epochs import Admission
from rollforward.fork_join.insert import MAX_GROUP_BYTES
from rollforward.fork_join.items import Insertion
from rollforward.fork_join.joiners import Joiners
from rollforward.runtime.clients import Clients
from rollforward.runtime.errors import BadItemError

# A pack that is bisected is a row for each item, in a commit that takes fewer than 500 writes.
MAX_PACK_ITEMS = 450


class TransactionalInserts:
    """The stays in epochs of one transaction, through all of its tries."""

    def __init__(self, clients: Clients, joiners: Joiners, transaction: Transaction) -> None:
        self._clients = clients
        self._joiners = joiners
        self._settings = joiners.settings
        self._transaction = transaction
        self._admissions: dict[str, Admission] = {}  # By key, as the packs.
        self._packs: dict[str, PackId] = {}
        self._puts = 0  # Of this try: two equal items are two.

    def put(self, insertions: Sequence[Insertion], tag: str | None) -> str:
        """Write a pack of items of one key in the transaction; return its key."""
        key = insertions[0].key
        items = f"[{','.join(insertion.item for insertion in insertions)}]"
        size = len(items.encode())
        limit = min(self._settings.max_batch_size, MAX_PACK_ITEMS)
        if len(insertions) > limit:
            raise BadItemError(f"one insert in a transaction has at most {limit} items")
        if size > MAX_GROUP_BYTES:
            raise BadItemError(f"{size} bytes are too many for one insert in a transaction")
        admission = self._admissions.get(key)
        if admission is None:
            admission = self._joiners.enter(self._clients, key, len(insertions))
            self._admissions[key] = admission
        digest = hashlib.sha256(f"{key}\0{tag}\0{items}".encode()).hexdigest()[:16]
        id_ = f"{self._transaction.id[:16]}-{self._puts}-{digest}"
        self._puts += 1
        kilobytes = size // 1024
        pack = PackId(self._settings.name, admission.epoch, len(insertions), kilobytes, id_)
        self._packs[key] = pack
        WorkPack(
            key=pack_key(pack.text),
            batch_key=key,
            items=items,
            tag=tag,
        ).put()
        return pack.text

    def _stays(self) -> list[tuple[Admission, PackId]]:
        return [(admission, self._packs[key]) for key, admission in self._admissions.items()]

    def on_retry(self, cause: Exception) -> None:
        """Stay: the next try writes the same."""
        self._puts = 0

    def on_commit(self) -> None:
        self._joiners.start(self._clients, list(self._admissions.values()))
        self._joiners.leave(self._clients, self._stays())

    def on_give_up(self) -> None:
        """Leave all the same: a try may be committed, and others may have followed inside."""
        self.on_commit()
        if self._transaction.doubt is not None:
            self._joiners.look_again(self._clients, self._stays())


def current_inserts(clients: Clients, joiners: Joiners) -> TransactionalInserts:
    """Return the stays of the transaction that this code runs in.

    Raises:
        NoTransactionError: it runs in none.
    """
    transaction = current_transaction()
    return transaction.hook(
        f"fork-join:{joiners.settings.name}",
        lambda: TransactionalInserts(clients, joiners, transaction),
    )
