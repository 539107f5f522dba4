"""Fork-join queues: declared, inserted into, asked for results."""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from google.cloud import ndb
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from models.fork_join import EpochId, PackId, WorkPack, outcome_key, pack_key, packs_of_epoch
from pipelines import outbox
from pipelines.fork_join import adaptive as tunings
from pipelines.fork_join import epochs as epoch_locks
from pipelines.fork_join import sweep as fork_join_sweeps
from pipelines.fork_join.adaptive import BatchPolicy, BatchStats, Limits
from pipelines.fork_join.epochs import Admission, Epochs, Shape, Slot
from pipelines.fork_join.fold import Batch, fold_epoch, unpark
from pipelines.fork_join.group_commit import GroupCommit
from pipelines.fork_join.insert import (
    MAX_GROUP_BYTES,
    MAX_GROUP_ITEMS,
    MAX_GROUP_WAIT_S,
    MAX_ITEM_BYTES,
    Accepted,
    BadItemError,
    DifferentItemError,
    Insertion,
    OutcomeUnknownError,
    groups,
    insert_group,
)
from pipelines.fork_join.sweep import STALE_S, SweepResult, Walk
from pipelines.fork_join.transactional import current_inserts
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc
from pipelines.runtime.messages import Message
from pipelines.tasks.declaration import Task

__all__ = [
    "Accepted",
    "BadItemError",
    "Batch",
    "DifferentItemError",
    "ForkJoin",
    "OutcomeUnknownError",
    "fork_join",
]

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

MAX_BATCH_SIZE = 500
MAX_PERIOD_S = 3600.0
MAX_KEY_BYTES = 1_200
MAX_IDEMPOTENCY_KEY_CHARS = 200
LOOK_AGAIN_S = 0.01
# A commit whose reply was lost may take effect so much later, behind its joiner.
LOOK_AGAIN_AFTER = datetime.timedelta(seconds=3)


@dataclass(frozen=True)
class Join:
    """Which batch to fold. `is_shared`: writers of other processes found it in memcached.

    No key: whoever asks does not know it, and the joiner finds it with the batch.
    """

    key: Annotated[str, Field(max_length=MAX_KEY_BYTES)]
    epoch: Annotated[str, Field(max_length=60)]
    shard: Annotated[int, Field(ge=0, le=1000)] = 0
    is_shared: bool = False


@dataclass(frozen=True)
class Replay:
    """Which item is to get another chance. What it is is told to people, who read dead tasks."""

    pack: Annotated[str, Field(max_length=300)]
    key: str
    item: str


@dataclass(frozen=True)
class Insert:
    """An item that an earlier version has parked, as nothing but a dead task."""

    key: Annotated[str, Field(max_length=MAX_KEY_BYTES)]
    item: str
    parked: str
    tag: str | None = None


@dataclass(frozen=True)
class ItemStatus:
    """What became of an item. `result` is what the join function returned for it, if asked."""

    is_folded: bool
    result: Any = None
    is_parked: bool = False


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
    ) -> None:
        """Declare a queue; see `fork_join`.

        Raises:
            ValueError: it cannot be so.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_-]{1,60}", name):
            raise ValueError(f"a queue's name is of a-z, 0-9, _ and -, not {name!r}")
        if not 0 <= period_s <= MAX_PERIOD_S:
            raise ValueError(f"a period lasts from 0 to {MAX_PERIOD_S:g} seconds")
        if not 1 <= max_batch_size <= 10_000 or not 1 <= shards <= 100:
            raise ValueError("a batch has 1 to 10,000 items, a key 1 to 100 shards")
        if target_latency_s is not None and target_latency_s <= 0:
            raise ValueError("a latency is more than 0 seconds")
        self.name = name
        self.join = join
        self.period_s = period_s
        self.max_batch_size = max_batch_size
        self.shards = shards
        self.limits = (
            Limits(target_latency_s, period_s, max_batch_size, shards) if target_latency_s else None
        )
        self._item: TypeAdapter[I] = TypeAdapter(item)
        self._unsaid = (
            {field.name for field in fields(item) if not field.compare}
            if is_dataclass(item)
            else None
        )
        self._items: TypeAdapter[list[I]] = TypeAdapter(list[item])  # type: ignore[valid-type]
        base = f"/tasks/fork-join/{name}"
        self.join_task = Task(f"{base}/join", queue, Join, self._join)
        self.walk_task = Task(f"{base}/walk", queue, Walk, self._walk)
        self.replay_task = Task(f"{base}/replay", queue, Replay, self._replay)
        self.insert_task = Task(f"{base}/insert", queue, Insert, self._insert_again)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """What has to be mounted."""
        return self.join_task, self.walk_task, self.replay_task, self.insert_task

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
            BadItemError, DifferentItemError: nothing was inserted.
            OutcomeUnknownError: try again, with the same idempotency key; without one it may count.
        """
        insertion = self._insertion(key, item, idempotency_key, keep_result=keep_result)
        return self._group_commit(clients)(insertion)

    def insert_each(
        self,
        clients: Clients,
        items: Sequence[tuple[str, I]],
        *,
        idempotency_keys: Sequence[str] | None = None,
    ) -> list[Accepted | Exception]:
        """Insert pairs of a key and an item, in few commits; tell of each what `insert` would."""
        ids: Sequence[str | None] = idempotency_keys or [None] * len(items)
        answers: list[Accepted | Exception] = [OutcomeUnknownError()] * len(items)
        insertions: dict[int, Insertion] = {}
        for i, ((key, item), id_) in enumerate(zip(items, ids, strict=True)):
            try:
                insertions[i] = self._insertion(key, item, id_)
            except BadItemError as error:
                answers[i] = error
        told = [
            answer
            for group in groups(list(insertions.values()))
            for answer in insert_group(clients, self, group)
        ]
        for i, answer in zip(insertions, told, strict=True):
            answers[i] = answer
        return answers

    def check(self, key: str, item: I) -> None:
        """Check that an item could be inserted.

        Raises:
            BadItemError: it could not, and why.
        """
        self._checked(key, item)

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
            BadItemError: nothing was inserted.
        """
        insertions = [self._insertion(key, item) for item in items]
        return current_inserts(clients, self).put(insertions, tag)

    def _insertion(
        self, key: str, item: I, idempotency_key: str | None = None, *, keep_result: bool = False
    ) -> Insertion:
        if (
            idempotency_key is not None
            and not 0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARS
        ):
            raise BadItemError(
                f"an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters"
            )
        insertion = Insertion(key, self._checked(key, item), idempotency_key, keep_result)
        return insertion if idempotency_key is None else replace(insertion, said=self._said(item))

    def _said(self, item: I) -> str:
        """Return what a caller has said of an item: it is the same when a field is added to it.

        Fields that are as by default are left out, and those that are not compared.
        """
        said = self._item.dump_json(item, exclude=self._unsaid, exclude_defaults=True)
        return said.decode()

    def _checked(self, key: str, item: I) -> str:
        """Return an item as it travels."""
        try:
            if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
                raise BadItemError(f"a key has 1 to {MAX_KEY_BYTES} bytes")
            body = self._item.dump_json(item, warnings=False)
            self._item.validate_json(body, strict=True)
        except UnicodeEncodeError as error:
            raise BadItemError("there is half a character in the key") from error
        except (PydanticSerializationError, ValidationError) as error:
            raise BadItemError(f"this is no item of {self.name}: {error}") from error
        if len(body) > MAX_ITEM_BYTES:
            raise BadItemError(f"an item has at most {MAX_ITEM_BYTES} bytes, not {len(body)}")
        return body.decode()

    def slot(self, clients: Clients, key: str) -> Slot:
        """Return where a key's items go now; asked once a commit, for all that come together."""
        if self.shards == 1:
            return Slot(self.name, key)
        tuning = self.tuning(clients, key)
        shards = self.shards if tuning is None else tuning.shards
        return Slot(self.name, key, clients.random.randrange(shards))

    def _group_commit(self, clients: Clients) -> GroupCommit[Insertion, Accepted]:
        return clients.process_state.get_or_create(
            f"fork-join:commits:{self.name}",
            lambda: GroupCommit(
                lambda insertions: insert_group(clients, self, insertions),
                most=MAX_GROUP_ITEMS,
                most_bytes=MAX_GROUP_BYTES,
                size=lambda insertion: insertion.bytes,
                longest_wait_s=MAX_GROUP_WAIT_S,
            ),
        )

    def epochs(self, clients: Clients) -> Epochs:
        """Return the epochs that this process knows of."""
        return clients.process_state.get_or_create(
            f"fork-join:epochs:{self.name}", lambda: Epochs(self.period_s, self._shape)
        )

    def _shape(self, clients: Clients, key: str) -> Shape:
        tuning = self.tuning(clients, key)
        if tuning is None:
            return Shape(self.period_s, self.max_batch_size)
        return Shape(tuning.window_s, tuning.size)

    def tuning(self, clients: Clients, key: str) -> BatchPolicy | None:
        """Return how the batches of a key are, and why; None: as they are declared."""
        if self.limits is None:
            return None
        return tunings.read(clients, self._tuning_name(key), self.limits)

    def _tuning_name(self, key: str) -> str:
        return f"fork-join:tuning:{self.name}:{key}"

    def start(self, clients: Clients, entries: Sequence[Admission]) -> None:
        """See to the tasks of epochs that others can see from now on."""
        new = [entry for entry in entries if entry.is_new and entry.is_shared]
        self._create(clients, [self._joiner(clients, entry, at=entry.due) for entry in new])

    def leave(self, clients: Clients, stays: Sequence[tuple[Admission, PackId]]) -> None:
        """Leave epochs; see to it that what was put there has a joiner still to come."""
        joiners = [self._left(clients, entry, pack) for entry, pack in stays]
        self._create(clients, [joiner for joiner in joiners if joiner is not None])

    def look_again(self, clients: Clients, stays: Sequence[tuple[Admission, PackId]]) -> None:
        """Fold epochs once more in some seconds: what nobody answered for may be committed late."""
        at = naive_utc(clients.clock.now()) + LOOK_AGAIN_AFTER
        joiners = [self._joiner(clients, entry, "doubt", pack.id, at=at) for entry, pack in stays]
        self._create(clients, joiners)

    def _left(self, clients: Clients, entry: Admission, pack: PackId) -> Message | None:
        """Leave an epoch; return the joiner that it needs now."""
        epochs = self.epochs(clients)
        is_missed = epochs.leave(clients, entry)
        if entry.is_new and not entry.is_shared:
            return self._joiner(clients, entry, at=entry.due)
        if is_missed:
            return self._joiner(clients, entry, "late", pack.id)
        if entry.is_full and entry.due > naive_utc(clients.clock.now()):
            epochs.forget(clients, entry.slot, entry.epoch)
            return self._joiner(clients, entry, "full")
        return None

    def wake(self, clients: Clients, stranded: Sequence[str], minute: str) -> None:
        """Create tasks for stranded epochs, of whatever key each is."""
        joins = [Join("", epoch) for epoch in stranded]
        names = [(epoch, "woken", minute) for epoch in stranded]
        self.join_task.enqueue_many(clients, joins, names=names)

    def _joiner(
        self, clients: Clients, entry: Admission, *name: str, at: datetime.datetime | None = None
    ) -> Message:
        join = Join(entry.slot.key, entry.epoch, entry.slot.shard, entry.is_shared)
        return self._message(clients, join, *name, at=at)

    def _message(
        self, clients: Clients, join: Join, *name: str, at: datetime.datetime | None = None
    ) -> Message:
        now = naive_utc(clients.clock.now())
        due = at.replace(tzinfo=datetime.UTC) if at is not None and at > now else None
        return self.join_task.message(join, name=(join.epoch, *name), at=due)

    def _create(self, clients: Clients, joiners: Sequence[Message]) -> None:
        """Create joiners; what Cloud Tasks does not take now comes later, or is the sweep's."""
        if not joiners:
            return
        answers = clients.tasks.create_each(joiners)
        told = list(zip(joiners, answers, strict=True))
        if errors := [answer for _, answer in told if isinstance(answer, Exception)]:
            log.warning("%d batches have no joiner yet: %s", len(errors), errors[0])
            again = [joiner for joiner, answer in told if isinstance(answer, Exception)]
            outbox.create_later(clients, again)

    def _replay(self, clients: Clients, args: Replay) -> None:
        pack = PackId.parse(args.pack)
        unpark(pack)
        # Also when it came before: that delivery may have ended here.
        self.join_task.enqueue(clients, Join(args.key, pack.epoch))

    def _insert_again(self, clients: Clients, args: Insert) -> None:
        insertion = Insertion(args.key, args.item, idempotency_key=args.parked, tag=args.tag)
        (answer,) = insert_group(clients, self, [insertion])
        if isinstance(answer, Exception):
            raise answer

    # Join

    def _join(self, clients: Clients, args: Join) -> None:
        if not args.key:
            found = packs_of_epoch(self.name, args.epoch).fetch(1)
            if not found:
                return
            args = replace(args, key=found[0].batch_key)
        slot = Slot(self.name, args.key, args.shard)
        with epoch_locks.turn(clients, slot):
            lock_seen = epoch_locks.close(clients, slot, args.epoch)
            closed = clients.clock.now()
            folded = fold_epoch(clients, self, args.epoch)
        if args.is_shared and not lock_seen:
            gone_at = epoch_locks.gone_at(args.epoch, self.period_s)
            self._create(clients, [self._message(clients, args, "again", at=gone_at)])
        if self.limits is not None and folded.items:
            open_s = (naive_utc(closed) - EpochId.parse(args.epoch).opened).total_seconds()
            seen = BatchStats(
                folded.items,
                open_s=open_s if open_s >= 0 else None,
                fold_s=max(0.0, (clients.clock.now() - closed).total_seconds()),
            )
            tunings.note(clients, self._tuning_name(args.key), seen, self.limits)

    def read(self, items: str) -> list[I]:
        """Return the items of a pack.

        Raises:
            ValidationError: one of them is no item of this version of the queue.
        """
        return self._items.validate_json(items, strict=True)

    def replay_body(self, pack: PackId, stored: WorkPack) -> bytes:
        """Return the body of the task that would put a pack's only item back."""
        (item,) = json.loads(stored.items)
        args = Replay(pack.text, stored.batch_key, json.dumps(item, ensure_ascii=False))
        return self.replay_task.message(args).body

    # What is to be seen

    def peek(self, clients: Clients, key: str) -> epoch_locks.OpenEpoch | None:
        """Return the batch of a key that is open, as memcached has it; None: nobody knows one."""
        return epoch_locks.look(clients, Slot(self.name, key))

    def outcome(self, accepted: Accepted) -> ItemStatus:
        """Return what became of an item."""
        pack = PackId.parse(accepted.pack)
        alone = pack.single(accepted.position)  # Where it stands if its batch failed.
        places = {alone.text: 0, pack.text: accepted.position}
        # In one look: a replay may put it back meanwhile.
        keys = [make(place) for make in (outcome_key, pack_key) for place in places]
        keys.append(pack_key(alone.parked.text))
        found = dict(zip(keys, ndb.get_multi(keys), strict=True))
        for place, position in places.items():
            told = found[outcome_key(place)]
            if told is not None and "results" in told.told:
                return ItemStatus(True, told.told["results"][position])
        if any(found[pack_key(place)] for place in places):
            return ItemStatus(False)
        is_parked = found[pack_key(alone.parked.text)] is not None
        return ItemStatus(not is_parked, is_parked=is_parked)

    def wait(self, clients: Clients, accepted: Accepted, timeout_s: float) -> ItemStatus:
        """Wait until an item is folded, not longer than so many seconds."""
        deadline = clients.clock.now() + datetime.timedelta(seconds=timeout_s)
        while not ((outcome := self.outcome(accepted)).is_folded or outcome.is_parked):
            if clients.clock.now() >= deadline:
                break
            clients.clock.sleep(LOOK_AGAIN_S)
        return outcome

    # Sweep

    def sweep(self, clients: Clients, *, stale_s: float = STALE_S) -> SweepResult:
        """Wake what has been stranded for so long behind its period."""
        return fork_join_sweeps.sweep(clients, self, stale_s=stale_s)

    def _walk(self, clients: Clients, args: Walk) -> None:
        fork_join_sweeps.walk(clients, self, args)


def fork_join(
    name: str,
    *,
    queue: str,
    period_s: float,
    max_batch_size: int = MAX_BATCH_SIZE,
    shards: int = 1,
    target_latency_s: float | None = None,
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
    """

    def declare(
        join: Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None],
    ) -> ForkJoin[I]:
        hints = get_type_hints(join, localns={"Clients": Any})
        (item,) = get_args(hints[list(join.__annotations__)[2]])
        return ForkJoin(
            name,
            item,
            join,
            queue=queue,
            period_s=period_s,
            max_batch_size=max_batch_size,
            shards=shards,
            target_latency_s=target_latency_s,
        )

    return declare
