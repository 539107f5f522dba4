"""Folding a batch: re-read its items, join them, delete them, in one transaction.

So a second joiner, a retry or a straggler finds only the remaining items. A batch larger than a
transaction is folded in several. If a queue can name its writes and their base versions, a guarded
commit is tried first, which costs half as much.

When the join function fails, the batch is bisected until the poison item is alone; the rest is
folded. An item that has failed alone five times, while others succeeded, is parked: it is moved
away, with a dead task, whose replay puts it back. When nothing succeeds, the function may be at
fault and not an item. Then each delivery tries only a few items, in a new order, and an item is
parked after twenty failures. The batch's task is retried with growing delays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import pydantic
from google.cloud import ndb

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import TRANSIENT, transact
from rollforward.datastore.versions import commit_if_current
from rollforward.fork_join.batching.packs import (
    StoredPack,
    list_packs,
    read_pack_versions,
    read_packs,
)
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    WorkOutcome,
    WorkPack,
    outcome_key,
    pack_key,
)
from rollforward.fork_join.parked import Replay, park_in_transaction
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.texts import error_with_stack
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Reject, Retry, Unavailable
from rollforward.tasks.waits import version_pause_s
from rollforward.tracing import start_span

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

# Packs in one transaction, unless the queue says otherwise.
MAX_PACKS = 160
# Of the 500 writes of a commit: a deletion for each pack, and an outcome for one whose caller waits
# for a result. The rest is for the join function.
MAX_PACK_WRITES = 320
MAX_KILOBYTES = 2_000
MAX_LISTED = 1_000
MAX_FAILURES = 5
# After this many failed items, and none that succeeded, the items may not be at fault.
MAX_FAILED_ITEMS = 8
MAX_FAILURES_OF_ALL = 20  # While nothing succeeds.
OUTCOMES_FOR = timedelta(hours=1)

# Not the items' fault.
UNAVAILABLE_ERRORS = (Retry, Unavailable, *TRANSIENT)
# For this long a new batch may hold items that only another, just deployed version can read.
UNREAD_FOR = timedelta(hours=1)


@dataclass(frozen=True)
class Batch:
    """The batch of a join function: its key, its epoch, and its opening time (UTC, naive)."""

    key: str
    epoch: str
    opened: datetime


# Returns the writes of a join, each entity with its version (None: it is new), if the join depends
# on nothing else that may change; None: it needs a transaction.
Guarded = Callable[[Clients, Batch, Sequence[I]], Sequence[tuple[ndb.Model, int | None]] | None]


@dataclass(frozen=True)
class Folding(Generic[I]):
    """The parts of a queue that a fold uses."""

    name: str
    max_batch_size: int
    join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None]
    read: Callable[[str], list[I]]  # Of a pack's items.
    replay_task: Task[Replay]
    guarded: Guarded[I] | None = None
    max_packs: int = MAX_PACKS
    show_progress: Callable[[], None] = lambda: None  # Called before each transaction.


@dataclass
class FoldResult:
    """The results of one joiner: the number of folded items, and the failures."""

    items: int = 0
    unread: int = 0  # Packs.
    failed_items: list[tuple[PackId, BaseException]] = field(default_factory=list)

    @property
    def all_failed(self) -> bool:
        """Return whether many items have failed and none has succeeded."""
        return not self.items and len(self.failed_items) >= MAX_FAILED_ITEMS


def fold_epoch(clients: Clients, folding: Folding[Any], epoch: str) -> FoldResult:
    """Fold all packs of an epoch.

    Raises:
        Retry: there is more, or a pack that this version of the code cannot read, which waits for
            another one.
        Exception: the join function's error for an item that is not parked yet.
    """
    listed = list_packs(clients, folding.name, epoch, MAX_LISTED + 1)
    packs = listed[:MAX_LISTED]
    clients.random.shuffle(packs)  # A failing item must not come before the rest each time.
    folded = FoldResult()
    for part in _parts(packs, folding.max_batch_size, folding.max_packs):
        if not folded.all_failed:
            _fold(clients, folding, part, folded)
    errors = [
        error
        for pack, error in folded.failed_items
        if not _count_failure(clients, folding, pack, error, is_alone=folded.items > 0)
    ]
    if errors:
        raise errors[0]
    if folded.all_failed:  # All failed items are parked, but the joiner stopped there.
        raise Retry(f"{len(folded.failed_items)} items failed, and the others were not tried")
    if folded.unread:
        waited_s = (naive_utc(clients.clock.now()) - EpochId.parse(epoch).opened).total_seconds()
        raise Retry(
            f"{folded.unread} packs hold items that this version cannot read",
            after_s=version_pause_s(waited_s),
        )
    if len(listed) > MAX_LISTED:
        raise Retry(f"{folded.items} items are folded, and there are more")
    return folded


def _parts(packs: Sequence[PackId], max_batch_size: int, max_packs: int) -> Iterator[list[PackId]]:
    """Cut packs into parts that fit into a transaction."""
    part: list[PackId] = []
    items = kilobytes = 0
    for pack in packs:
        items, kilobytes = items + pack.items, kilobytes + pack.kilobytes
        if part and (items > max_batch_size or kilobytes > MAX_KILOBYTES or len(part) == max_packs):
            yield part
            part, items, kilobytes = [], pack.items, pack.kilobytes
        part.append(pack)
    if part:
        yield part


def _fold(
    clients: Clients, folding: Folding[Any], part: Sequence[PackId], folded: FoldResult
) -> None:
    folding.show_progress()
    if (committed := _fold_if_current(clients, folding, part)) is not None:
        folded.items += committed
        return
    try:
        done = transact(lambda: _fold_here(clients, folding, part))
    except UNAVAILABLE_ERRORS:
        raise
    except APP_ERRORS as error:
        if len(part) == 1 and part[0].items == 1:
            folded.failed_items.append((part[0], error))
            return
        log.info("%s: %d packs fail together, to be bisected: %s", folding.name, len(part), error)
        singles = transact(lambda: _split(part[0])) if len(part) == 1 else part
        middle = len(singles) // 2
        for half in (singles[:middle], singles[middle:]):
            if half and not folded.all_failed:
                _fold(clients, folding, half, folded)
        return
    folded.items += done.items
    folded.unread += done.unread
    if done.later:
        _fold(clients, folding, done.later, folded)


def _fold_if_current(clients: Clients, folding: Folding[Any], part: Sequence[PackId]) -> int | None:
    """Fold packs by one guarded commit, if the queue has one and nothing has changed since.

    Returns:
        The number of folded items; None: a transaction must fold them. It also finds out whether a
        commit without an answer has taken effect, and which item is at fault.
    """
    if folding.guarded is None:
        return None
    try:
        packs = read_pack_versions(clients, part)
        keys = {pack.batch_key for pack, _ in packs}
        if len(keys) != 1 or any(pack.keep_result for pack, _ in packs):
            return None
        items = [item for pack, _ in packs for item in folding.read(pack.items)]
        epoch = part[0].epoch
        batch = Batch(keys.pop(), epoch, EpochId.parse(epoch).opened)
        with _span(folding, [pack for pack, _ in packs], len(items)):
            puts = folding.guarded(clients, batch, items)
        if puts is None:
            return None
        deletes = [(pack.key, version) for pack, version in packs]
        commit_if_current(clients.datastore, puts=puts, deletes=deletes)
    except APP_ERRORS as error:  # One of an item is raised again by the join.
        log.info("%s: a fold needs a transaction: %s", folding.name, error)
        return None
    return len(items)


@dataclass(frozen=True)
class _Folded:
    """The results of one transaction.

    Attributes:
        unread: Packs that this version of the code cannot read.
        later: Packs for which the transaction had no room.
    """

    items: int
    unread: int
    later: Sequence[PackId]


def _fold_here(clients: Clients, folding: Folding[Any], part: Sequence[PackId]) -> _Folded:
    """Fold the packs that still exist, in a transaction, as many as it has room for."""
    stored = read_packs(part)
    room = _capacity_for(stored)
    packs = [pack for pack in stored[:room] if pack is not None]
    epoch = part[0].epoch
    opened = EpochId.parse(epoch).opened
    is_new = naive_utc(clients.clock.now()) - opened < UNREAD_FOR
    by_key: dict[str, list[tuple[StoredPack, list[Any]]]] = {}
    for pack in packs:
        try:
            items = folding.read(pack.items)
        except pydantic.ValidationError:
            if not is_new:
                raise
        else:
            by_key.setdefault(pack.batch_key, []).append((pack, items))
    count = 0
    for key, packs_of_key in by_key.items():
        items = [item for _, part_of_items in packs_of_key for item in part_of_items]
        with _span(folding, [pack for pack, _ in packs_of_key], len(items)):
            results = run_app(folding.join, clients, Batch(key, epoch, opened), items)
        if results is not None:
            _put_results(clients, packs_of_key, list(results))
        count += len(items)
        for pack, _ in packs_of_key:
            pack.delete()
    return _Folded(count, len(packs) - sum(map(len, by_key.values())), part[room:])


def _capacity_for(packs: Sequence[StoredPack | None]) -> int:
    """Return how many of some packs one transaction has room for, at least one."""
    writes = 0
    for position, pack in enumerate(packs):
        if pack is not None:
            writes += 2 if pack.keep_result else 1
        if writes > MAX_PACK_WRITES:
            return max(1, position)
    return len(packs)


def _span(folding: Folding[Any], packs: Sequence[StoredPack], items: int) -> Any:
    """Return a span of a fold, with a link to the trace of each of its items."""
    links = [text for pack in packs for text in pack.traceparents.split()]
    name, counted = f"fold {folding.name}", {"rollforward.items": items}
    return start_span(name, "CONSUMER", attributes=counted, links=links)


def _put_results(
    clients: Clients, packs: Sequence[tuple[StoredPack, list[Any]]], results: Sequence[Any]
) -> None:
    size = sum(len(items) for _, items in packs)
    if len(results) != size:
        raise ValueError(f"a join of {size} items must return {size} results, got {len(results)}")
    position = 0
    for pack, items in packs:
        if pack.keep_result:
            expires_at = naive_utc(clients.clock.now()) + OUTCOMES_FOR + timedelta(hours=1)
            WorkOutcome(
                key=outcome_key(pack.id),
                results=results[position : position + len(items)],
                expires=expiry(PackId.parse(pack.id).epoch, expires_at),
            ).put()
        position += len(items)


def _split(pack: PackId) -> list[PackId]:
    """Give each item of a pack a pack of its own, in a transaction; the keys have its place."""
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
            traceparents=stored.traceparents,
        ).put()
    stored.key.delete()
    return singles


def _count_failure(
    clients: Clients, folding: Folding[Any], pack: PackId, error: BaseException, *, is_alone: bool
) -> bool:
    """Count a failure of a single item; return whether it is parked or gone.

    Args:
        is_alone: Others of its batch succeeded, so this item is at fault.
    """
    reason = error_with_stack(error)
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
