"""Batches whose steps a search interleaves: the real code, on the contract of what is below it.

A transaction is one step, and the tasks that it enqueues are rows of the search's Datastore,
created in further steps: a query, the creation, a deletion. The fork-join queue is what its own
search has proved it to be: an insert is a commit and a joiner, and a fold is one guarded commit, or
one transaction that finds what is still there
(tests/rollforward/fork_join/searches/test_fork_join_exhaustively.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from pydantic import TypeAdapter

from rollforward.batches import ClosedError, Completed, callbacks, sweep
from rollforward.batches.adding.creation import create
from rollforward.batches.callbacks import completed
from rollforward.batches.completion import End, cancel_nested, end_members
from rollforward.batches.entities import BatchState
from rollforward.datastore import transactions, versions
from rollforward.datastore.transactions import Transaction, current_transaction
from rollforward.fork_join import Batch, OutcomeUnknownError
from rollforward.runtime.messages import Message
from rollforward.tasks import Reject, hashed_name
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.stepwise import (
    NOON,
    ROWS,
    Call,
    Run,
    commit_if_current,
    rows,
    stepwise,
)

JOIN = "/tasks/join"
_enqueue_callback = callbacks.enqueue
ENDS = TypeAdapter(End)


class Pending(ndb.Model):
    """A task that was committed, and may not exist yet."""

    body = ndb.TextProperty()
    path = ndb.TextProperty()


class Waiting(ndb.Model):
    """An end that is not folded yet."""

    batch = ndb.TextProperty()
    end = ndb.TextProperty()


class Callbacks(ndb.Model):
    """How often the completion of a generation was committed."""

    count = ndb.IntegerProperty(default=0)


class Called(ndb.Model):
    """How often the callback of a generation ran."""

    count = ndb.IntegerProperty(default=0)


class CallsBack(ndb.Model):
    """A mark that callbacks are delivered, and are not only counted; or that their queue is purged
    whenever one comes.
    """


DELIVERED, PURGED = "delivered", "purged"


class Nested(ndb.Model):
    """A mark that some batch is to be nested in another."""


def of_kind(memory: Memory, kind: type[ndb.Model]) -> list[Any]:
    """Return all entities of a kind, by key."""
    keys = [key for key in memory.facts if key.kind() == kind._get_kind()]
    return [memory.get(key) for key in sorted(keys, key=str)]


# Transactions and the tasks they enqueue


class Snapshot(Memory):
    """What a transaction sees: reads show what was there before it, and not its own writes."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.facts)
        self._memory = memory

    def put(self, entity: Any) -> Any:
        return self._memory.put(entity)

    def delete(self, key: Any) -> None:
        self._memory.delete(key)


def transact(body: Callable[[], Any]) -> Any:
    """Run a body as one step, again if its reply was lost; then create what it has enqueued."""

    run = Run.current
    transaction_id = f"{run.process.name}:{run.used}"  # The same in each attempt.

    def inside() -> Any:
        memory = Memory.current
        Memory.current = Snapshot(memory)
        with transactions.inside(Transaction(id=transaction_id)):
            try:
                return body()
            finally:
                Memory.current = memory

    for attempt in range(4):
        try:
            answer = run.ask(Call(ROWS, "transaction"), inside)
        except rpc_errors.ServiceUnavailable:
            if attempt == 3:
                raise
        else:
            break
    relay(run.clients)  # type: ignore[attr-defined]
    return answer


def enqueue(clients: Any, task: Any, args: Any, **options: Any) -> None:
    """Write down a task in a transaction."""
    task.check_registered(clients)
    if _is_callback(task.path) and CallsBack.get_by_id(DELIVERED) is None:
        return
    if task.path == cancel_nested.path and not of_kind(Memory.current, Nested):
        return  # Its task would find nothing.
    body = task.message(args).body.decode()
    name = f"{task.path} {body}"
    if _is_callback(task.path):  # Enqueued again it is another task.
        name = f"{name} {current_transaction().id}"
    Pending(id=name, path=task.path, body=body).put()


def complete(clients: Any, state: BatchState) -> None:
    """Write down that a generation is complete, and how often; then enqueue its callback."""
    if state.callback_path:
        count(Callbacks, completed(state))
    _enqueue_callback(clients, state)


def count(kind: type[Callbacks | Called], args: Completed) -> None:
    key = ndb.Key(kind, args.idempotency_key)
    row = key.get() or kind(key=key)
    row.count += 1
    row.put()


def call(clients: Any, args: Completed) -> None:
    """Be called back, in one step."""
    Run.current.ask(Call(ROWS, "callback"), lambda: count(Called, args))


def _is_callback(path: str) -> bool:
    return path.endswith("/completed")


def relay(clients: Any) -> None:
    """Create the tasks that were committed, then forget them."""
    pending = rows("query", lambda memory: of_kind(memory, Pending))
    if not pending:
        return
    is_purged = any(_is_callback(row.path) for row in pending) and CallsBack.get_by_id(PURGED)
    messages = [
        Message(row.path, "default", row.body.encode(), hashed_name(row.key.id()))
        for row in pending
        if not (is_purged and _is_callback(row.path))
    ]
    clients.tasks.create_many(messages)
    rows("delete", lambda memory: [memory.delete(row.key) for row in pending])


# The queue of ends


def insert(clients: Any, batch: str, end: End) -> None:
    """Insert an end, and create its joiner; an unheard commit may count."""
    run = Run.current
    text = ENDS.dump_json(end).decode()

    def commit(memory: Memory) -> None:
        number = 0
        while memory.get(ndb.Key(Waiting, f"{text}{number}")) is not None:
            number += 1
        memory.put(Waiting(id=f"{text}{number}", batch=batch, end=text))

    try:
        run.ask(Call(ROWS, "commit"), lambda: commit(Memory.current))
    except rpc_errors.ServiceUnavailable as error:
        raise OutcomeUnknownError("made by the search") from error
    # One joiner for each process that inserts: a second one folds nothing.
    joiner = Message(JOIN, "fork-join", batch.encode(), hashed_name("join", run.process.name))
    clients.tasks.create_many([joiner])


def insert_in_transaction(clients: Any, batch: str, end: End) -> None:
    """Insert an end, and a joiner that is created after the commit."""
    text = ENDS.dump_json(end).decode()
    Waiting(id=f"{text}nested", batch=batch, end=text).put()
    Pending(id=f"{JOIN} {text}", path=JOIN, body=batch).put()


def fold(clients: Any, batch: str) -> None:
    """Fold all ends of a batch that are there, by one guarded commit or in one transaction."""
    opened = Batch(batch, "e", NOON.replace(tzinfo=None))

    def waiting() -> list[Any]:
        return [row for row in of_kind(Memory.current, Waiting) if row.batch == batch]

    def body() -> None:
        found = waiting()
        ends = [ENDS.validate_json(row.end) for row in found]
        if ends:
            end_members.join(clients, opened, ends)
        for row in found:
            row.key.delete()

    def guarded() -> bool:
        keys = rows("query", lambda memory: [row.key for row in waiting()])
        stored = [row for row in versions.read_versions(None, keys) if row is not None]
        if not stored:
            return True
        ends = [ENDS.validate_json(row.end) for row, _ in stored]
        puts = end_members.guarded(clients, opened, ends)  # type: ignore[misc]
        if puts is None:
            return False
        commit_if_current(None, puts=puts, deletes=[(row.key, version) for row, version in stored])
        return True

    try:
        is_folded = guarded()
    except rpc_errors.GoogleAPIError:
        is_folded = False
    if not is_folded:
        transact(body)


# The rest


@dataclass(frozen=True)
class Within:
    """A query for a range of keys, as `batches.entities` makes it."""

    kind: type[ndb.Model]
    prefix: str
    after: str

    def fetch(self, limit: int = 10**6, *, keys_only: bool = False) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            lower, upper = self.after or f"{self.prefix}:", f"{self.prefix};"
            matching = of_kind(memory, self.kind)
            inside = [row for row in matching if lower < row.key.id() < upper][:limit]
            return [row.key for row in inside] if keys_only else inside

        return rows("query", effect)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Which:
    """A query for batches that have one value in a property, as `batches.entities` makes it."""

    name: str
    value: str

    def fetch(self, limit: int, *, keys_only: bool = False) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            states = of_kind(memory, BatchState)
            matching = [state for state in states if getattr(state, self.name) == self.value][
                :limit
            ]
            return [state.key for state in matching] if keys_only else matching

        return rows("query", effect)  # type: ignore[no-any-return]


def delivering(
    tasks: Sequence[Any], *, knows: Sequence[str] | None = None
) -> Callable[[Any, Message], None]:
    """Return what delivers tasks: those of a declaration, their creation, and joiners.

    Args:
        knows: The paths of this version of the app, beside those; None: it knows all there are.
    """
    by_path = {task.path: task for task in (*tasks, create, cancel_nested)}

    def deliver(clients: Any, message: Message) -> None:
        Run.current.clients = clients  # type: ignore[attr-defined]
        clients.task_paths = None if knows is None else {*by_path, *knows}
        if message.path == JOIN:
            fold(clients, message.body.decode())
            return
        task = by_path[message.path]
        args = task.read(message.body)
        try:
            task.work(clients, args)
        except (Reject, ClosedError) as error:  # It may be tried once.
            task.on_give_up(clients, args, f"{type(error).__name__}: {error}")

    return deliver


def wake(clients: Any) -> None:
    """Wake all batches that are due, in a queue that is purged no more."""
    ndb.Key(CallsBack, PURGED).delete()
    for key in rows("query", lambda memory: [row.key for row in of_kind(memory, BatchState)]):
        sweep._wake(clients, key.id())


def with_clients(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a process that is no task run transactions."""

    def run(clients: Any) -> Any:
        Run.current.clients = clients  # type: ignore[attr-defined]
        return act(clients)

    return run


@contextlib.contextmanager
def batches_in_steps() -> Iterator[None]:
    """Let the batches' Datastore and queue of ends be the search's."""
    with (
        stepwise(),
        mock.patch("rollforward.batches.entities._within", Within),
        mock.patch("rollforward.outbox.enqueue", enqueue),
        mock.patch("rollforward.batches.adding.populate.transact", transact),
        mock.patch("rollforward.batches.batch.transact", transact),
        mock.patch("rollforward.batches.completion.transact", transact),
        mock.patch("rollforward.batches.callbacks.transact", transact),
        mock.patch("rollforward.batches.sweep.transact", transact),
        mock.patch("rollforward.batches.callbacks.enqueue", complete),
        mock.patch("rollforward.batches.callbacks.read_versions", versions.read_versions),
        mock.patch("rollforward.batches.callbacks.commit_if_current", commit_if_current),
        mock.patch("rollforward.batches.completion.read_versions", versions.read_versions),
        mock.patch("rollforward.batches.completion.batches_in", partial(Which, "parent")),
        mock.patch("rollforward.batches.members.batches_of", partial(Which, "member")),
        mock.patch.object(end_members, "insert", insert),
        mock.patch.object(end_members, "insert_in_transaction", insert_in_transaction),
    ):
        yield
