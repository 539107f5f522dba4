"""Folding a batch: re-read its items, join them, delete them, in one transaction.

So a second joiner, a retry or a straggler finds only what is left. A batch larger than a
transaction is folded in several. A queue that can say what it would write, and of which versions,
is folded by one guarded commit instead, where that succeeds: it costs half as much.

When the join function fails, the batch is bisected until the poison item stands alone; the rest
goes through. An item that has failed alone five times, while others went through, is parked: it
stands apart, with a dead task, whose replay puts it back. When nothing succeeds, the function may
be at fault and not an item: then each delivery tries a few items only, in another order each time,
and an item is parked after twenty failures; the batch's task is retried, ever more rarely.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import pydantic
from google.cloud import ndb

from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import TRANSIENT, transact
from rollforward.datastore.versions import commit_unchanged, read_versions
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    WorkOutcome,
    WorkPack,
    outcome_key,
    pack_key,
    packs_of_epoch,
)
from rollforward.fork_join.parked import Replay, park_in_transaction
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Reject, Retry, Unavailable

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

MAX_PACKS = 100
MAX_KILOBYTES = 2_000
MAX_LISTED = 1_000
MAX_FAILURES = 5
# So many items fail before one goes through: perhaps it is not the items.
MAX_FAILED_ITEMS = 8
MAX_FAILURES_OF_ALL = 20  # While nothing succeeds.
OUTCOMES_FOR = timedelta(hours=1)

# Not the items' fault.
UNAVAILABLE_ERRORS = (Retry, Unavailable, *TRANSIENT)
# Another version of the code may read what this one cannot; so long, while it is being deployed.
UNREAD_FOR = timedelta(hours=1)


@dataclass(frozen=True)
class Batch:
    """Which batch a join function has before it: of what key, and open since when (UTC, naive)."""

    key: str
    epoch: str
    opened: datetime


# What a join would write, each entity with its version (None: it is new), when it has read nothing
# else that may change; None: it needs a transaction.
Guarded = Callable[[Clients, Batch, Sequence[I]], Sequence[tuple[ndb.Model, int | None]] | None]


@dataclass(frozen=True)
class Folding(Generic[I]):
    """What a fold has to know of its queue."""

    name: str
    max_batch_size: int
    join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None]
    read: Callable[[str], list[I]]  # Of a pack's items.
    replay_task: Task[Replay]
    guarded: Guarded[I] | None = None


@dataclass
class FoldResult:
    """What one joiner did: how many items went through, and what did not."""

    items: int = 0
    unread: int = 0  # Packs.
    failed_items: list[tuple[PackId, Exception]] = field(default_factory=list)

    @property
    def nothing_succeeded(self) -> bool:
        """Return whether many items have failed and none has gone through."""
        return not self.items and len(self.failed_items) >= MAX_FAILED_ITEMS


def fold_epoch(clients: Clients, folding: Folding[Any], epoch: str) -> FoldResult:
    """Fold all that lies under an epoch.

    Raises:
        Retry: there is more, or something that this version of the code cannot read.
        Exception: what the join function raised for an item that is not parked yet.
    """
    keys = packs_of_epoch(folding.name, epoch).fetch(MAX_LISTED + 1, keys_only=True)
    packs = [PackId.parse(key.id()) for key in keys[:MAX_LISTED]]
    clients.random.shuffle(packs)  # What fails must not stand before the rest each time.
    folded = FoldResult()
    for part in _parts(packs, folding.max_batch_size):
        if not folded.nothing_succeeded:
            _fold(clients, folding, part, folded)
    waits = [
        error
        for pack, error in folded.failed_items
        if not _count_failure(clients, folding, pack, error, is_alone=folded.items > 0)
    ]
    if waits:
        raise waits[0]
    if folded.nothing_succeeded:  # All that failed is parked, but the joiner stopped there.
        raise Retry(f"{len(folded.failed_items)} items failed, and the others were not tried")
    if folded.unread:
        raise Retry(f"{folded.unread} packs hold items that this version cannot read")
    if len(keys) > MAX_LISTED:
        raise Retry(f"{folded.items} items are folded, and there are more")
    return folded


def _parts(packs: Sequence[PackId], max_batch_size: int) -> Iterator[list[PackId]]:
    """Cut packs into what a transaction takes."""
    part: list[PackId] = []
    items = kilobytes = 0
    for pack in packs:
        items, kilobytes = items + pack.items, kilobytes + pack.kilobytes
        if part and (items > max_batch_size or kilobytes > MAX_KILOBYTES or len(part) == MAX_PACKS):
            yield part
            part, items, kilobytes = [], pack.items, pack.kilobytes
        part.append(pack)
    if part:
        yield part


def _fold(
    clients: Clients, folding: Folding[Any], part: Sequence[PackId], folded: FoldResult
) -> None:
    if (committed := _fold_guarded(clients, folding, part)) is not None:
        folded.items += committed
        return
    try:
        items, unread = transact(lambda: _fold_here(clients, folding, part))
    except UNAVAILABLE_ERRORS:
        raise
    except Exception as error:
        if len(part) == 1 and part[0].items == 1:
            folded.failed_items.append((part[0], error))
            return
        log.info("%s: %d packs fail together, to be bisected: %s", folding.name, len(part), error)
        singles = transact(lambda: _split(part[0])) if len(part) == 1 else part
        middle = len(singles) // 2
        for half in (singles[:middle], singles[middle:]):
            if half and not folded.nothing_succeeded:
                _fold(clients, folding, half, folded)
        return
    folded.items += items
    folded.unread += unread


def _fold_guarded(clients: Clients, folding: Folding[Any], part: Sequence[PackId]) -> int | None:
    """Fold what still exists of some packs by one commit, if nobody has written what it depends on.

    Returns:
        How many items that were; None: they are left to a transaction, which also finds out
        whether a commit without an answer has taken effect, and which item is at fault.
    """
    if folding.guarded is None:
        return None
    try:
        found = read_versions(clients.datastore, [pack_key(pack.text) for pack in part])
        packs = [row for row in found if row is not None]
        keys = {pack.batch_key for pack, _ in packs}
        if len(keys) != 1 or any(pack.keep_result for pack, _ in packs):
            return None
        items = [item for pack, _ in packs for item in folding.read(pack.items)]
        epoch = part[0].epoch
        batch = Batch(keys.pop(), epoch, EpochId.parse(epoch).opened)
        puts = folding.guarded(clients, batch, items)
        if puts is None:
            return None
        deletes = [(pack.key, version) for pack, version in packs]
        commit_unchanged(clients.datastore, puts=puts, deletes=deletes)
    except Exception as error:  # The join raises it, too, if an item is at fault.
        log.info("%s: a fold needs a transaction: %s", folding.name, error)
        return None
    return len(items)


def _fold_here(clients: Clients, folding: Folding[Any], part: Sequence[PackId]) -> tuple[int, int]:
    """Fold what still exists of some packs, in a transaction.

    Returns:
        How many items that were, and how many packs this version of the code cannot read.
    """
    packs = [pack for pack in ndb.get_multi([pack_key(p.text) for p in part]) if pack is not None]
    epoch = part[0].epoch
    opened = EpochId.parse(epoch).opened
    is_new = naive_utc(clients.clock.now()) - opened < UNREAD_FOR
    by_key: dict[str, list[tuple[WorkPack, list[Any]]]] = {}
    for pack in packs:
        try:
            items = folding.read(pack.items)
        except pydantic.ValidationError:
            if not is_new:
                raise
        else:
            by_key.setdefault(pack.batch_key, []).append((pack, items))
    count = 0
    for key, mine in by_key.items():
        items = [item for _, each in mine for item in each]
        results = folding.join(clients, Batch(key, epoch, opened), items)
        if results is not None:
            _put_outcomes(clients, mine, list(results))
        count += len(items)
        for pack, _ in mine:
            pack.key.delete()
    return count, len(packs) - sum(map(len, by_key.values()))


def _put_outcomes(
    clients: Clients, packs: Sequence[tuple[WorkPack, list[Any]]], results: Sequence[Any]
) -> None:
    size = sum(len(items) for _, items in packs)
    if len(results) != size:
        raise ValueError(f"a join of {size} items returned {len(results)} results")
    first = 0
    for pack, items in packs:
        if pack.keep_result:
            expires_at = naive_utc(clients.clock.now()) + OUTCOMES_FOR + timedelta(hours=1)
            WorkOutcome(
                key=outcome_key(pack.key.id()),
                results=results[first : first + len(items)],
                expires=expiry(PackId.parse(pack.key.id()).epoch, expires_at),
            ).put()
        first += len(items)


def _split(pack: PackId) -> list[PackId]:
    """Give each item of a pack a pack of its own, in a transaction; the keys tell which it was."""
    stored = pack_key(pack.text).get()
    singles = [pack.single(i) for i in range(pack.items)]
    if stored is None:
        return singles  # Split or folded before.
    for single, item in zip(singles, json.loads(stored.items), strict=True):
        WorkPack(
            key=pack_key(single.text),
            batch_key=stored.batch_key,
            items=json.dumps([item]),
            keep_result=stored.keep_result,
            tag=stored.tag,
        ).put()
    stored.key.delete()
    return singles


def _count_failure(
    clients: Clients, folding: Folding[Any], pack: PackId, error: Exception, *, is_alone: bool
) -> bool:
    """Count a failure of an item that stood alone; return whether it is out of the way.

    Args:
        is_alone: Others of its batch went through, so it is the item that is at fault.
    """
    reason = "".join(traceback.format_exception(error))
    dead_id = clients.new_id()

    def body() -> bool:
        stored = pack_key(pack.text).get()
        if stored is None:
            return True
        stored.failures += 1
        stored.fails_alone = stored.fails_alone or is_alone
        limit = MAX_FAILURES if stored.fails_alone else MAX_FAILURES_OF_ALL
        if stored.failures < limit and not isinstance(error, Reject):
            stored.put()
            return False
        park_in_transaction(clients, folding.replay_task, stored, dead_id=dead_id, reason=reason)
        return True

    return transact(body)
