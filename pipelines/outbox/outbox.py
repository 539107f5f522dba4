"""The outbox. What and why: the package's docstring."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from google.cloud import ndb
from pydantic import Field

from models.outbox import (
    PARTITIONS,
    OutboxLease,
    OutboxTask,
    RowId,
    lease_key,
    outbox_key,
    outbox_rows,
)
from models.transactions import Transaction, current_transaction, transact
from pipelines.runtime.cache import counted
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc
from pipelines.runtime.messages import Message
from pipelines.runtime.wakes import CLOCK_SKEW_S, Round
from pipelines.tasks import dead_tasks
from pipelines.tasks.cloud_tasks import MAX_PER_CALL
from pipelines.tasks.declaration import Task, hashed_name, task
from pipelines.tasks.errors import PERMANENT_ERRORS

log = logging.getLogger(__name__)

A = TypeVar("A")

# A row that its own process should have relayed by now.
STALE_S = 15.0
# A refusal may be a deployment under way: the queue comes after the code.
PARK_AFTER_S = 600.0
LEASE_S = 60.0
# A walk that was asked for and has not begun: its queue may stand still.
ASKED_S = 600.0
MAX_PER_DRAIN = 1_000
MAX_WAITING = 10_000
MAX_COUNTED = 1_000
# Between two calls of a process's relay, while there is something to relay.
LINGER_S = 0.02
# What Cloud Tasks or Datastore did not answer for, and what may be committed late, is tried again
# after so long; then it is left to the sweep.
AGAIN_S = (1, 3, 5)
_HOOK = _SWEEP = "outbox"
_NOWHERE = "/tasks/nowhere"


class InlineRelay:
    """Relays before the caller goes on: for scripts, and for tests that break each call."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        relay(clients, rows)

    def look(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        if found := _committed(rows):
            relay(clients, found)


def by_timer(seconds: float, act: Callable[[], None]) -> None:
    """Do something later, unless the process ends before."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


@dataclass
class _Errand:
    """A row to relay; `in_doubt`: nobody knows whether it is committed."""

    row: OutboxTask
    in_doubt: bool = False
    tries: int = 0


class BackgroundRelay:
    """Relays on a thread of its own: the answer does not wait for it.

    A lone row goes out at once. What comes while its call is under way, or just behind it, goes
    out with the next, so calls grow with the load: a call costs more than its tasks do. What nobody
    answered for is tried again some seconds later, a few times. The thread ends with the process,
    after its last call; what is left then is the sweep's.
    """

    def __init__(
        self,
        pause: Callable[[float], None] = time.sleep,
        later: Callable[[float, Callable[[], None]], None] = by_timer,
    ) -> None:
        """Relay nothing yet.

        Args:
            pause: Waits between two calls; its argument is in seconds.
            later: Does something after some seconds, on another thread.
        """
        self._pause = pause
        self._later = later
        self._lock = threading.Lock()
        self._waiting: list[_Errand] = []
        self._delayed: list[list[_Errand]] = []  # By the second from now in which they are due.
        self._is_draining = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        self._add(clients, [_Errand(row) for row in rows])

    def look(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        self._add(clients, [_Errand(row, in_doubt=True) for row in rows])

    def _add(self, clients: Clients, errands: Sequence[_Errand]) -> None:
        with self._lock:
            room = MAX_WAITING - len(self._waiting) - sum(map(len, self._delayed))
            self._waiting.extend(errands[: max(0, room)])
            if self._is_draining or not self._waiting:
                return
            self._is_draining = True
        try:
            self._thread.submit(self._drain, clients)
        except RuntimeError:
            log.info("this process ends; %d rows are left to the sweep", len(errands))

    def _drain(self, clients: Clients) -> None:
        while errands := self._next():
            left: Sequence[_Errand] = errands
            try:
                with clients.context():
                    left = _run(clients, errands)
            except Exception:
                log.exception("%d rows are not relayed yet", len(errands))
            self._delay(clients, left)
            self._pause(LINGER_S)

    def _next(self) -> list[_Errand]:
        with self._lock:
            errands = self._waiting[:MAX_PER_CALL]
            del self._waiting[:MAX_PER_CALL]
            self._is_draining = bool(errands)
            return errands

    def _delay(self, clients: Clients, errands: Sequence[_Errand]) -> None:
        with self._lock:
            is_ticking = bool(self._delayed)
            for errand in errands:
                if errand.tries < len(AGAIN_S):
                    wait_s = AGAIN_S[errand.tries]
                    errand.tries += 1
                    self._delayed += [[] for _ in range(wait_s - len(self._delayed))]
                    self._delayed[wait_s - 1].append(errand)
            if is_ticking or not self._delayed:
                return
        self._tick_in_a_second(clients)

    def _tick_in_a_second(self, clients: Clients) -> None:
        try:
            self._later(1, lambda: self._tick(clients))
        except RuntimeError:
            log.info("this process ends; what nobody answered for is left to the sweep")

    def _tick(self, clients: Clients) -> None:
        with self._lock:
            due = self._delayed.pop(0)
            is_ticking = bool(self._delayed)
        if is_ticking:
            self._tick_in_a_second(clients)
        self._add(clients, due)


def _run(clients: Clients, errands: Sequence[_Errand]) -> list[_Errand]:
    """Relay what is committed; return what nobody answered for, or is not committed yet."""
    doubtful = {errand.row.key for errand in errands if errand.in_doubt}
    found = {row.key for row in _committed([e.row for e in errands if e.in_doubt])}
    there = [errand for errand in errands if errand.row.key not in doubtful - found]
    if not there:
        return list(errands)
    for errand in there:
        errand.in_doubt = False
    unanswered = {row.key for row in relay(clients, [e.row for e in there]).unanswered}
    return [e for e in errands if e.in_doubt or e.row.key in unanswered]


def _committed(rows: Sequence[OutboxTask]) -> list[OutboxTask]:
    """Return those of some rows that are in Datastore."""
    return [row for row in ndb.get_multi([row.key for row in rows]) if row is not None]


# Enqueue, in a transaction


def enqueue(
    clients: Clients,
    task: Task[A],
    args: A,
    *,
    name: Sequence[str | int] | None = None,
    delay_s: float = 0,
    at: datetime.datetime | None = None,
) -> None:
    """Enqueue a task in the transaction that this code runs in; arguments as of Task.enqueue.

    Raises:
        NoTransactionError: this is not the body of `transact`.
        BadArgumentsError, TooLargeError: nothing was enqueued.
    """
    message = task.message(args, name=name, at=task.due(clients, delay_s, at))
    _outgoing(clients).put(lambda row: message, held=False)


def enqueue_with_ack(
    clients: Clients,
    task: Task[A],
    make_args: Callable[[str], A],
    *,
    tag: str,
    at: datetime.datetime | None = None,
) -> str:
    """Enqueue a task whose row stays until the task's own transaction releases it.

    Args:
        make_args: Returns the task's arguments, given the row that it must release. Called
            twice: the row is named after what the task does, too.
        tag: Under which the row is found as long as it waits.

    Returns:
        The row: gone once the task has done its work.

    Raises:
        NoTransactionError, BadArgumentsError, TooLargeError: as of `enqueue`.
    """
    due = task.due(clients, 0, at)
    return _outgoing(clients).put(
        lambda row: task.message(make_args(row), at=due), held=True, tag=tag
    )


def ack(row: str) -> None:
    """Delete an unacked row, in the transaction that does what its task asked for."""
    outbox_key(row).delete()


@dataclass
class _Outgoing:
    """The rows of one transaction."""

    clients: Clients
    transaction: Transaction
    created: datetime.datetime
    rows: list[OutboxTask] = field(default_factory=list)
    doubtful: list[OutboxTask] = field(default_factory=list)  # Of tries that may be committed.

    def put(self, make: Callable[[str], Message], *, held: bool, tag: str | None = None) -> str:
        """Write a row; `make` returns its message, given the row.

        A body that runs again writes the same rows. One that then decides otherwise takes no
        row away from the try before, which may be committed: the key tells what is asked for.
        """
        draft = RowId(self.transaction.id, self.created, len(self.rows), held)
        row = replace(draft, digest=_digest(make(draft.text), tag)).text
        message = make(row)
        entity = OutboxTask(
            key=outbox_key(row),
            path=message.path,
            queue=message.queue,
            body=message.body.decode(),
            name=message.name,
            at=naive_utc(message.at) if message.at else None,
            tag=tag,
        )
        entity.put()
        self.rows.append(entity)
        return row

    def on_retry(self, cause: Exception) -> None:
        self.doubtful += self.rows
        self.rows = []

    def on_give_up(self) -> None:
        """Look for what may be committed all the same."""
        rows = {row.key: row for row in (*self.doubtful, *self.rows)}
        if rows and self.transaction.doubt is not None:
            self.clients.relay.look(self.clients, list(rows.values()))

    def on_commit(self) -> None:
        rows = {row.key: row for row in self.rows}
        doubtful = {row.key: row for row in self.doubtful if row.key not in rows}
        if rows:
            self.clients.relay.send(self.clients, list(rows.values()))
        if doubtful:
            self.clients.relay.look(self.clients, list(doubtful.values()))


def _digest(message: Message, tag: str | None) -> str:
    """Return what tells two messages apart; not their time, which moves on between two tries."""
    parts = [message.path, message.queue, message.body.decode(), message.name, tag]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _outgoing(clients: Clients) -> _Outgoing:
    transaction = current_transaction()
    now = naive_utc(clients.clock.now())
    return transaction.hook(_HOOK, lambda: _Outgoing(clients, transaction, now))


# Relay, after the commit


@dataclass(frozen=True)
class RelayResult:
    """What became of some rows.

    `created` tasks were made; `refused` are the rows that Cloud Tasks does not take, each with its
    reason; `unanswered` are those of which it does not say what became.
    """

    created: int
    refused: Sequence[tuple[OutboxTask, Exception]]
    unanswered: Sequence[OutboxTask]


def relay(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
    """Create the tasks of rows, and delete the rows whose task exists.

    "Already exists" is as good as created: the name is the row's own.
    """
    now = naive_utc(clients.clock.now())
    answers = clients.tasks.create_each([_message(row, now) for row in rows])
    told = list(zip(rows, answers, strict=True))
    exist = [(row, answer) for row, answer in told if not isinstance(answer, Exception)]
    ndb.delete_multi([row.key for row, _ in exist if not _id(row).held])
    # An unacked row is asked for again while its task waits: that one exists makes none.
    created = sum(answer is True or not _id(row).held for row, answer in exist)
    if created:
        clients.cache.incr(_rate_key(clients.clock.now()), created, ttl_s=600)
    failed = [(row, answer) for row, answer in told if isinstance(answer, Exception)]
    if failed:
        log.warning("%d of %d rows stay in the outbox: %s", len(failed), len(rows), failed[0][1])
    refused = [(row, error) for row, error in failed if isinstance(error, PERMANENT_ERRORS)]
    unanswered = [row for row, error in failed if not isinstance(error, PERMANENT_ERRORS)]
    return RelayResult(created, refused, unanswered)


def create_later(clients: Clients, messages: Sequence[Message]) -> None:
    """Create tasks that Cloud Tasks did not take just now, after the response, in a few tries.

    They are in no row: what they are for must be found without them, too.
    """
    transaction, now = Transaction(), naive_utc(clients.clock.now())
    rows = [
        OutboxTask(
            key=outbox_key(RowId(transaction.id, now, number, held=False).text),
            path=message.path,
            queue=message.queue,
            body=message.body.decode(),
            name=message.name,
            at=naive_utc(message.at) if message.at else None,
        )
        for number, message in enumerate(messages)
    ]
    clients.relay.send(clients, rows)


def _message(row: OutboxTask, now: datetime.datetime) -> Message:
    at = row.at.replace(tzinfo=datetime.UTC) if row.at else None
    # A row that was made by hand may lack anything: it is refused, or parked when it is delivered.
    path, queue, body = row.path or _NOWHERE, row.queue or "", row.body or ""
    return Message(path, queue, body.encode(), _task_name(row, now), at)


def _task_name(row: OutboxTask, now: datetime.datetime) -> str:
    """Return the task's name: its own, or one that only this row can give.

    An unacked row may outlive its task (somebody purged the queue). From ten minutes on, and not
    before its time, it gets a name an hour, so that such a task is created again, and a slow queue
    is not flooded.
    """
    if row.name is not None:
        return str(row.name)
    row_id = _id(row)
    age_s = _age_s(row_id, now)
    is_old = age_s >= PARK_AFTER_S and (row.at is None or row.at <= now)
    wake = int(age_s // 3600) + 1 if row_id.held and is_old else 0
    return hashed_name("outbox", row.key.id(), wake)


def _id(row: OutboxTask) -> RowId:
    return RowId.read(row.key.id())


def _rate_key(at: datetime.datetime) -> str:
    return f"outbox:relayed:{at:%Y%m%dT%H%M}"


# Sweep


@dataclass(frozen=True)
class SweepResult:
    """What one call of the sweep did: tasks created, and partitions handed to tasks."""

    created: int = 0
    partitions: int = 0


@dataclass(frozen=True)
class Drain:
    """Which partition to drain, from where, in whose walk, and in which round of the sweep."""

    partition: Annotated[str, Field(pattern="^[0-9a-f]$")]
    walk: Annotated[str, Field(min_length=1, max_length=64)]
    after: Annotated[str, Field(max_length=1500)] = ""
    began: datetime.datetime | None = None
    since: datetime.datetime | None = None
    stale_s: float = STALE_S


def sweep(clients: Clients, *, stale_s: float = STALE_S) -> SweepResult:
    """Relay what has waited too long.

    An idle outbox costs one query. The oldest hundred rows are relayed here; when there are more,
    their partitions get a task each, and those work side by side.

    Args:
        stale_s: How old a row is that its own process should have relayed.
    """
    look = _Look(Round.begin(clients, _SWEEP), stale_s)
    keys = outbox_rows().fetch(MAX_PER_CALL + 1, keys_only=True)
    busy: list[str] = []
    if len(keys) > MAX_PER_CALL:
        keys, busy = look.oldest()
    relayed = _relay_due(clients, look, keys)
    partitions = _hand_over(clients, look, busy)
    # What was neither answered for nor handed over is due in the next round, too.
    if not relayed.unanswered and partitions == len(busy):
        look.round.end()
    return SweepResult(relayed.created, partitions)


@dataclass(frozen=True)
class _Look:
    """What a round of the sweep takes for due."""

    round: Round
    stale_s: float

    def is_due(self, row: RowId) -> bool:
        """Return whether a row has waited so long that somebody else must care for it.

        The task of an unacked row mostly exists and waits in its queue: looked at ever more rarely.
        """
        if row.held:
            return self.round.is_due(row.created, stale_s=self.stale_s)
        return _age_s(row, self.round.now) >= self.stale_s

    def is_young(self, row: RowId) -> bool:
        """Return whether a row, and all behind it in its partition, are left to their processes."""
        return 0 <= (self.round.now - row.created).total_seconds() < self.stale_s

    def oldest(self) -> tuple[list[Any], list[str]]:
        """Return the keys of the oldest rows that are due, and the partitions that have more."""
        asked = [
            (partition, outbox_rows(partition).fetch_async(MAX_PER_CALL, keys_only=True))
            for partition in PARTITIONS
        ]
        found = {partition: future.get_result() for partition, future in asked}
        due = [key for keys in found.values() for key in keys if self.is_due(_row_id(key))]
        due.sort(key=lambda key: _row_id(key).created)
        mine, others = due[:MAX_PER_CALL], set(due[MAX_PER_CALL:])
        return mine, [
            partition
            for partition, keys in found.items()
            if not others.isdisjoint(keys)
            or (len(keys) == MAX_PER_CALL and not self.is_young(_row_id(keys[-1])))
        ]


def _hand_over(clients: Clients, look: _Look, partitions: Sequence[str]) -> int:
    """Give each partition a walk, unless it has one; return how many got one."""
    keys = [lease_key(partition) for partition in partitions]
    leases = dict(zip(partitions, ndb.get_multi(keys), strict=True))
    free = [partition for partition, lease in leases.items() if not _is_taken(clients, lease)]
    if not free:
        return 0
    walk, now, since = clients.new_id(), look.round.now, look.round.since
    many = [Drain(p, walk, began=now, since=since, stale_s=look.stale_s) for p in free]
    ndb.put_multi([_lease(clients, args, ASKED_S) for args in many])
    try:
        drain.enqueue_many(clients, many, names=[(walk, args.partition, "") for args in many])
    except Exception:
        ndb.delete_multi([lease_key(partition) for partition in free])
        raise
    return len(free)


@task("/tasks/outbox/drain", queue="outbox")
def drain(clients: Clients, args: Drain) -> None:
    """Walk through a partition, oldest row first; pass on to another task what is too much."""
    if not transact(lambda: _take(clients, args)):
        return
    look = _Look(
        Round.of(_SWEEP, args.began or naive_utc(clients.clock.now()), args.since), args.stale_s
    )
    keys = outbox_rows(args.partition, after=args.after).fetch(MAX_PER_DRAIN, keys_only=True)
    for i in range(0, len(keys), MAX_PER_CALL):
        _relay_due(clients, look, keys[i : i + MAX_PER_CALL])
    if len(keys) < MAX_PER_DRAIN:
        transact(lambda: _give_back(args))
        return
    after = str(keys[-1].id())
    drain.enqueue(clients, replace(args, after=after), name=(args.walk, args.partition, after))


def _take(clients: Clients, args: Drain) -> bool:
    """Take a partition's lease, in a transaction; False: another walk has it."""
    lease = lease_key(args.partition).get()
    if lease is not None and lease.owner != args.walk and _is_taken(clients, lease):
        return False
    _lease(clients, args, LEASE_S).put()
    return True


def _is_taken(clients: Clients, lease: OutboxLease | None) -> bool:
    now = naive_utc(clients.clock.now())
    # An end far ahead is from a clock that was wrong, and means nothing.
    longest = now + datetime.timedelta(seconds=2 * ASKED_S)
    return lease is not None and now < lease.ends <= longest


def _lease(clients: Clients, args: Drain, lasts_s: float) -> OutboxLease:
    ends = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=lasts_s)
    return OutboxLease(key=lease_key(args.partition), owner=args.walk, ends=ends)


def _give_back(args: Drain) -> None:
    lease = lease_key(args.partition).get()
    if lease is not None and lease.owner == args.walk:
        lease.key.delete()


def _relay_due(clients: Clients, look: _Look, keys: Sequence[Any]) -> RelayResult:
    now = naive_utc(clients.clock.now())
    due = [key for key in keys if look.is_due(_row_id(key))]
    rows = [row for row in ndb.get_multi(due) if row is not None]
    if not rows:
        return RelayResult(0, [], [])
    relayed = relay(clients, rows)
    for row, error in relayed.refused:
        if _age_s(_id(row), now) >= PARK_AFTER_S:
            _park(clients, row, error)
    return relayed


def _row_id(key: Any) -> RowId:
    return RowId.read(key.id())


def _age_s(row: RowId, now: datetime.datetime) -> float:
    """Return a row's age. One from a clock far ahead counts as old."""
    age_s = (now - row.created).total_seconds()
    return age_s if age_s > -CLOCK_SKEW_S else PARK_AFTER_S


def _park(clients: Clients, row: OutboxTask, error: Exception) -> None:
    """Keep a dead task of a row. An unacked row stays: what it stands for is not done."""
    dead_tasks.park(
        clients,
        path=row.path or "",
        queue=row.queue or "",
        task_name=row.name or hashed_name("outbox", row.key.id()),
        body=(row.body or "").encode(),
        reason=f"Cloud Tasks refuses it. {type(error).__name__}: {error}",
    )
    if not _id(row).held:
        row.key.delete()


# What people see


@dataclass(frozen=True)
class Depth:
    """How much waits, and for how long. `is_truncated`: it was not counted to the end."""

    waiting: int
    is_truncated: bool
    oldest_s: float
    oldest_unacked_s: float
    relayed_per_s: float


def depth(clients: Clients) -> Depth:
    """Return how many rows wait, for how long, and the rate of the last full minute.

    Unacked rows have an age of their own: they wait for their tasks, and the others for nothing.
    """
    now = clients.clock.now()
    firsts = [outbox_rows(p).get_async(keys_only=True) for p in PARTITIONS]
    keys = outbox_rows().fetch(MAX_COUNTED + 1, keys_only=True)
    oldest = [key for first in firsts if (key := first.get_result()) is not None]
    rows = [_row_id(key) for key in (*keys, *oldest)]
    ages = {
        held: [_age_s(r, naive_utc(now)) for r in rows if r.held is held] for held in (False, True)
    }
    relayed = clients.cache.get(_rate_key(now - datetime.timedelta(minutes=1)))
    return Depth(
        waiting=min(len(keys), MAX_COUNTED),
        is_truncated=len(keys) > MAX_COUNTED,
        oldest_s=max([0.0, *ages[False]]),
        oldest_unacked_s=max([0.0, *ages[True]]),
        relayed_per_s=(counted(relayed) or 0) / 60,
    )
