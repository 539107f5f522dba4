"""Fork-join queues: declared, inserted into, asked for results."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_args, get_type_hints

from rollforward.fork_join import epochs
from rollforward.fork_join import sweep as sweeps
from rollforward.fork_join.adaptive import BatchPolicy, BatchStats
from rollforward.fork_join.entities import EpochId, PackId, packs_of_epoch
from rollforward.fork_join.epochs import OpenEpoch, Slot
from rollforward.fork_join.fold import Batch, Folding, FoldResult, Guarded, fold_epoch
from rollforward.fork_join.insert import (
    MAX_GROUP_BYTES,
    MAX_GROUP_ITEMS,
    MAX_GROUP_WAIT_S,
    groups,
    insert_group,
)
from rollforward.fork_join.items import (
    Accepted,
    Insertion,
    ItemCodec,
)
from rollforward.fork_join.joiners import Join, Joiners
from rollforward.fork_join.parked import Replay, unpark
from rollforward.fork_join.settings import MAX_BATCH_SIZE, RECEIPTS_FOR, QueueSettings
from rollforward.fork_join.status import Depth, ItemStatus, depth_of, status_of
from rollforward.fork_join.sweep import STALE_S, Drain, SweepResult
from rollforward.fork_join.transactional import current_inserts
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.errors import BadItemError, OutcomeUnknownError
from rollforward.runtime.group_commit import GroupCommit
from rollforward.tasks.declaration import Task

I = TypeVar("I")  # noqa: E741  An item.

LOOK_AGAIN_S = 0.01
_FORM = """declare a queue in this form, with a dataclass of its items:
    @fork_join("visits", queue="fork-join", period_s=30)
    def count_visits(clients: Clients, batch: Batch, items: Sequence[Visit]) -> None: ..."""


class ForkJoin(Generic[I]):
    """A declared queue: what its items are, and how a batch of them is joined."""

    def __init__(
        self,
        name: str,
        item: type[I],
        join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None],
        *,
        queue: str,
        period_s: float,
        max_batch_size: int = MAX_BATCH_SIZE,
        shards: int = 1,
        target_latency_s: float | None = None,
        receipts_for: datetime.timedelta = RECEIPTS_FOR,
        linger_s: float = 0.0,
        are_last: Callable[[Clients, str, int], bool] | None = None,
        guarded: Guarded[I] | None = None,
    ) -> None:
        """Declare a queue; see `fork_join`.

        Args:
            receipts_for: How long an idempotency key is known at least.

        Raises:
            ValueError: it cannot be so.
        """
        self.settings = QueueSettings(
            name,
            period_s,
            max_batch_size,
            shards,
            target_latency_s,
            receipts_for,
            linger_s,
            are_last,
        )
        self.name = name
        self.join = join
        self.guarded = guarded
        self._codec = ItemCodec(name, item)
        base = f"/tasks/fork-join/{name}"
        self.join_task = Task(f"{base}/join", queue, Join, self._join)
        self.drain_task = Task(f"{base}/drain", queue, Drain, self._drain)
        self.replay_task = Task(f"{base}/replay", queue, Replay, self._replay)
        self._joiners = Joiners(self.settings, self.join_task)

    if not TYPE_CHECKING:  # A type checker says of itself that a queue cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.name} is a fork-join queue, which calls its function with a batch: use "
                ".insert(clients, key, item)"
            )

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """What has to be mounted."""
        return self.join_task, self.drain_task, self.replay_task

    # Insert

    def insert(
        self,
        clients: Clients,
        key: str,
        item: I,
        *,
        idempotency_key: str | None = None,
        keep_result: bool = False,
    ) -> Accepted:
        """Insert an item; return once it is safe.

        Args:
            key: What it is batched by.
            idempotency_key: Makes this insert count once, however often it is made within a day. It
                belongs to one item; fields that its type does not compare may differ.
            keep_result: Keep the join function's result for an hour.

        Raises:
            BadItemError, DifferentItemError, UnknownTaskError: nothing was inserted.
            OutcomeUnknownError: try again, with the same idempotency key; without one it may count.
        """
        self.join_task.check_registered(clients)
        insertion = self._codec.insertion(key, item, idempotency_key, keep_result=keep_result)
        return self._group_commit(clients)(insertion)

    def insert_each(
        self,
        clients: Clients,
        items: Sequence[tuple[str, I]],
        *,
        idempotency_keys: Sequence[str] | None = None,
    ) -> list[Accepted | Exception]:
        """Insert pairs of a key and an item, in few commits; return for each what `insert` would.

        An error is returned in the place of its item, not raised.
        """
        self.join_task.check_registered(clients)
        ids: Sequence[str | None] = idempotency_keys or [None] * len(items)
        answers: list[Accepted | Exception] = [OutcomeUnknownError()] * len(items)
        insertions: dict[int, Insertion] = {}
        for i, ((key, item), id_) in enumerate(zip(items, ids, strict=True)):
            try:
                insertions[i] = self._codec.insertion(key, item, id_)
            except BadItemError as error:
                answers[i] = error
        committed = [
            answer
            for group in groups(list(insertions.values()))
            for answer in insert_group(clients, self._joiners, group)
        ]
        for i, answer in zip(insertions, committed, strict=True):
            answers[i] = answer
        return answers

    def insert_in_transaction(
        self, clients: Clients, key: str, *items: I, tag: str | None = None
    ) -> str:
        """Insert items of one key in the transaction that this code runs in; return their pack.

        Like every effect of a transaction that may run again after a lost reply, it needs a
        proof of the body's own that it was not done before.

        Args:
            tag: Under which the pack is found as long as it waits.

        Raises:
            NoTransactionError: this is not the body of `transact`.
            BadItemError, UnknownTaskError: nothing was inserted.
        """
        self.join_task.check_registered(clients)
        insertions = [self._codec.insertion(key, item) for item in items]
        return current_inserts(clients, self._joiners).put(insertions, tag)

    def read(self, items: str) -> list[I]:
        """Return the items of a pack.

        Raises:
            ValidationError: one of them is no item of this version of the queue.
        """
        return self._codec.read(items)

    def check(self, key: str, item: I) -> None:
        """Check that an item could be inserted.

        Raises:
            BadItemError: it could not, and why.
        """
        self._codec.check(key, item)

    def _group_commit(self, clients: Clients) -> GroupCommit[Insertion, Accepted]:
        return clients.process_state.get_or_create(
            f"fork-join:commits:{self.name}",
            lambda: GroupCommit(
                lambda insertions: insert_group(clients, self._joiners, insertions),
                max_calls=MAX_GROUP_ITEMS,
                max_bytes=MAX_GROUP_BYTES,
                size=lambda insertion: insertion.bytes,
                max_wait_s=MAX_GROUP_WAIT_S + 2 * self.settings.linger_s,
                linger_s=self.settings.linger_s,
                gap_s=self.settings.linger_s / 4,
            ),
        )

    # Join

    def _join(self, clients: Clients, args: Join) -> None:
        if not args.key:
            found = packs_of_epoch(self.name, args.epoch).fetch(1)
            if not found:
                return
            args = replace(args, key=found[0].batch_key)
        slot = Slot(self.name, args.key, args.shard)
        with advisory_lock(clients, slot.fold_mutex):
            lock_seen = epochs.close(clients, slot, args.epoch)
            closed = clients.clock.now()
            folded = fold_epoch(clients, self._folding(), args.epoch)
        if args.is_shared and not lock_seen:
            self._joiners.fold_again(clients, args)
        if folded.items:
            self._record(clients, args, folded, closed)

    def _folding(self) -> Folding[I]:
        return Folding(
            self.name,
            self.settings.max_batch_size,
            self.join,
            self._codec.read,
            self.replay_task,
            self.guarded,
        )

    def _record(
        self, clients: Clients, args: Join, folded: FoldResult, closed: datetime.datetime
    ) -> None:
        open_s = (naive_utc(closed) - EpochId.parse(args.epoch).opened).total_seconds()
        stats = BatchStats(
            folded.items,
            open_s=open_s if open_s >= 0 else None,
            fold_s=max(0.0, (clients.clock.now() - closed).total_seconds()),
        )
        self.settings.record(clients, args.key, stats)

    def _replay(self, clients: Clients, args: Replay) -> None:
        pack = PackId.parse(args.pack)
        unpark(pack)
        # Also when it came before: that delivery may have ended here.
        self.join_task.enqueue(clients, Join(args.key, pack.epoch))

    # What is to be seen

    def policy(self, clients: Clients, key: str) -> BatchPolicy | None:
        """Return how the batches of a key are, and why; None: as they are declared."""
        return self.settings.policy(clients, key)

    def peek(self, clients: Clients, key: str) -> OpenEpoch | None:
        """Return the batch of a key that is open, as memcached has it; None: none is known."""
        return epochs.look(clients, Slot(self.name, key))

    def depth(self, key: str) -> Depth[I]:
        """Return how many items of a key wait, and which are parked; Datastore says so, exactly."""
        return depth_of(self.name, key, self._codec.read)

    def outcome(self, accepted: Accepted) -> ItemStatus:
        """Return what became of an item."""
        return status_of(accepted)

    def wait(self, clients: Clients, accepted: Accepted, timeout_s: float) -> ItemStatus:
        """Wait until an item is folded or parked, not longer than so many seconds."""
        deadline = clients.clock.now() + datetime.timedelta(seconds=timeout_s)
        while not ((status := self.outcome(accepted)).is_folded or status.is_parked):
            if clients.clock.now() >= deadline:
                break
            clients.clock.sleep(LOOK_AGAIN_S)
        return status

    # Sweep

    def sweep(self, clients: Clients, *, stale_s: float = STALE_S) -> SweepResult:
        """Wake what has been stranded for so long behind its period."""
        return sweeps.sweep(clients, self._joiners, self.drain_task, stale_s=stale_s)

    def _drain(self, clients: Clients, args: Drain) -> None:
        sweeps.drain(clients, self._joiners, self.drain_task, args)


def fork_join(
    name: str,
    *,
    queue: str,
    period_s: float,
    max_batch_size: int = MAX_BATCH_SIZE,
    shards: int = 1,
    target_latency_s: float | None = None,
    linger_s: float = 0.0,
    are_last: Callable[[Clients, str, int], bool] | None = None,
    guarded: Guarded[Any] | None = None,
) -> Callable[[Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None]], ForkJoin[I]]:
    """Declare the function below as the join of a queue; its third parameter's type is the items'.

    Args:
        name: Stands in keys and routes: never change it while work waits.
        queue: The Cloud Tasks queue of its tasks.
        period_s: How long a batch stays open. 0: until the batch before it is folded.
        max_batch_size: Items in one transaction; a batch of so many does not wait for its period.
        shards: Batches of one key that are open at a time, for a key that is very hot.
        target_latency_s: From insert to fold. If given, the three above are the most: period, size
            and shards follow what joiners see, key by key.
        linger_s: How long an insert waits for others to share its commit, while they keep coming.
            For inserts of tasks, whose threads have nothing better to do.
        are_last: Asked with a key, and how many items one commit brings: whether no more will come,
            so that their batch need not wait. A hint: it may be wrong either way.
        guarded: Says what the join would write, each entity with the version that it was read with
            (`rollforward.datastore.versions.read_versions`), if all that the join depends on is
            among them. It is tried first, by one commit that is refused if any of them has changed.
            None, or what it returns for a batch, means: in a transaction.
    """

    def declare(
        join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None],
    ) -> ForkJoin[I]:
        return ForkJoin(
            name,
            _item_of(join),
            join,
            queue=queue,
            period_s=period_s,
            max_batch_size=max_batch_size,
            shards=shards,
            target_latency_s=target_latency_s,
            linger_s=linger_s,
            are_last=are_last,
            guarded=guarded,
        )

    return declare


def _item_of(join: Callable[..., Any]) -> type[Any]:
    """Return the type of the items that a function takes in its third parameter.

    Raises:
        TypeError: the function does not have the form of a join.
    """
    parameters = list(inspect.signature(join).parameters)
    try:
        hints = get_type_hints(join, localns={"Clients": Any})
    except NameError as error:
        raise TypeError(
            f"{join.__qualname__}: {error.name} must be defined in its module, above the queue; "
            f"{_FORM}"
        ) from error
    items = get_args(hints.get(parameters[2])) if len(parameters) > 2 else ()
    if len(items) != 1:
        raise TypeError(f"{join.__qualname__} does not say what its items are; {_FORM}")
    item: type[Any] = items[0]
    return item
