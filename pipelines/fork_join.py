"""Fork-join queues: many small writes, gathered into few, and not one is lost or doubled.

    @dataclass(frozen=True)
    class Add:
        amount: int

    @fork_join("sums", queue="fork-join", period_s=1.0)
    def add_up(clients: Clients, batch: Batch, items: Sequence[Add]) -> None:
        row = Sum.get_by_id(batch.key) or Sum(id=batch.key)
        row.total += sum(item.amount for item in items)
        row.put()

    add_up.insert(clients, "visitors", Add(1), request_id="r-17")

`insert` puts the item under the open epoch of its key and returns once it is safe. The epoch's
task is due one period after its opening. It closes the epoch, waits a moment for writers that
are still inside, and folds: one transaction re-reads the items, calls the join function with
all of them, and deletes them. The join function reads and writes Datastore as any transaction
body does, and may run more than once, of which one run counts.

Period 0 means no waiting: the batch is what came while the one before was folded. A batch that
is full does not wait for its period either.

Inserts of one process that come together share one commit and one entity. A request id makes an
insert safe to repeat: within a day it counts once, also when a commit's reply was lost. Without
one, an insert that raises NotAcceptedError may count or not.

Lost on failure: nothing that was accepted. memcached only says which batch is open: without it
batches are smaller. A crash costs one period of the sweep.
Cost of an item, alone: 1 write, 1 delete, and its share of the fold. Of a batch: 1 task, 5 round
trips, and what the join function does.

Routes: POST /tasks/fork-join/<name>/join, .../walk, .../insert; GET /cron/fork-join/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Fork-join queue". What its code loses and doubles, and what ours does instead: docs/adr/0009.
"""

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
from pipelines import epochs as epoch_locks
from pipelines import fork_join_sweeps, outbox
from pipelines import tuning as tunings
from pipelines.clients import Clients
from pipelines.clock import naive
from pipelines.epochs import Entry, Epochs, Shape, Slot
from pipelines.fork_join_folds import Batch, fold_epoch, unpark
from pipelines.fork_join_inserts import (
    LONGEST_GROUP_WAIT_S,
    MOST_GROUP_BYTES,
    MOST_GROUP_ITEMS,
    MOST_ITEM_BYTES,
    Accepted,
    BadItemError,
    DifferentItemError,
    Insertion,
    NotAcceptedError,
    groups,
    insert_group,
)
from pipelines.fork_join_stays import stays_here
from pipelines.fork_join_sweeps import STALE_S, Swept, Walk
from pipelines.group_commit import GroupCommit
from pipelines.tasks import Message, Task
from pipelines.tuning import Limits, Seen, Tuning

__all__ = [
    "Accepted",
    "BadItemError",
    "Batch",
    "DifferentItemError",
    "ForkJoin",
    "NotAcceptedError",
    "fork_join",
]

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741  An item.

LARGEST = 500
LONGEST_PERIOD_S = 3600.0
MOST_KEY_BYTES = 1_200
MOST_REQUEST_ID_CHARS = 200
LOOK_AGAIN_S = 0.01
# A commit whose reply was lost may take effect so much later, behind its joiner.
LOOK_AGAIN_AFTER = datetime.timedelta(seconds=3)


@dataclass(frozen=True)
class Join:
    """Which batch to fold. `is_shared`: writers of other processes found it in memcached.

    No key: whoever asks does not know it, and the joiner finds it with the batch.
    """

    key: Annotated[str, Field(max_length=MOST_KEY_BYTES)]
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

    key: Annotated[str, Field(max_length=MOST_KEY_BYTES)]
    item: str
    parked: str
    topic: str | None = None


@dataclass(frozen=True)
class Outcome:
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
        largest: int = LARGEST,
        shards: int = 1,
        latency_s: float | None = None,
    ) -> None:
        """Declare a queue; see `fork_join`.

        Raises:
            ValueError: it cannot be so.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_-]{1,60}", name):
            raise ValueError(f"a queue's name is of a-z, 0-9, _ and -, not {name!r}")
        if not 0 <= period_s <= LONGEST_PERIOD_S:
            raise ValueError(f"a period lasts from 0 to {LONGEST_PERIOD_S:g} seconds")
        if not 1 <= largest <= 10_000 or not 1 <= shards <= 100:
            raise ValueError("a batch has 1 to 10,000 items, a key 1 to 100 shards")
        if latency_s is not None and latency_s <= 0:
            raise ValueError("a latency is more than 0 seconds")
        self.name = name
        self.join = join
        self.period_s = period_s
        self.largest = largest
        self.shards = shards
        self.limits = Limits(latency_s, period_s, largest, shards) if latency_s else None
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
        request_id: str | None = None,
        is_asked: bool = False,
    ) -> Accepted:
        """Insert an item; return once it is safe.

        Args:
            key: What it is batched by.
            request_id: Makes this insert count once, however often it is made within a day. It
                belongs to one item; fields that its type does not compare may differ.
            is_asked: Keep the join function's result for an hour.

        Raises:
            BadItemError, DifferentItemError: nothing was inserted.
            NotAcceptedError: try again, with the same request id. Without one, it may count.
        """
        insertion = self._insertion(key, item, request_id, is_asked=is_asked)
        return self._group_commit(clients)(insertion)

    def insert_each(
        self,
        clients: Clients,
        items: Sequence[tuple[str, I]],
        *,
        request_ids: Sequence[str] | None = None,
    ) -> list[Accepted | Exception]:
        """Insert pairs of a key and an item, in few commits; tell of each what `insert` would."""
        ids: Sequence[str | None] = request_ids or [None] * len(items)
        answers: list[Accepted | Exception] = [NotAcceptedError()] * len(items)
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
        """Look whether an item could be inserted.

        Raises:
            BadItemError: it could not, and why.
        """
        self._checked(key, item)

    def insert_in_transaction(
        self, clients: Clients, key: str, *items: I, topic: str | None = None
    ) -> str:
        """Insert items of one key in the transaction that this code runs in; return their pack.

        Like every effect of a transaction that may run again after a lost reply, it needs a
        proof of the body's own that it was not done before.

        Args:
            topic: Under which the pack is found as long as it waits.

        Raises:
            NoTransactionError: this is not the body of `transact`.
            BadItemError: nothing was inserted.
        """
        insertions = [self._insertion(key, item) for item in items]
        return stays_here(clients, self).put(insertions, topic)

    def _insertion(
        self, key: str, item: I, request_id: str | None = None, *, is_asked: bool = False
    ) -> Insertion:
        if request_id is not None and not 0 < len(request_id) <= MOST_REQUEST_ID_CHARS:
            raise BadItemError(f"a request id has 1 to {MOST_REQUEST_ID_CHARS} characters")
        insertion = Insertion(key, self._checked(key, item), request_id, is_asked)
        return insertion if request_id is None else replace(insertion, said=self._said(item))

    def _said(self, item: I) -> str:
        """Return what a caller has said of an item: it is the same when a field is added to it.

        Fields that are as by default are left out, and those that are not compared.
        """
        said = self._item.dump_json(item, exclude=self._unsaid, exclude_defaults=True)
        return said.decode()

    def _checked(self, key: str, item: I) -> str:
        """Return an item as it travels."""
        try:
            if not 0 < len(key.encode()) <= MOST_KEY_BYTES:
                raise BadItemError(f"a key has 1 to {MOST_KEY_BYTES} bytes")
            body = self._item.dump_json(item, warnings=False)
            self._item.validate_json(body, strict=True)
        except UnicodeEncodeError as error:
            raise BadItemError("there is half a character in the key") from error
        except (PydanticSerializationError, ValidationError) as error:
            raise BadItemError(f"this is no item of {self.name}: {error}") from error
        if len(body) > MOST_ITEM_BYTES:
            raise BadItemError(f"an item has at most {MOST_ITEM_BYTES} bytes, not {len(body)}")
        return body.decode()

    def slot(self, clients: Clients, key: str) -> Slot:
        """Return where a key's items go now; asked once a commit, for all that come together."""
        if self.shards == 1:
            return Slot(self.name, key)
        tuning = self.tuning(clients, key)
        shards = self.shards if tuning is None else tuning.shards
        return Slot(self.name, key, clients.random.randrange(shards))

    def _group_commit(self, clients: Clients) -> GroupCommit[Insertion, Accepted]:
        return clients.memory.of(
            f"fork-join:commits:{self.name}",
            lambda: GroupCommit(
                lambda insertions: insert_group(clients, self, insertions),
                most=MOST_GROUP_ITEMS,
                most_bytes=MOST_GROUP_BYTES,
                size=lambda insertion: insertion.bytes,
                longest_wait_s=LONGEST_GROUP_WAIT_S,
            ),
        )

    def epochs(self, clients: Clients) -> Epochs:
        """Return the epochs that this process knows of."""
        return clients.memory.of(
            f"fork-join:epochs:{self.name}", lambda: Epochs(self.period_s, self._shape)
        )

    def _shape(self, clients: Clients, key: str) -> Shape:
        tuning = self.tuning(clients, key)
        if tuning is None:
            return Shape(self.period_s, self.largest)
        return Shape(tuning.window_s, tuning.size)

    def tuning(self, clients: Clients, key: str) -> Tuning | None:
        """Return how the batches of a key are, and why; None: as they are declared."""
        if self.limits is None:
            return None
        return tunings.read(clients, self._tuning_name(key), self.limits)

    def _tuning_name(self, key: str) -> str:
        return f"fork-join:tuning:{self.name}:{key}"

    def start(self, clients: Clients, entries: Sequence[Entry]) -> None:
        """See to the tasks of epochs that others can see from now on."""
        new = [entry for entry in entries if entry.is_new and entry.is_shared]
        self._create(clients, [self._joiner(clients, entry, at=entry.due) for entry in new])

    def leave(self, clients: Clients, stays: Sequence[tuple[Entry, PackId]]) -> None:
        """Leave epochs; see to it that what was put there has a joiner still to come."""
        joiners = [self._left(clients, entry, pack) for entry, pack in stays]
        self._create(clients, [joiner for joiner in joiners if joiner is not None])

    def look_again(self, clients: Clients, stays: Sequence[tuple[Entry, PackId]]) -> None:
        """Fold epochs once more in some seconds: what nobody answered for may be committed late."""
        at = naive(clients.clock.now()) + LOOK_AGAIN_AFTER
        joiners = [self._joiner(clients, entry, "doubt", pack.id, at=at) for entry, pack in stays]
        self._create(clients, joiners)

    def _left(self, clients: Clients, entry: Entry, pack: PackId) -> Message | None:
        """Leave an epoch; return the joiner that it needs now."""
        epochs = self.epochs(clients)
        is_missed = epochs.leave(clients, entry)
        if entry.is_new and not entry.is_shared:
            return self._joiner(clients, entry, at=entry.due)
        if is_missed:
            return self._joiner(clients, entry, "late", pack.id)
        if entry.is_full and entry.due > naive(clients.clock.now()):
            epochs.forget(clients, entry.slot, entry.epoch)
            return self._joiner(clients, entry, "full")
        return None

    def wake(self, clients: Clients, stranded: Sequence[str], minute: str) -> None:
        """Create tasks for stranded epochs, of whatever key each is."""
        joins = [Join("", epoch) for epoch in stranded]
        names = [(epoch, "woken", minute) for epoch in stranded]
        self.join_task.enqueue_many(clients, joins, names=names)

    def _joiner(
        self, clients: Clients, entry: Entry, *name: str, at: datetime.datetime | None = None
    ) -> Message:
        join = Join(entry.slot.key, entry.epoch, entry.slot.shard, entry.is_shared)
        return self._message(clients, join, *name, at=at)

    def _message(
        self, clients: Clients, join: Join, *name: str, at: datetime.datetime | None = None
    ) -> Message:
        now = naive(clients.clock.now())
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
        insertion = Insertion(args.key, args.item, request_id=args.parked, topic=args.topic)
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
            is_certain = epoch_locks.close(clients, slot, args.epoch)
            closed = clients.clock.now()
            folded = fold_epoch(clients, self, args.epoch)
        if args.is_shared and not is_certain:
            gone_at = epoch_locks.gone_at(args.epoch, self.period_s)
            self._create(clients, [self._message(clients, args, "again", at=gone_at)])
        if self.limits is not None and folded.items:
            open_s = (naive(closed) - EpochId.parse(args.epoch).opened).total_seconds()
            seen = Seen(
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

    # What became of an item

    def outcome(self, accepted: Accepted) -> Outcome:
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
                return Outcome(True, told.told["results"][position])
        if any(found[pack_key(place)] for place in places):
            return Outcome(False)
        is_parked = found[pack_key(alone.parked.text)] is not None
        return Outcome(not is_parked, is_parked=is_parked)

    def wait(self, clients: Clients, accepted: Accepted, within_s: float) -> Outcome:
        """Wait until an item is folded, not longer than so many seconds."""
        deadline = clients.clock.now() + datetime.timedelta(seconds=within_s)
        while not ((outcome := self.outcome(accepted)).is_folded or outcome.is_parked):
            if clients.clock.now() >= deadline:
                break
            clients.clock.sleep(LOOK_AGAIN_S)
        return outcome

    # Sweep

    def sweep(self, clients: Clients, *, stale_s: float = STALE_S) -> Swept:
        """Wake what has been stranded for so long behind its period."""
        return fork_join_sweeps.sweep(clients, self, stale_s=stale_s)

    def _walk(self, clients: Clients, args: Walk) -> None:
        fork_join_sweeps.walk(clients, self, args)


def fork_join(
    name: str,
    *,
    queue: str,
    period_s: float,
    largest: int = LARGEST,
    shards: int = 1,
    latency_s: float | None = None,
) -> Callable[[Callable[[Clients, Batch, Sequence[I]], Sequence[Any] | None]], ForkJoin[I]]:
    """Declare the function below as the join of a queue; its third parameter's type is the items'.

    Args:
        name: Stands in keys and routes: never change it while work waits.
        queue: The Cloud Tasks queue of its tasks.
        period_s: How long a batch stays open. 0: until the batch before it is folded.
        largest: Items in one transaction; a batch of so many does not wait for its period.
        shards: Batches of one key that are open at a time, for a key that is very hot.
        latency_s: From insert to fold. If given, the three above are the most: period, size and
            shards follow what joiners see, key by key.
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
            largest=largest,
            shards=shards,
            latency_s=latency_s,
        )

    return declare
