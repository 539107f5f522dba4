"""Real code, run one call at a time: the processes of the model checker, and what they call.

A process is a function, and where it stands is the list of answers that it got. To take its next
step it is run again from the start, each call answered from that list. The first call without an
answer is done in the world, and its answer added to the list; there the process stops, by an
exception that is raised again at every later call. So a `finally` has no more effect than it has
in a process that is killed.

What is one step: a call to memcached, the creation of tasks, a query, a get, a commit, and a
whole transaction, since Datastore's are serializable. The clock of a process stands still.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import random
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from google.api_core import exceptions as rpc_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb

from rollforward.app_code import ControlFlow
from rollforward.datastore.bodies import PlainRow
from rollforward.runtime.messages import Message
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.memory_datastore import Memory, one_by_one, versions_of_packs
from tests.infra.model_checking.live_state import LiveState

CACHE, TASKS, ROWS, WAIT, END = "cache", "tasks", "rows", "wait", "end"
AGAIN, GAVE_UP, FAILED = "again", "gave up", "failed"
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
FLUSHED_WITHIN_S = 60


class Paused(ControlFlow):
    """A process stops here."""


@dataclass(frozen=True)
class Process:
    """Something that is run: `run` gets its clients."""

    name: str
    run: Callable[[Any], Any]
    at: datetime.datetime = NOON
    is_task: bool = False
    follows: str = ""  # Does not begin before this one has.
    is_last: bool = False  # Does not begin before all others have ended that are no tasks.
    # Kinds of objects that never change; if set, its places are compared by `live_state.py`.
    constants: tuple[type, ...] = ()


@dataclass(frozen=True)
class Raised:
    """A call that ended in an error."""

    error: BaseException


@dataclass(frozen=True)
class Call:
    """The next call of a process: its port, and its question there."""

    port: str
    what: str
    arguments: tuple[Any, ...] = ()


# One process


class Run:
    """One run of a process, up to where its answers end."""

    current: Run

    def __init__(
        self, process: Process, answers: Sequence[Any], memory: Memory | None = None
    ) -> None:
        self.process = process
        self.answers = answers
        self.memory = memory
        self.used = 0
        self.call = Call(END, "died")
        self.outcome: Any = None
        self.is_inside = False
        self.is_stopped = False
        self.has_given_up = False
        self.looks_from: list[int | None] = []
        self.live: Hashable = None  # What its frames held as it stopped.

    def go(self) -> Run:
        """Run until the first call without an answer; with a memory, do that one."""
        Run.current = self
        clients = SimpleNamespace(
            cache=_Cache(self),
            tasks=_Tasks(self),
            clock=_Clock(self),
            random=random.Random(self.process.name),
            process_state=ProcessState(),
            relay=SimpleNamespace(send=lambda clients, rows: None),
            datastore=None,
            task_paths=None,
        )
        clients.new_id = lambda: f"{clients.random.getrandbits(128):032x}"
        try:
            self.call = Call(END, "returned", (self.process.run(clients),))
        except Paused:
            pass
        except Exception as error:
            self.call = Call(END, "raised", (repr(error),))
        return self

    def ask(self, call: Call, effect: Callable[[], Any] | None = None) -> Any:
        """Return the answer to a call, or stop here."""
        if not self.is_stopped and self.used < len(self.answers):
            answer = self.answers[self.used]
            self.used += 1
            if isinstance(answer, Raised):
                raise answer.error
            return answer
        if not self.is_stopped:
            self.is_stopped, self.call = True, call
            if self.process.constants and self.memory is None:
                self.live = self._live()
            if self.memory is not None and effect is not None:
                self.outcome = self._do(self.memory, effect)
        raise Paused

    def _live(self) -> Hashable:
        assert not self.looks_from, "a loop that looks again is searched by its answers"
        reader = LiveState(self.process.constants, self)
        return reader.of_frames(sys._getframe(2), until=Run.go.__code__)

    def _do(self, memory: Memory, effect: Callable[[], Any]) -> Any:
        self.is_inside = True
        try:
            with memory:
                return effect()
        except Paused:
            raise
        except BaseException as error:  # The end of a delivery of a flow is one, too.
            return Raised(error)
        finally:
            self.is_inside = False


class _Cache:
    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, what: str) -> Callable[..., Any]:
        return lambda *arguments: self._run.ask(Call(CACHE, what, arguments))


class _Tasks:
    def __init__(self, run: Run) -> None:
        self._run = run

    def create(self, message: Message) -> bool:
        return self._run.ask(Call(TASKS, "create", (message,)))[0]  # type: ignore[no-any-return]

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        if not messages:
            return []
        return self._run.ask(Call(TASKS, "create", tuple(messages)))  # type: ignore[no-any-return]

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        try:
            return list(self.create_many(messages))
        except rpc_errors.GoogleAPICallError as error:
            return [error] * len(messages)


class _Clock:
    def __init__(self, run: Run) -> None:
        self._run = run

    def now(self) -> datetime.datetime:
        return self._run.process.at

    def sleep(self, seconds: float) -> None:
        if self._run.looks_from:
            wait(self._run)


def pauses(most_s: float) -> Iterator[float]:
    """Stand in for a loop's pauses: it ends when the search says so."""
    run = Run.current
    run.looks_from.append(None)
    run.has_given_up = False
    try:
        while not run.has_given_up:
            yield 0.0
    finally:
        run.looks_from.pop()


def wait(run: Run) -> None:
    """Wait in a loop; from the second time on it is the same as the first time."""
    answer = run.ask(Call(WAIT, "wait", (run.looks_from[-1],)))
    if run.looks_from[-1] is None:
        run.looks_from[-1] = run.used
    run.has_given_up = answer == GAVE_UP


# Local states


@dataclass
class LocalState:
    """The place of a process: the answers that it got, and its next call."""

    number: int
    process: Process
    answers: tuple[Any, ...]
    call: Call
    before: LocalState | None = None
    live: Hashable = None
    after: dict[Hashable, int] = field(default_factory=dict)

    @property
    def future(self) -> Hashable:
        """Return what all that is still to come of this process depends on."""
        name = self.process.name
        if self.call.port == END:
            return name, self.call
        if self.live is not None:
            return name, self.live
        if not self.process.is_task or self.before is None:
            return name, self.number
        asked = None if self.call.port == WAIT else self.call
        last = self.answers[-1] if self.before.call.port == WAIT else None
        return name, self.call.port, asked, self.before.call.what, last, self.stored

    @property
    def stored(self) -> tuple[str, ...]:
        """Return what Datastore and Cloud Tasks have answered."""
        if self.before is None:
            return ()
        is_kept = self.before.call.port in (ROWS, TASKS)
        return (*self.before.stored, *([repr(self.answers[-1])] if is_kept else []))

    @property
    def has_begun(self) -> bool:
        return bool(self.answers) or self.call.port == END


class LocalStates:
    """The places of processes, each once: a tree for each process, by its answers."""

    def __init__(self, deliver: Callable[[Any, Message], None]) -> None:
        """Know of nothing yet.

        Args:
            deliver: Runs a task.
        """
        self.roots: dict[str, int] = {}
        self._deliver = deliver
        self._known: list[LocalState] = []
        self._identity: dict[Hashable, int] = {}

    def __getitem__(self, number: int) -> LocalState:
        return self._known[number]

    def root(self, process: Process) -> int:
        """Return where a process stands before it begins."""
        if process.name not in self.roots:
            self.roots[process.name] = self._number_of(process, (), None)
        return self.roots[process.name]

    def of_task(self, task: Message) -> int:
        """Return where the delivery of a task stands before it begins."""
        run = functools.partial(_delivered, self._deliver, task)
        return self.root(Process(task.body.decode(), run, is_task=True))

    def after(self, local: LocalState, key: Hashable, answer: Any, call: Call | None = None) -> int:
        """Return where a process stands after an answer."""
        if key not in local.after:
            answers = (*local.answers, answer)
            local.after[key] = self._number_of(local.process, answers, local, call)
        return local.after[key]

    def looking_again(self, local: LocalState) -> int:
        """Return where a loop goes on: the first time on a new path, then where it did before."""
        (since,) = local.call.arguments
        if since is None:
            return self.after(local, AGAIN, AGAIN)
        while len(local.answers) > since:
            assert local.before is not None
            local = local.before
        return local.number

    def _number_of(
        self,
        process: Process,
        answers: tuple[Any, ...],
        before: LocalState | None,
        call: Call | None = None,
    ) -> int:
        run = None if call else Run(process, answers).go()
        call, live = (run.call, run.live) if run else (call, None)
        local = LocalState(len(self._known), process, answers, call, before, live)
        number = self._identity.setdefault(local.future, local.number)
        if number == local.number:
            self._known.append(local)
        return number


def _delivered(deliver: Callable[[Any, Message], None], task: Message, clients: Any) -> None:
    deliver(clients, task)


# Datastore


def rows(what: str, effect: Callable[[Memory], Any], expected: tuple[Any, ...] = ()) -> Any:
    """Do something at once inside of a transaction, and as a step of its own outside.

    Without the `expected` version of a key nothing is done.
    """
    run = Run.current
    if run.is_inside:
        return effect(Memory.current)
    return run.ask(Call(ROWS, what, expected), lambda: effect(Memory.current))


def _get_multi(keys: Sequence[Any]) -> list[Any]:
    return rows("read", lambda memory: [memory.get(key) for key in keys])  # type: ignore[no-any-return]


def _insert_rows(client: Any, rows: Sequence[PlainRow]) -> None:
    _insert_all(client, [row.entity() for row in rows])


def _insert_all(client: Any, entities: Sequence[Any]) -> None:
    def effect(memory: Memory) -> None:
        if any(entity.key in memory.facts for entity in entities):
            raise rpc_errors.AlreadyExists("made by the search")
        for entity in entities:
            memory.put(entity)

    rows("commit", effect)


def _read_versions(client: Any, keys: Sequence[Any]) -> list[Any]:
    """Read entities; the version of each is what is stored. Each run gets entities of its own."""
    found = rows("read", lambda memory: [memory.facts.get(key) for key in keys])
    return [
        (fact[0](key=key, **fact[1]), fact[2]) if fact else None
        for key, fact in zip(keys, found, strict=True)
    ]


def commit_if_current(client: Any, *, puts: Sequence[Any], deletes: Sequence[Any] = ()) -> None:
    """Write entities that are as they were read, or none; a version is what is stored."""
    expected = [*((entity.key, version) for entity, version in puts), *deletes]

    def effect(memory: Memory) -> None:
        for key, version in expected:
            there = memory.facts.get(key)
            if version is None and there is not None:
                raise rpc_errors.AlreadyExists("made by the search")
            if version is not None and there is None:
                raise rpc_errors.NotFound("made by the search")
            if there is not None and there[2] != version:
                raise rpc_errors.FailedPrecondition("made by the search")
        for entity, _ in puts:
            memory.put(entity)
        for key, _ in deletes:
            memory.delete(key)

    rows("commit", effect)


def transact(body: Callable[[], Any]) -> Any:
    """Run a body as one step; again, as the real one does, when its reply was lost."""
    run = Run.current
    for _ in range(4):
        with contextlib.suppress(rpc_errors.ServiceUnavailable):
            return run.ask(Call(ROWS, "transaction"), body)
    raise rpc_errors.ServiceUnavailable("made by the search")


@dataclass(frozen=True)
class KeyRange:
    """A query for a range of keys, as `rollforward.fork_join.entities` makes it."""

    after: str
    before: str

    def fetch(self, most: int, *, keys_only: bool = False) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            found = [key for key in memory.facts if key.kind() == "WorkPack"]
            inside = [key for key in found if self.after < key.id() < self.before]
            keys = sorted(inside, key=lambda key: key.id())[:most]
            return keys if keys_only else [memory.get(key) for key in keys]

        return rows("query", effect)  # type: ignore[no-any-return]


def _let_flushers_end() -> None:
    """Wait for threads on which tests before this one still store what processes had gathered.

    They would store it here. Each is named after its owner ("sums:tally"), and ends within seconds.
    So does the recovery of an app that a test has served, which would sweep here.
    """
    for thread in threading.enumerate():
        if thread.daemon and (":" in thread.name or thread.name == "recovery"):
            thread.join(FLUSHED_WITHIN_S)
            assert not thread.is_alive(), f"a test before this one has left {thread.name} running"


@contextlib.contextmanager
def stepwise() -> Iterator[None]:
    """Let the fork-join queue's Datastore be the search's."""
    _let_flushers_end()
    client = ndb.Client(project="demo-memory", credentials=AnonymousCredentials())
    with (
        client.context(cache_policy=False, global_cache=None, legacy_data=False),
        mock.patch.object(ndb, "get_multi", _get_multi),
        one_by_one(),
        mock.patch.object(ndb.Key, "get", lambda key: _get_multi([key])[0]),
        mock.patch.object(
            ndb.Key, "delete", lambda key: rows("delete", lambda memory: memory.delete(key))
        ),
        mock.patch.object(
            ndb.Model, "put", lambda row: rows("put", lambda memory: memory.put(row))
        ),
        mock.patch("rollforward.fork_join.entities._between", KeyRange),
        mock.patch("rollforward.fork_join.insert.insert_rows", _insert_rows),
        mock.patch("rollforward.fork_join.fold.transact", transact),
        versions_of_packs(_read_versions),
        mock.patch("rollforward.fork_join.fold.commit_if_current", commit_if_current),
        mock.patch("rollforward.datastore.versions.read_versions", _read_versions),
        mock.patch("rollforward.fork_join.batching.epochs.pauses", pauses),
        mock.patch("rollforward.runtime.advisory_lock.pauses", pauses),
    ):
        yield
