"""Inserts that are part of a transaction: the work is committed with the data, or not at all.

The first attempt enters the epoch, and the end of the transaction leaves it. So every attempt
writes the same packs: their keys contain a digest of the items, and how many equal packs came
before. An attempt that decides otherwise writes other packs, and deletes none of an earlier
attempt, which may be committed.

A joiner waits a second for its writers. If it takes longer to learn that a reply was lost, packs of
that attempt may have been folded and deleted, and another put would bring them back. So an attempt
in doubt looks for them first, and fails if nobody can say any more whether they were there.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollforward.datastore import current
from rollforward.datastore.transactions import OUTCOME_UNKNOWN, Transaction, current_transaction
from rollforward.fork_join.batching.epochs import Admission
from rollforward.fork_join.entities import PackId, WorkPack, joined_traceparents, pack_key
from rollforward.fork_join.insert import MAX_GROUP_BYTES
from rollforward.fork_join.items import MAX_PACK_ITEMS, Insertion
from rollforward.fork_join.joiners import Joiners
from rollforward.runtime.clients import Clients
from rollforward.runtime.errors import BadItemError


class TransactionalInserts:
    """The stays in epochs of one transaction, through all of its attempts."""

    def __init__(self, clients: Clients, joiners: Joiners, transaction: Transaction) -> None:
        self._clients = clients
        self._joiners = joiners
        self._settings = joiners.settings
        self._transaction = transaction
        self._admissions: dict[str, Admission] = {}  # By key, as the packs.
        self._packs: dict[str, PackId] = {}
        self._written: set[str] = set()  # By this attempt.
        # By attempts that may be committed, and why that is not known.
        self._doubtful: dict[str, Exception] = {}
        self._committed: set[str] = set()

    def put(self, insertions: Sequence[Insertion], tag: str | None) -> str:
        """Write a pack of items of one key in the transaction; return its key."""
        if not insertions:
            raise BadItemError("one insert must have at least one item")
        key = insertions[0].key
        items = f"[{','.join(insertion.item for insertion in insertions)}]"
        size = len(items.encode())
        limit = min(self._settings.max_batch_size, MAX_PACK_ITEMS)
        if len(insertions) > limit:
            number = len(insertions)
            raise BadItemError(f"one insert must have at most {limit} items, got {number}")
        if size > MAX_GROUP_BYTES:
            raise BadItemError(f"one insert must have at most {MAX_GROUP_BYTES} bytes, got {size}")
        admission = self._admissions.get(key)
        if admission is None:
            admission = self._joiners.enter(self._clients, key, len(insertions))
            self._admissions[key] = admission
        id_ = self._transaction.id_of("fork-join", self._settings.name, key, tag, items)
        kilobytes = size // 1024
        pack = PackId(self._settings.name, admission.epoch, len(insertions), kilobytes, id_)
        self._packs[key] = pack
        entity = WorkPack(
            key=pack_key(pack.text),
            batch_key=key,
            items=items,
            tag=tag,
            traceparents=joined_traceparents(i.traceparent for i in insertions),
        )
        if not self._is_committed(admission, pack.text):
            current.put(entity)
        self._written.add(pack.text)
        return pack.text

    def _is_committed(self, admission: Admission, pack: str) -> bool:
        """Return whether an earlier attempt has committed a pack, although its reply was lost.

        It is read in this transaction: a fold that deletes it before the commit wins the race.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: nobody knows; as after the lost reply.
        """
        if pack not in self._doubtful or pack in self._committed:
            return pack in self._committed
        if current.get_multi([pack_key(pack)])[0] is not None:
            self._committed.add(pack)
            return True
        if self._joiners.epochs(self._clients).can_be_joined(self._clients, admission):
            raise self._doubtful[pack]
        return False

    def _stays(self) -> list[tuple[Admission, PackId]]:
        return [(admission, self._packs[key]) for key, admission in self._admissions.items()]

    def on_retry(self, cause: Exception) -> None:
        """Stay: the next attempt writes the same packs."""
        if isinstance(cause, OUTCOME_UNKNOWN):
            self._doubtful |= dict.fromkeys(self._written, cause)
        self._written.clear()

    def on_commit(self) -> None:
        self._joiners.start(self._clients, list(self._admissions.values()))
        self._joiners.leave(self._clients, self._stays())

    def on_outcome_unknown(self) -> None:
        """Leave as after a commit, since an attempt may be committed."""
        self.on_commit()
        if self._transaction.doubt is not None:
            self._joiners.fold_later(self._clients, self._stays())


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
