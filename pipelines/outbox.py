"""The outbox: tasks that are enqueued by a transaction, with the data, or not at all.

    def body() -> None:
        order.put()
        outbox.enqueue(clients, ship, Ship(order.key.id()))

    transact(body)

Cloud Tasks cannot join a Datastore transaction. So the task is a row in the same commit.
After the commit the process creates the task and deletes its row, behind the answer, as many
at a time as have come together (at most 100 a call). What a crash left, the sweep creates:
a row is deleted only after its task exists. So a task is created if and only if its
transaction was committed, never before its data can be read, and mostly some milliseconds later.

The task's name is made of the row's key, so creating it twice makes one. A name of your own
works as it does in `Task.enqueue`: "already exists" means that somebody enqueued it before.

`hold` keeps the row until the task's own transaction calls `release`. Then what waits can be
seen (`topic`), its age is known, and the effect commits with its proof.

Lost on failure: nothing. A crash costs one period of the sweep. A task that Cloud Tasks refuses
blocks no other; after ten minutes it is parked as a dead task, with its reason. A held row stays
even then.

Routes: POST /tasks/outbox/drain; GET /cron/outbox/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010:
transactional tasks, which the platform had then. Why not its successors': docs/adr/0007.
"""

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
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

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
from pipelines import dead_tasks
from pipelines.clock import naive
from pipelines.tasks import (
    MOST_PER_CALL,
    REFUSALS,
    Message,
    Task,
    hashed_name,
    task,
)

if TYPE_CHECKING:
    from pipelines.clients import Clients

log = logging.getLogger(__name__)

A = TypeVar("A")

# A row that its own process should have relayed by now.
STALE_S = 15.0
SWEEP_S = 60.0
# A refusal may be a deployment under way: the queue comes after the code.
PARK_AFTER_S = 600.0
LEASE_S = 60.0
MOST_PER_DRAIN = 1_000
MOST_WAITING = 10_000
MOST_COUNTED = 1_000
# Between two calls of a process's relay, while there is something to relay.
GATHER_S = 0.02
_LISTENER = "outbox"


class Relay(Protocol):
    """How a process creates the tasks that it has committed."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        """Create the tasks of some committed rows, now or soon."""
        ...


class AtOnce:
    """Relays before the caller goes on: for scripts, and for tests that break each call."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        relay(clients, rows)


class Behind:
    """Relays on a thread of its own: the answer does not wait for it.

    A lone row goes out at once. What comes while its call is under way, or just behind it, goes
    out with the next, so calls grow with the load: a call costs more than its tasks do.
    The thread ends with the process, after its last call; what is left then is the sweep's.
    """

    def __init__(self, pause: Callable[[float], None] = time.sleep) -> None:
        """Relay nothing yet.

        Args:
            pause: Waits between two calls; its argument is in seconds.
        """
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: list[OutboxTask] = []
        self._is_draining = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outbox")

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        with self._lock:
            room = MOST_WAITING - len(self._waiting)
            self._waiting.extend(rows[:room])
            if self._is_draining:
                return
            self._is_draining = True
        try:
            self._thread.submit(self._drain, clients)
        except RuntimeError:
            log.info("this process ends; %d rows are left to the sweep", len(rows))

    def _drain(self, clients: Clients) -> None:
        while rows := self._next():
            try:
                with clients.context():
                    relay(clients, rows)
            except Exception:
                log.exception("%d rows are left to the sweep", len(rows))
            self._pause(GATHER_S)

    def _next(self) -> list[OutboxTask]:
        with self._lock:
            rows = self._waiting[:MOST_PER_CALL]
            del self._waiting[:MOST_PER_CALL]
            self._is_draining = bool(rows)
            return rows


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


def hold(
    clients: Clients,
    task: Task[A],
    make_args: Callable[[str], A],
    *,
    topic: str,
    at: datetime.datetime | None = None,
) -> str:
    """Enqueue a task whose row stays until the task's own transaction releases it.

    Args:
        make_args: Returns the task's arguments, given the row that it must release. Called
            twice: the row is named after what the task does, too.
        topic: Under which the row is found as long as it waits.

    Returns:
        The row: gone once the task has done its work.
    """
    return _outgoing(clients).put(
        lambda row: task.message(make_args(row), at=at), held=True, topic=topic
    )


def release(row: str) -> None:
    """Delete a held row, in the transaction that does what its task asked for."""
    outbox_key(row).delete()


@dataclass
class _Outgoing:
    """The rows of one transaction."""

    clients: Clients
    transaction: Transaction
    created: datetime.datetime
    rows: list[OutboxTask] = field(default_factory=list)
    doubtful: list[OutboxTask] = field(default_factory=list)  # Of tries that may be committed.

    def put(self, make: Callable[[str], Message], *, held: bool, topic: str | None = None) -> str:
        """Write a row; `make` returns its message, given the row.

        A body that runs again writes the same rows. One that then decides otherwise takes no
        row away from the try before, which may be committed: the key tells what is asked for.
        """
        draft = RowId(self.transaction.id, self.created, len(self.rows), held)
        row = replace(draft, digest=_digest(make(draft.text), topic)).text
        message = make(row)
        entity = OutboxTask(
            key=outbox_key(row),
            path=message.path,
            queue=message.queue,
            body=message.body.decode(),
            name=message.name,
            at=naive(message.at) if message.at else None,
            topic=topic,
        )
        entity.put()
        self.rows.append(entity)
        return row

    def retried(self, cause: Exception) -> None:
        self.doubtful += self.rows
        self.rows = []

    def given_up(self) -> None:
        """Leave what may be committed to the sweep."""

    def committed(self) -> None:
        rows = {row.key: row for row in self.rows}
        if doubtful := [row.key for row in self.doubtful if row.key not in rows]:
            rows.update((row.key, row) for row in ndb.get_multi(doubtful) if row is not None)
        if rows:
            self.clients.relay.send(self.clients, list(rows.values()))


def _digest(message: Message, topic: str | None) -> str:
    """Return what tells two messages apart; not their time, which moves on between two tries."""
    parts = [message.path, message.queue, message.body.decode(), message.name, topic]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _outgoing(clients: Clients) -> _Outgoing:
    transaction = current_transaction()
    now = naive(clients.clock.now())
    return transaction.listener(_LISTENER, lambda: _Outgoing(clients, transaction, now))


# Relay, after the commit


@dataclass(frozen=True)
class Relayed:
    """What became of some rows: tasks made, and rows that were refused, each with its reason."""

    created: int
    refused: Sequence[tuple[OutboxTask, Exception]]


def relay(clients: Clients, rows: Sequence[OutboxTask]) -> Relayed:
    """Create the tasks of rows, and delete the rows whose task exists.

    "Already exists" is as good as created: the name is the row's own.
    """
    now = naive(clients.clock.now())
    answers = clients.tasks.create_each([_message(row, now) for row in rows])
    told = list(zip(rows, answers, strict=True))
    exist = [(row, answer) for row, answer in told if not isinstance(answer, Exception)]
    ndb.delete_multi([row.key for row, _ in exist if not _id(row).held])
    # A held row is asked for again while its task waits: that one exists makes none.
    created = sum(answer is True or not _id(row).held for row, answer in exist)
    if created:
        clients.cache.count(_rate_key(clients.clock.now()), created, ttl_s=600)
    if errors := [answer for answer in answers if isinstance(answer, Exception)]:
        log.warning("%d of %d rows stay in the outbox: %s", len(errors), len(rows), errors[0])
    refused = [(row, answer) for row, answer in told if isinstance(answer, REFUSALS)]
    return Relayed(created, refused)


def _message(row: OutboxTask, now: datetime.datetime) -> Message:
    at = row.at.replace(tzinfo=datetime.UTC) if row.at else None
    return Message(row.path, row.queue, row.body.encode(), _task_name(row, now), at)


def _task_name(row: OutboxTask, now: datetime.datetime) -> str:
    """Return the task's name: its own, or one that only this row can give.

    A held row may outlive its task (somebody purged the queue). From ten minutes on it gets a
    name an hour, so that such a task is created anew, and a slow queue is not flooded.
    """
    if row.name is not None:
        return str(row.name)
    row_id = _id(row)
    age_s = _age_s(row_id, now)
    wake = int(age_s // 3600) + 1 if row_id.held and age_s >= PARK_AFTER_S else 0
    return hashed_name("outbox", row.key.id(), wake)


def _id(row: OutboxTask) -> RowId:
    return RowId.parse(row.key.id())


def _rate_key(at: datetime.datetime) -> str:
    return f"outbox:relayed:{at:%Y%m%dT%H%M}"


# Sweep


@dataclass(frozen=True)
class Swept:
    """What one call of the sweep did: tasks created, or partitions handed to tasks."""

    created: int = 0
    partitions: int = 0


@dataclass(frozen=True)
class Drain:
    """Which partition to drain, from where, and in whose walk."""

    partition: Annotated[str, Field(pattern="^[0-9a-f]$")]
    walk: Annotated[str, Field(min_length=1, max_length=64)]
    after: Annotated[str, Field(max_length=200)] = ""


def sweep(clients: Clients) -> Swept:
    """Relay what has waited too long.

    An idle outbox costs one query. A few rows are relayed here; for many, each partition gets a
    task, and those work side by side.
    """
    keys = outbox_rows().fetch(MOST_PER_CALL + 1, keys_only=True)
    if len(keys) <= MOST_PER_CALL:
        return Swept(created=_relay_due(clients, keys))
    walk = clients.new_id()
    many = [Drain(partition, walk) for partition in PARTITIONS]
    names = [(walk, args.partition, "") for args in many]
    return Swept(partitions=sum(drain.enqueue_many(clients, many, names=names)))


@task("/tasks/outbox/drain", queue="outbox")
def drain(clients: Clients, args: Drain) -> None:
    """Walk through a partition, oldest row first; pass on to another task what is too much."""
    if not transact(lambda: _take(clients, args)):
        return
    keys = outbox_rows(args.partition, after=args.after).fetch(MOST_PER_DRAIN, keys_only=True)
    for i in range(0, len(keys), MOST_PER_CALL):
        _relay_due(clients, keys[i : i + MOST_PER_CALL])
    if len(keys) < MOST_PER_DRAIN:
        transact(lambda: _give_back(args))
        return
    after = keys[-1].id()
    drain.enqueue(
        clients,
        Drain(args.partition, args.walk, after),
        name=(args.walk, args.partition, after),
    )


def _take(clients: Clients, args: Drain) -> bool:
    """Take a partition's lease, in a transaction; False: another walk has it."""
    now = naive(clients.clock.now())
    longest = now + datetime.timedelta(seconds=2 * LEASE_S)
    lease = lease_key(args.partition).get()
    # An end far ahead is from a clock that was wrong, and means nothing.
    if lease is not None and lease.owner != args.walk and now < lease.ends <= longest:
        return False
    ends = now + datetime.timedelta(seconds=LEASE_S)
    OutboxLease(key=lease_key(args.partition), owner=args.walk, ends=ends).put()
    return True


def _give_back(args: Drain) -> None:
    lease = lease_key(args.partition).get()
    if lease is not None and lease.owner == args.walk:
        lease.key.delete()


def _relay_due(clients: Clients, keys: Sequence[Any]) -> int:
    now = naive(clients.clock.now())
    due = [key for key in keys if _is_due(RowId.parse(key.id()), now)]
    rows = [row for row in ndb.get_multi(due) if row is not None and not _is_early(row, now)]
    if not rows:
        return 0
    relayed = relay(clients, rows)
    for row, error in relayed.refused:
        if _age_s(_id(row), now) >= PARK_AFTER_S:
            _park(clients, row, error)
    return relayed.created


def _is_due(row: RowId, now: datetime.datetime) -> bool:
    """Tell whether a row has waited so long that somebody else must care for it.

    A held row's task mostly exists and waits in its queue, so it is looked at ever more
    rarely: when it is 5, 10, 20 minutes old and so on, twice, in case one sweep was missed.
    """
    age_s = _age_s(row, now)
    if age_s < STALE_S:
        return False
    return not row.held or _doublings(age_s) > _doublings(age_s - 2 * SWEEP_S)


def _is_early(row: OutboxTask, now: datetime.datetime) -> bool:
    """Tell whether a row has a task, or had one, whose own time is still to come.

    What was purged before its time is woken when the row's age has doubled after that.
    """
    return row.at is not None and row.at > now and _age_s(_id(row), now) >= PARK_AFTER_S


def _doublings(age_s: float) -> int:
    """Return how often an age has doubled since a 32nd of ten minutes, when it is 1."""
    return int(max(0.0, age_s) * 32 / PARK_AFTER_S).bit_length()


def _age_s(row: RowId, now: datetime.datetime) -> float:
    """Return a row's age. One from a clock far ahead counts as old."""
    age_s = (now - row.created).total_seconds()
    return age_s if age_s > -SWEEP_S else PARK_AFTER_S


def _park(clients: Clients, row: OutboxTask, error: Exception) -> None:
    """Keep a dead task of a row. A held row stays: what it stands for is not done."""
    dead_tasks.park(
        clients,
        path=row.path,
        queue=row.queue,
        task_name=row.name or hashed_name("outbox", row.key.id()),
        body=row.body.encode(),
        reason=f"Cloud Tasks refuses it. {type(error).__name__}: {error}",
    )
    if not _id(row).held:
        row.key.delete()


# What people see


@dataclass(frozen=True)
class Depth:
    """How much waits, and for how long. `is_more`: it was not counted to the end."""

    waiting: int
    is_more: bool
    oldest_s: float
    held_oldest_s: float
    relayed_per_s: float


def depth(clients: Clients) -> Depth:
    """Return how many rows wait, for how long, and the rate of the last full minute.

    Held rows have an age of their own: they wait for their tasks, and the others for nothing.
    """
    now = clients.clock.now()
    firsts = [outbox_rows(p).get_async(keys_only=True) for p in PARTITIONS]
    keys = outbox_rows().fetch(MOST_COUNTED + 1, keys_only=True)
    oldest = [key for first in firsts if (key := first.get_result()) is not None]
    rows = [RowId.parse(key.id()) for key in (*keys, *oldest)]
    ages = {held: [_age_s(r, naive(now)) for r in rows if r.held is held] for held in (False, True)}
    relayed = clients.cache.get(_rate_key(now - datetime.timedelta(minutes=1)))
    return Depth(
        waiting=min(len(keys), MOST_COUNTED),
        is_more=len(keys) > MOST_COUNTED,
        oldest_s=max([0.0, *ages[False]]),
        held_oldest_s=max([0.0, *ages[True]]),
        relayed_per_s=int(relayed or 0) / 60,
    )
