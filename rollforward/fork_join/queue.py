"""Fork-join queues: declared, inserted into, asked for results."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, overload

from rollforward.datastore.transactions import check_outside
from rollforward.fork_join import sweep as sweeps
from rollforward.fork_join.batching import epochs
from rollforward.fork_join.batching.adaptive import BatchPolicy, BatchStats
from rollforward.fork_join.batching.epochs import MAX_MUTEX_WAIT_S, OpenEpoch, Slot
from rollforward.fork_join.batching.settings import MAX_BATCH_SIZE, RECEIPTS_FOR, QueueSettings
from rollforward.fork_join.entities import EpochId, PackId, packs_of_epoch
from rollforward.fork_join.fold import (
    MAX_PACK_WRITES,
    MAX_PACKS,
    Batch,
    Folding,
    FoldResult,
    Guarded,
    fold_epoch,
)
from rollforward.fork_join.insert import (
    FULL_COMMIT,
    MAX_GROUP_ITEMS,
    MAX_GROUP_WAIT_S,
    commit_share,
    groups,
    insert_calls,
    insert_group,
)
from rollforward.fork_join.items import (
    Accepted,
    Insertion,
    ItemCodec,
    accepted_items,
    check_key,
    form_of,
)
from rollforward.fork_join.joiners import Join, Joiners
from rollforward.fork_join.parked import Replay, unpark
from rollforward.fork_join.status import Depth, ItemStatus, depth_of, status_of
from rollforward.fork_join.sweep import STALE_S, Drain, SweepResult
from rollforward.fork_join.transactional import current_inserts
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import Timeout, naive_utc
from rollforward.runtime.errors import BadItemError, OutcomeUnknownError
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.runtime.texts import has_unpaired_surrogate, plain_text
from rollforward.tasks.declaration import Task

I = TypeVar("I")  # noqa: E741  An item.

LOOK_AGAIN_S = 0.01


class ForkJoin(Generic[I]):
    """A declared queue: the type of its items, and the function that joins a batch."""

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
        max_packs: int = MAX_PACKS,
    ) -> None:
        """Declare a queue; see `fork_join`.

        Args:
            receipts_for: The least time for which an idempotency key is remembered.

        Raises:
            ValueError: an argument is out of range.
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
        if not 1 <= max_packs <= MAX_PACK_WRITES:
            raise ValueError(f"max_packs must be between 1 and {MAX_PACK_WRITES}, got {max_packs}")
        self.name = name
        self.join = join
        self.guarded = guarded
        self.max_packs = max_packs
        self._codec = ItemCodec(name, item)
        base = f"/tasks/fork-join/{name}"
        self.join_task = Task(f"{base}/join", queue, Join, self._join)
        self.drain_task = Task(f"{base}/drain", queue, Drain, self._drain)
        self.replay_task = Task(f"{base}/replay", queue, Replay, self._replay)
        self._joiners = Joiners(self.settings, self.join_task)

    if not TYPE_CHECKING:  # A type checker knows that a queue cannot be called.

        def __call__(self, *args: object, **options: object) -> NoReturn:
            raise TypeError(
                f"{self.name} is a fork-join queue, which calls its function with a batch: use "
                ".insert(clients, key, item)"
            )

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """The tasks to mount."""
        return self.join_task, self.drain_task, self.replay_task

    # Insert

    @optional_clients
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
            key: Items of one key are batched together.
            idempotency_key: Makes repeated inserts within a day count once. It belongs to one item;
                fields that its type does not compare may differ.
            keep_result: Keep the join function's result for an hour.

        Raises:
            BadItemError, DifferentItemError, UnknownTaskError: nothing was inserted.
            RuntimeError: a transaction runs here, which would not undo it.
            OutcomeUnknownError: retry with the same idempotency key; without one it may count.
        """
        _check_call(clients, self)
        insertion = self._codec.insertion(key, item, idempotency_key, keep_result=keep_result)
        [answer] = self._group_commit(clients)([insertion])
        if isinstance(answer, Exception):
            raise answer
        return answer

    @optional_clients
    def insert_each(
        self,
        clients: Clients,
        items: Sequence[tuple[str, I]],
        *,
        idempotency_keys: Sequence[str | None] | None = None,
    ) -> list[Accepted | Exception]:
        """Insert pairs of a key and an item, in few commits; return for each what `insert` would.

        An error is returned in the place of its item, not raised.

        Raises:
            ValueError: there are more or fewer idempotency keys, or Nones, than items.
            UnknownTaskError: nothing was inserted.
            RuntimeError: a transaction runs here, which would not undo it.
        """
        _check_call(clients, self)
        ids = [None] * len(items) if idempotency_keys is None else idempotency_keys
        if len(ids) != len(items):
            raise ValueError(f"idempotency_keys must be {len(items)}, one an item, got {len(ids)}")
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
            for answer in self._group_commit(clients)(group)
        ]
        for i, answer in zip(insertions, committed, strict=True):
            answers[i] = answer
        return answers

    @optional_clients
    def insert_batch(
        self, clients: Clients, key: str, items: Sequence[I], *, idempotency_key: str | None = None
    ) -> list[Accepted]:
        """Insert up to 1,000 items together, by one commit: all of them, or none.

        A queue whose `max_batch_size` is 1 takes 498 of them, and one whose is 2 takes 996.

        Args:
            key: Of all items.
            idempotency_key: Belongs to the whole batch: within a day it counts once. It costs one
                entity write, where a key for each item (`insert_each`) costs one for each.

        Raises:
            BadItemError, DifferentItemError, UnknownTaskError: nothing was inserted.
            RuntimeError: a transaction runs here, which would not undo it.
            OutcomeUnknownError: retry with the same idempotency key; without one it may count.
        """
        _check_call(clients, self)
        size = self.settings.max_batch_size
        batch = self._codec.batch(key, items, idempotency_key, max_batch_size=size)
        [answer] = insert_group(clients, self._joiners, [batch])
        if isinstance(answer, Exception):
            raise answer
        return accepted_items(answer)

    @optional_clients
    def insert_in_transaction(
        self, clients: Clients, key: str, *items: I, tag: str | None = None
    ) -> str:
        """Insert items of one key in the transaction that this code runs in; return their pack.

        A body that runs again after a lost reply puts its items once. A second call of `transact`
        needs a proof of the body's own that the first one did nothing.

        Args:
            tag: Finds the pack while it is pending.

        Raises:
            NoTransactionError: this is not the body of `transact`.
            BadItemError, UnknownTaskError: nothing was inserted.
            google.api_core.exceptions.GoogleAPICallError: an attempt whose reply was lost may have
                inserted them, and a joiner may have taken them since.
        """
        self.join_task.check_registered(clients)
        if has_unpaired_surrogate(tag or ""):
            raise BadItemError("tag contains an unpaired surrogate")
        insertions = [self._codec.insertion(key, item) for item in items]
        return current_inserts(clients, self._joiners).put(insertions, tag)

    def read(self, items: str) -> list[I]:
        """Return the items of a pack.

        Raises:
            ValidationError: one of them does not match this version of the item's type.
        """
        return self._codec.read(items)

    def check(self, key: str, item: I) -> I:
        """Check that an item could be inserted, and return it as the join would get it: a copy.

        Raises:
            BadItemError: it could not, and why.
        """
        return self._codec.copy(key, item)

    def _group_commit(
        self, clients: Clients
    ) -> GroupCommit[Sequence[Insertion], list[Accepted | Exception]]:
        """Return the commits that inserts of this process share, each with one item or more."""
        return clients.process_state.get_or_create(
            f"fork-join:commits:{self.name}",
            lambda: GroupCommit(
                lambda calls: insert_calls(clients, self._joiners, calls),
                max_calls=MAX_GROUP_ITEMS,
                max_bytes=FULL_COMMIT,
                size=commit_share,
                max_wait_s=MAX_GROUP_WAIT_S + 2 * self.settings.linger_s,
                linger_s=self.settings.linger_s,
                gap_s=self.settings.linger_s / 4,
            ),
        )

    # Join

    def _join(self, clients: Clients, args: Join) -> None:
        if not args.key:
            first_packs = packs_of_epoch(self.name, args.epoch).fetch(1)
            if not first_packs:
                return
            args = replace(args, key=first_packs[0].batch_key)
        slot = Slot(self.name, args.key, args.shard)
        packs = packs_of_epoch(self.name, args.epoch)
        if epochs.is_joined(clients, slot, args.epoch) and not packs.fetch(1, keys_only=True):
            return  # Its other joiner has folded it.
        # Meanwhile a batch that is not full stays open: what comes is folded with it.
        mutex = advisory_lock(clients, slot.fold_mutex, max_wait_s=MAX_MUTEX_WAIT_S)
        with mutex as turn:
            lock_seen = epochs.close(clients, slot, args.epoch)
            closed = clients.clock.now()
            folded = fold_epoch(clients, self._folding(turn.show_progress), args.epoch)
        if args.is_shared and not lock_seen:
            self._joiners.fold_again(clients, args)
        if folded.items:
            self._record(clients, args, folded, closed)

    def _folding(self, show_progress: Callable[[], None]) -> Folding[I]:
        return Folding(
            self.name,
            self.settings.max_batch_size,
            self.join,
            self._codec.read,
            self.replay_task,
            self.guarded,
            self.max_packs,
            show_progress,
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
        # Also on a redelivery: the first one may have ended before this.
        self.join_task.enqueue(clients, Join(args.key, pack.epoch))

    # Status

    @optional_clients
    def policy(self, clients: Clients, key: str) -> BatchPolicy | None:
        """Return the policy of a key's batches; None: as declared."""
        return self.settings.policy(clients, plain_text(key))

    @optional_clients
    def peek(self, clients: Clients, key: str) -> OpenEpoch | None:
        """Return the open batch of a key according to memcached; None: it knows none.

        Raises:
            BadItemError: no item can have this key.
        """
        return epochs.find_open_epoch(clients, Slot(self.name, check_key(key)))

    def depth(self, key: str) -> Depth[I]:
        """Return the exact number of pending items of a key, and its parked items."""
        return depth_of(self.name, key, self._codec.read)

    def outcome(self, accepted: Accepted) -> ItemStatus:
        """Return the status of an item."""
        return status_of(accepted)

    @optional_clients
    def wait(self, clients: Clients, accepted: Accepted, timeout_s: float) -> ItemStatus:
        """Wait until an item is folded, parked or deleted, at most `timeout_s` seconds."""
        timeout = Timeout.of(clients.clock, timeout_s)
        while (status := self.outcome(accepted)) == ItemStatus(is_folded=False):
            if timeout.is_over:
                break
            clients.clock.sleep(LOOK_AGAIN_S)
        return status

    # Sweep

    def sweep(self, clients: Clients, *, stale_s: float = STALE_S) -> SweepResult:
        """Wake batches that are still unfolded `stale_s` seconds after their period."""
        return sweeps.sweep(clients, self._joiners, self.drain_task, stale_s=stale_s)

    def _drain(self, clients: Clients, args: Drain) -> None:
        sweeps.drain(clients, self._joiners, self.drain_task, args)


class _Declare(Protocol):
    """The decorator that `fork_join(...)` returns."""

    @overload
    def __call__(
        self, join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None], /
    ) -> ForkJoin[I]: ...

    @overload
    def __call__(
        self, join: Callable[[Batch, Sequence[I]], Sequence[Any] | None], /
    ) -> ForkJoin[I]: ...


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
    max_packs: int = MAX_PACKS,
) -> _Declare:
    """Declare the function below as the join of a queue: of the clients, a batch and its items.

    It may do without the clients. The type of its last parameter is the items'.

    Args:
        name: Part of keys and routes: never change it while work is pending.
        queue: The Cloud Tasks queue of its tasks.
        period_s: The time that a batch stays open. 0: until the previous batch is folded.
        max_batch_size: Items in one transaction; a batch of this size does not wait for its period.
        shards: Open batches of one key at a time, for a very hot key.
        target_latency_s: From insert to fold. If given, the three above are maxima: period, size
            and shards follow the measurements of joiners, key by key.
        linger_s: The time that an insert waits for others to share its commit, while they keep
            coming. For inserts by tasks, whose threads may wait.
        are_last: Called with a key and the number of items in one commit. True if this commit
            completes the batch, which then does not wait for its period. A hint: it may be wrong.
        guarded: Returns the writes of the join, each entity with the version that it was read with
            (`rollforward.datastore.versions.read_versions`), if the join depends on nothing else.
            It is tried first, by one commit that is refused if any of them has changed. If this is
            None, or returns None for a batch, a transaction folds it.
        max_packs: Packs in one transaction, up to 320; a pack is what callers brought in one
            commit. More than 160 for a join that writes few entities: a commit takes 500 writes,
            of which each pack is one.
    """

    def declare(function: Callable[..., Sequence[Any] | None]) -> ForkJoin[Any]:
        kind, join = form_of(function)
        return ForkJoin(
            name,
            kind,
            join,
            queue=queue,
            period_s=period_s,
            max_batch_size=max_batch_size,
            shards=shards,
            target_latency_s=target_latency_s,
            linger_s=linger_s,
            are_last=are_last,
            guarded=guarded,
            max_packs=max_packs,
        )

    return declare


def _check_call(clients: Clients, queue: ForkJoin[Any]) -> None:
    queue.join_task.check_registered(clients)
    check_outside(f"insert into {queue.name}", "insert_in_transaction")
