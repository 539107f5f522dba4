"""Inserts into a fork-join queue: many items, one commit.

A commit writes a pack for each key, with all items of the key that came together (in parts, if they
are too many for a transaction of their fold), and a receipt for each idempotency key. The receipt
is inserted, not put: if it exists, the service refuses the whole commit, so repeated requests count
once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.bodies import PlainRow, insert_rows
from rollforward.datastore.expiry import expiry
from rollforward.fork_join.batching.epochs import Admission
from rollforward.fork_join.entities import (
    PackId,
    WorkPack,
    WorkReceipt,
    joined_traceparents,
    pack_key,
)
from rollforward.fork_join.items import Accepted, Insertion
from rollforward.fork_join.joiners import Joiners
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.errors import OutcomeUnknownError
from rollforward.runtime.idempotency import RequestGroup, different_item, unknown_outcome
from rollforward.tracing import caused_by

# Each may need a receipt and a pack of its own, and a commit takes fewer than 500 writes.
MAX_GROUP_ITEMS = 225
MAX_GROUP_BYTES = 900_000
MAX_GROUP_KEYS = 100
# Of what one commit takes, in items or in bytes, whichever is more.
FULL_COMMIT = 1_000_000
MAX_GROUP_WAIT_S = 0.05
MAX_ATTEMPTS = 3
PAUSE_S = 0.03


@dataclass
class _Pack:
    """Items that are stored under one key of Datastore."""

    id: PackId
    insertions: list[Insertion]
    items: str  # As JSON, without the brackets of their list.

    def row(self) -> PlainRow:
        """Return its WorkPack."""
        keep_result = any(insertion.keep_result for insertion in self.insertions) or None
        properties = {
            "batch_key": self.insertions[0].key,
            "items": f"[{self.items}]",
            "tag": self.insertions[0].tag,
            "traceparents": joined_traceparents(i.traceparent for i in self.insertions),
            "keep_result": keep_result,
            "failures": 0,
            "fails_alone": None,
            "dead_task": None,
        }
        return PlainRow(WorkPack, self.id.text, properties)


@dataclass
class _Attempt:
    """One commit: all of it took effect, or nothing."""

    packs: list[_Pack]
    entered: list[tuple[Admission, PackId]]  # Each entered epoch, with a pack in it.
    accepted: dict[int, Accepted]  # Of each insertion, by its place in the group: if committed.
    receipts: list[PlainRow]  # WorkReceipts.

    def rows(self) -> list[PlainRow]:
        """Return the entities that it writes."""
        return [*(pack.row() for pack in self.packs), *self.receipts]

    @property
    def commit_keys(self) -> list[Any]:
        """Return keys; one exists only if this attempt, or an equal one, was committed."""
        return [row.key for row in self.receipts] or [pack_key(p.id.text) for p in self.packs]

    def matches(self, row: Any) -> bool:
        """Return whether a witness is this attempt's."""
        if row is None:
            return False
        first_pack = row.pack.partition("\n")[0] if self.receipts else row.key.id()
        return first_pack in {pack.id.text for pack in self.packs}


class _Group(RequestGroup[Insertion, Accepted]):
    """Insertions that are committed together, and their results.

    An insertion is open until it has a result. A commit takes all open ones, and its end decides
    their results. It is guarded if one of them has an idempotency key: if its receipt exists, the
    service refuses the whole commit.

        the commit        guarded by a receipt                  unguarded
        succeeded         accepted                              accepted
        Aborted           nothing was written: open             nothing was written: open
        AlreadyExists     an earlier commit's receipt, or its   its own pack, by a random key:
                          own: as the receipts say, rest open   accepted
        any other error,
        and its rows are
          there           accepted                              accepted
          not there yet,  in doubt, and open: whichever of      in doubt, and never committed
          or unread       two commits comes first counts        again: OutcomeUnknownError

    A commit in doubt may still take effect. Unless its callers learned that it did, its epoch is
    folded once more, some seconds later.
    """

    def __init__(self, clients: Clients, joiners: Joiners, insertions: Sequence[Insertion]) -> None:
        name = joiners.settings.name
        super().__init__(insertions, [insertion.receipt_key(name) for insertion in insertions])
        self.clients = clients
        self.joiners = joiners
        self.settings = joiners.settings
        self.guarded_in_doubt: list[_Attempt] = []
        self.unguarded_in_doubt: list[_Attempt] = []

    @property
    def traceparent(self) -> str:
        """The trace of the first insertion that has one: its caller runs in another thread."""
        return next((request.traceparent for request in self.requests if request.traceparent), "")

    def attempt(self) -> _Attempt:
        """Enter epochs and make the packs and receipts of one commit of all open insertions."""
        together: dict[str, list[int]] = {}
        for i in self.open():
            together.setdefault(self.requests[i].key, []).append(i)
        packs, entered = list[_Pack](), list[tuple[Admission, PackId]]()
        accepted: dict[int, Accepted] = {}
        for key, members in together.items():
            count = sum(self.requests[i].count for i in members)
            admission = self.joiners.enter(self.clients, key, count)
            for part in batched(self._single(members), self.settings.max_batch_size):
                pack = self._pack(admission, [self.requests[i] for i in part])
                packs.append(pack)
                accepted.update({i: Accepted(pack.id.text, at) for at, i in enumerate(part)})
            for i in members:
                if own := self._packs(admission, self.requests[i]):
                    packs += own
                    accepted[i] = Accepted("\n".join(pack.id.text for pack in own), 0)
            entered.append((admission, packs[-1].id))
        receipts = [
            self._receipt(self.requests[i], where)
            for i, where in accepted.items()
            if self.requests[i].idempotency_key is not None
        ]
        return _Attempt(packs, entered, accepted, receipts)

    def accept(self, attempt: _Attempt) -> None:
        """Accept the insertions of a committed attempt."""
        self.answers.update(attempt.accepted)

    def resolve(self, attempt: _Attempt, error: Exception) -> None:
        """Decide the results of an attempt whose commit raised, by the table above."""
        if isinstance(error, rpc_errors.Aborted):
            return
        if isinstance(error, rpc_errors.AlreadyExists) and attempt.receipts:
            self.guarded_in_doubt.append(attempt)
            self.lookup()
        elif self._is_committed(attempt):
            self.accept(attempt)
        elif attempt.receipts:
            self.guarded_in_doubt.append(attempt)
        else:
            self.unguarded_in_doubt.append(attempt)
            self.fail_all(error)

    def lookup(self) -> None:
        """Decide the results that receipts prove; none if they cannot be read.

        The receipt of an attempt in doubt proves that all of that attempt was committed.
        """
        keys = [key for key, i in self.firsts.items() if i not in self.answers]
        try:
            receipts = ndb.get_multi(keys)
        except rpc_errors.GoogleAPIError:
            return
        for key, receipt in zip(keys, receipts, strict=True):
            doubtful = self.guarded_in_doubt
            attempt = next((a for a in doubtful if a.matches(receipt)), None)
            if attempt is not None:
                self.answers = {**attempt.accepted, **self.answers}
            elif receipt is not None:
                self.find_stored(key, receipt)

    def fail_all(self, error: Exception | None) -> None:
        """Answer all open insertions that their outcome is unknown."""
        self.answers.update(dict.fromkeys(self.open(), unknown_outcome(error)))

    def entered_in_doubt(self) -> list[tuple[Admission, PackId]]:
        """Return the epochs of attempts that may be committed without their callers knowing."""
        unanswered = [
            attempt
            for attempt in self.guarded_in_doubt
            if any(isinstance(self.answers[i], OutcomeUnknownError) for i in attempt.accepted)
        ]
        doubtful = self.unguarded_in_doubt + unanswered
        return [entered for attempt in doubtful for entered in attempt.entered]

    def _is_committed(self, attempt: _Attempt) -> bool:
        """Return whether an attempt's rows exist; False if they cannot be read."""
        try:
            rows = ndb.get_multi(attempt.commit_keys)
        except rpc_errors.GoogleAPIError:
            return False
        return any(attempt.matches(row) for row in rows)

    def duplicate_of(self, i: int, receipt: WorkReceipt) -> Accepted | Exception:
        insertion = self.requests[i]
        if not insertion.is_duplicate_of(receipt.digest):
            return different_item(insertion.idempotency_key)
        return Accepted(receipt.pack, receipt.position, is_duplicate=True)

    def repeated(self, i: int, first: int, answer: Accepted) -> Accepted | Exception:
        insertion = self.requests[i]
        if not insertion.is_duplicate_of(self.requests[first].digest):
            return different_item(insertion.idempotency_key)
        return Accepted(answer.pack, answer.position, is_duplicate=True)

    def _single(self, members: Sequence[int]) -> list[int]:
        return [i for i in members if not self.requests[i].packs]

    def _pack(self, admission: Admission, insertions: list[Insertion]) -> _Pack:
        """Return the pack of insertions of one item each."""
        items = ",".join(insertion.item for insertion in insertions)
        size = sum(insertion.bytes for insertion in insertions)
        return _Pack(self._id(admission, len(insertions), size), insertions, items)

    def _packs(self, admission: Admission, batch: Insertion) -> list[_Pack]:
        """Return the packs of items that are inserted together."""
        return [
            _Pack(self._id(admission, count, len(items.encode())), [batch], items)
            for items, count in batch.packs
        ]

    def _id(self, admission: Admission, items: int, size: int) -> PackId:
        id_ = self.clients.new_id()[:16]
        return PackId(self.settings.name, admission.epoch, items, size // 1024, id_)

    def _receipt(self, insertion: Insertion, where: Accepted) -> PlainRow:
        name = insertion.receipt_key(self.settings.name).id()
        receipts_for = self.settings.receipts_for + timedelta(hours=1)
        expires_at = naive_utc(self.clients.clock.now()) + receipts_for
        properties: dict[str, str | int | None] = {
            "pack": where.pack,
            "position": where.position,
            "digest": insertion.digest,
            "expires": expiry(name, expires_at),
        }
        return PlainRow(WorkReceipt, name, properties)


def groups(insertions: Sequence[Insertion]) -> Iterator[list[Insertion]]:
    """Cut insertions into groups that fit into one commit, with few batches each."""
    group: list[Insertion] = []
    room, keys = MAX_GROUP_BYTES, set[str]()
    for insertion in insertions:
        is_full = len(group) == MAX_GROUP_ITEMS or insertion.bytes > room
        if group and (is_full or len(keys | {insertion.key}) > MAX_GROUP_KEYS):
            yield group
            group, room, keys = [], MAX_GROUP_BYTES, set()
        group.append(insertion)
        room -= insertion.bytes
        keys.add(insertion.key)
    if group:
        yield group


def commit_share(insertions: Sequence[Insertion]) -> int:
    """Return the share of a commit that insertions take, FULL_COMMIT being all of it."""
    size = sum(insertion.bytes for insertion in insertions)
    share = max(len(insertions) / MAX_GROUP_ITEMS, size / MAX_GROUP_BYTES)
    return int(share * FULL_COMMIT)


def insert_calls(
    clients: Clients, joiners: Joiners, calls: Sequence[Sequence[Insertion]]
) -> list[list[Accepted | Exception]]:
    """Commit the insertions of several calls together; return for each call its results."""
    together = [insertion for call in calls for insertion in call]
    answers = [
        answer for group in groups(together) for answer in insert_group(clients, joiners, group)
    ]
    ends = list(itertools.accumulate(len(call) for call in calls))
    return [answers[end - len(call) : end] for call, end in zip(calls, ends, strict=True)]


def insert_group(
    clients: Clients, joiners: Joiners, insertions: Sequence[Insertion]
) -> list[Accepted | Exception]:
    """Commit insertions together; return a result for each."""
    group = _Group(clients, joiners, insertions)
    error: Exception | None = None
    for retry in range(MAX_ATTEMPTS):
        if retry and not isinstance(error, rpc_errors.AlreadyExists):
            clients.clock.sleep(PAUSE_S)
        error = _commit(clients, joiners, group)
        if not group.open():
            break
    if group.guarded_in_doubt:
        group.lookup()
    group.fail_all(error)
    joiners.fold_later(clients, group.entered_in_doubt())
    return group.all_results()


def _commit(clients: Clients, joiners: Joiners, group: _Group) -> Exception | None:
    """Make one commit of the open insertions; return its error."""
    attempt = group.attempt()
    try:
        with caused_by(group.traceparent):
            joiners.start(clients, [admission for admission, _ in attempt.entered])
        insert_rows(clients.datastore, attempt.rows())
    except rpc_errors.GoogleAPIError as error:
        group.resolve(attempt, error)
        return error
    finally:
        joiners.leave(clients, attempt.entered)
    group.accept(attempt)
    return None
