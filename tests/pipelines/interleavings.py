"""All interleavings of real code: each process may stop between any two calls that it makes.

No threads. A process is a function, and where it stands is the list of answers that it got. To
take its next step it is run anew, each call answered from that list. The first call without an
answer is done in the world, and its answer added to the list; there the process stops, by an
exception that is raised again at every later call. So a `finally` has no more effect than it has
in a process that is killed.

A state is: what memcached holds, what Datastore holds, which tasks were created, whether the
fault is still to come, and where each process stands. States are walked as a graph, each once,
until there is none left. What a call does to what it finds is remembered, so code runs once for
each list of answers, and not once for each state.

What is one step: a call to memcached, the creation of tasks, a query, a get, a commit, and a
whole transaction, since Datastore's are serializable. Each task that is created is a process; it
may begin at once, whenever it is due, and any time later. The clock of a process stands still.

A loop that looks again and again is a circle of the graph and not a count: after a look that
found nothing new a process is where it was before. How long it waits is as open as it can be. It
gives up when nothing that has begun can go on; with the fault TIME_OUT once more, at will.

What is left out, because it leads nowhere else:

- A crash changes nothing for the others, so a process dies right after one of its steps. An
  emptied memcached is noticed by those who ask it, so it is emptied right before a call.
- The creation of tasks comes before all else that could be done: nobody else asks for their
  names, and what they start may start later all the same.
- Deliveries of tasks with the same body are alike: which of them does what is nothing to anybody,
  nor is what a task saw in memcached, once it has made up its mind what to do next.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from unittest import mock

from google.api_core import exceptions as rpc_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb

from pipelines.runtime.messages import Message
from pipelines.runtime.process_state import ProcessState
from tests.pipelines.memory import Memory

T = TypeVar("T")

CRASH, FLUSH, TIME_OUT, DUPLICATE = "crash", "flush", "time-out", "duplicate"
UNHEARD, REPLY_LOST = "unheard", "reply-lost"
FAULTS = (CRASH, FLUSH, TIME_OUT, DUPLICATE, UNHEARD, REPLY_LOST)

CACHE, TASKS, ROWS, WAIT, END = "cache", "tasks", "rows", "wait", "end"
AGAIN, GAVE_UP, FAILED = "again", "gave up", "failed"
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


class Paused(BaseException):
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


@dataclass(frozen=True)
class Raised:
    """A call that ended in an error."""

    error: Exception


@dataclass(frozen=True)
class Call:
    """What a process does next: its port, and what it asks there."""

    port: str
    what: str
    arguments: tuple[Any, ...] = ()


@dataclass
class Place:
    """Where a process stands: the answers that it got, and what it does next."""

    number: int
    process: Process
    answers: tuple[Any, ...]
    call: Call
    before: Place | None = None
    after: dict[Hashable, int] = field(default_factory=dict)

    @property
    def future(self) -> Hashable:
        """Return what all that is still to come of this process depends on."""
        name = self.process.name
        if self.call.port == END:
            return name, self.call
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
            if self.memory is not None and effect is not None:
                self.outcome = self._do(self.memory, effect)
        raise Paused

    def _do(self, memory: Memory, effect: Callable[[], Any]) -> Any:
        self.is_inside = True
        try:
            with memory:
                return effect()
        except Exception as error:
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

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
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


def looks(most_s: float) -> Iterator[float]:
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


# Datastore


def rows(what: str, effect: Callable[[Memory], Any]) -> Any:
    """Do something at once inside of a transaction, and as a step of its own outside."""
    run = Run.current
    if run.is_inside:
        return effect(Memory.current)
    return run.ask(Call(ROWS, what), lambda: effect(Memory.current))


def _get_multi(keys: Sequence[Any]) -> list[Any]:
    return rows("read", lambda memory: [memory.get(key) for key in keys])  # type: ignore[no-any-return]


def _insert_all(client: Any, entities: Sequence[Any]) -> None:
    def effect(memory: Memory) -> None:
        if any(entity.key in memory.facts for entity in entities):
            raise rpc_errors.AlreadyExists("made by the search")
        for entity in entities:
            memory.put(entity)

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
    """A query for a range of keys, as `models.fork_join` makes it."""

    after: str
    before: str

    def fetch(self, most: int, *, keys_only: bool = False) -> list[Any]:
        def effect(memory: Memory) -> list[Any]:
            found = [key for key in memory.facts if key.kind() == "WorkPack"]
            inside = [key for key in found if self.after < key.id() < self.before]
            keys = sorted(inside, key=lambda key: key.id())[:most]
            return keys if keys_only else [memory.get(key) for key in keys]

        return rows("query", effect)  # type: ignore[no-any-return]


@contextlib.contextmanager
def stepwise() -> Iterator[None]:
    """Let the fork-join queue's Datastore be the search's."""
    client = ndb.Client(project="demo-memory", credentials=AnonymousCredentials())
    with (
        client.context(cache_policy=False, global_cache=None, legacy_data=False),
        mock.patch.object(ndb, "get_multi", _get_multi),
        mock.patch.object(ndb.Key, "get", lambda key: _get_multi([key])[0]),
        mock.patch.object(
            ndb.Model, "get_by_id", classmethod(lambda kind, id_: ndb.Key(kind, id_).get())
        ),
        mock.patch.object(
            ndb.Key, "delete", lambda key: rows("delete", lambda memory: memory.delete(key))
        ),
        mock.patch.object(
            ndb.Model, "put", lambda row: rows("put", lambda memory: memory.put(row))
        ),
        mock.patch("models.fork_join._between", KeyRange),
        mock.patch("pipelines.fork_join.insert.insert_all", _insert_all),
        mock.patch("pipelines.fork_join.fold.transact", transact),
        mock.patch("pipelines.fork_join.epochs._looks", looks),
    ):
        yield


# memcached

Held = frozenset[tuple[str, bytes]]


def ask_cache(held: Held, call: Call) -> tuple[Held, Any]:
    """Answer as memcached does, blanks and floors included; return what it holds then, too."""
    key, *rest = call.arguments
    known = dict(held)
    old = known.get(key)
    if call.what == "get":
        return held, old
    if call.what == "add" and old is not None:
        return held, False
    if call.what in ("add", "set"):
        return frozenset({**known, key: rest[0]}.items()), True
    if call.what == "delete":
        return held - {(key, old)}, old is not None
    return _change(known, key, *rest)


def _change(known: dict[str, bytes], key: str, delta: int, first: int | None = None) -> Any:
    old = known.get(key) or (None if first is None else b"%d" % first)
    if old is None:
        return frozenset(known.items()), None
    new = max(0, int(old) + delta)
    width = len(old) if delta < 0 else 0
    return frozenset({**known, key: (b"%d" % new).ljust(width)}.items()), new


# What a caller gets when memcached does not answer; every other call raises.
_FAILURES = {"get": None, "add": False, "set": False, "delete": False, "change": None}
_UNAVAILABLE = Raised(rpc_errors.ServiceUnavailable("made by the search"))


# The search


class State(NamedTuple):
    """Where everything stands: numbers of what memcached and Datastore hold, and so on."""

    held: int
    rows: int
    names: int  # Of all tasks that were ever created.
    left: int  # Faults.
    places: tuple[int, ...]


class Numbers(Generic[T]):
    """Numbers for things, the same for equal ones."""

    def __init__(self) -> None:
        self.known: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def of(self, thing: T, key: Hashable = None) -> int:
        number = self._numbers.setdefault(thing if key is None else key, len(self.known))
        if number == len(self.known):
            self.known.append(thing)
        return number


@dataclass(frozen=True)
class End:
    """How everything ended. `answers` are those of the processes that are no tasks."""

    state: State
    rows: Memory
    held: dict[str, bytes]
    answers: dict[str, Call]
    is_broken: bool


class Search:
    """All ways in which processes can go on, with one fault of a kind, or none."""

    def __init__(
        self,
        processes: Sequence[Process],
        deliver: Callable[[Any, Message], None],
        *,
        fault: str = "",
        most: int = 5_000_000,
    ) -> None:
        """Search.

        Args:
            deliver: Runs a task.
            most: States; more is an error, since a search that is cut off proves nothing.
        """
        self.fault = fault
        self._deliver = deliver
        self._most = most
        self._places: list[Place] = []
        self._same: dict[Hashable, int] = {}
        self._roots: dict[str, int] = {}
        self._helds: Numbers[Held] = Numbers()
        self._names: Numbers[frozenset[str]] = Numbers()
        self._memories: Numbers[Memory] = Numbers()
        self._steps: dict[tuple[str, int, int], tuple[int, int]] = {}
        roots = [self._root(process) for process in processes]
        nothing = self._helds.of(frozenset()), self._memories.of(Memory(), Memory().state())
        left = int(fault != "")
        self._first = State(*nothing, self._names.of(frozenset()), left, _ordered(roots))
        self._from: dict[State, tuple[State, str] | None] = {self._first: None}

    @property
    def states(self) -> int:
        return len(self._from)

    def ends(self) -> Iterator[End]:
        """Walk through all states; return those in which nobody has anything left to do."""
        waiting = [self._first]
        while waiting:
            state = waiting.pop()
            is_end = True
            for label, following in self._following(state):
                is_end = False
                if following not in self._from:
                    self._from[following] = (state, label)
                    waiting.append(following)
            if is_end:
                yield self._end(state)
            assert len(self._from) <= self._most, "the search does not come to its end"

    def heal(self, end: End, processes: Sequence[Process]) -> End:
        """Go on from an end, one process after the other, and nothing broken."""
        roots = [self._root(process) for process in processes]
        state = end.state._replace(left=0, places=_ordered([*end.state.places, *roots]))
        following = [state]
        while following:
            state = following[0]
            # Not where a process only looks again.
            following = [other for _, other in self._following(state) if other != state]
        return self._end(state)

    def story(self, end: End) -> str:
        """Return the steps that lead to an end."""
        steps, state = [], end.state
        while (link := self._from[state]) is not None:
            state, step = link
            steps.append(step)
        return "\n".join(reversed(steps))

    def _end(self, state: State) -> End:
        places = [self._places[number] for number in state.places]
        answers = {place.process.name: place.call for place in places}
        memory, held = self._memories.known[state.rows], self._helds.known[state.held]
        return End(state, memory, dict(held), answers, self.fault != "" and not state.left)

    # Steps

    def _following(self, state: State) -> Iterator[tuple[str, State]]:
        """Return all states that one step can lead to, faults included."""
        places = [self._places[number] for number in dict.fromkeys(state.places)]
        creating = [place for place in places if place.call.port == TASKS]
        for place in creating[:1] or places:
            if place.call.port != END and (place.has_begun or self._may_begin(place, places)):
                yield from self._steps_of(state, place)
        if creating:
            return
        waiting = [place for place in places if place.call.port == WAIT]
        is_stuck = all(
            place.call.port == END or not place.has_begun or self._is_blocked(place, state)
            for place in places
        )
        for place in waiting:
            if is_stuck or (self.fault == TIME_OUT and state.left):
                left = state.left if is_stuck else 0
                after = self._next(place, GAVE_UP, GAVE_UP)
                yield self._label(place, GAVE_UP), self._moved(state, place, after, left=left)
        if self.fault == DUPLICATE and state.left:
            yield from self._duplicates(state)

    @staticmethod
    def _may_begin(place: Place, places: Sequence[Place]) -> bool:
        process = place.process
        others = [other for other in places if other is not place and not other.process.is_task]
        if process.is_last:
            return all(other.call.port == END for other in others)
        first = [other for other in others if other.process.name == process.follows]
        return all(other.has_begun for other in first)

    def _duplicates(self, state: State) -> Iterator[tuple[str, State]]:
        """Begin a delivery of a task that was delivered, or is on its way, once before."""
        names = self._names.known[state.names]
        for root in {self._roots[name.partition(" ")[2]] for name in names}:
            again = state._replace(left=0, places=_ordered([*state.places, root]))
            for label, following in self._steps_of(again, self._places[root]):
                yield f"{label}, delivered twice", following

    def _steps_of(self, state: State, place: Place) -> Iterator[tuple[str, State]]:
        """Return what the next step of a process can lead to."""
        if place.call.port == WAIT:
            # To look again is no step of its own: nobody notices when it is decided.
            here = self._places[self._looking_again(place)]
            state, place = self._moved(state, place, here.number), here
        after, following = self._step(state, place)
        yield self._label(place), following
        if not state.left:
            return
        if self.fault == CRASH and self._places[after].call.port != END:
            yield self._label(place, "and dies"), self._dead(following, after)
        elif self.fault == FLUSH and place.call.port == CACHE and self._helds.known[state.held]:
            emptied = state._replace(held=self._helds.of(frozenset()), left=0)
            label = self._label(place, "after memcached was emptied")
            yield label, self._step(emptied, place)[1]
        elif self.fault in (UNHEARD, REPLY_LOST):
            changed = self._effect(state, place)[0] if self.fault == REPLY_LOST else state
            failed = self._next(place, FAILED, _FAILURES.get(place.call.what, _UNAVAILABLE))
            yield self._label(place, self.fault), self._moved(changed, place, failed, left=0)

    def _step(self, state: State, place: Place) -> tuple[int, State]:
        """Do what a process does next; return where it stands then, and the state."""
        changed, after = self._effect(state, place)
        return after, self._moved(changed, place, after)

    def _effect(self, state: State, place: Place) -> tuple[State, int]:
        """Do what a process does next; return the state, and where it will stand."""
        if place.call.port == CACHE:
            held, after = self._ask_cache(place, state.held)
            return state._replace(held=held), after
        if place.call.port == ROWS:
            rows, after = self._ask_rows(place, state.rows)
            return state._replace(rows=rows), after
        known = self._names.known[state.names]
        fresh = {_named(task): task for task in place.call.arguments if _named(task) not in known}
        answers = [_named(task) in fresh for task in place.call.arguments]
        born = [self._task(task) for task in fresh.values()]
        names = self._names.of(known.union(fresh))
        state = state._replace(names=names, places=_ordered([*state.places, *born]))
        return state, self._next(place, ("", *answers), answers)

    def _moved(self, state: State, place: Place, after: int, left: int | None = None) -> State:
        """Return the state in which a process stands at another place."""
        others = list(state.places)
        others.remove(place.number)
        following = self._places[after]
        if not following.process.is_task or following.call.port != END:
            others.append(after)
        elif following.call.what == "raised":
            assert self.fault in (UNHEARD, REPLY_LOST), following.call
            others.append(self._root(following.process))
        left = state.left if left is None else left
        return state._replace(left=left, places=_ordered(others))

    def _dead(self, state: State, number: int) -> State:
        """Return the state in which a process is dead; if it was a task's, that comes again."""
        place = self._places[number]
        if place.process.is_task:
            after = self._root(place.process)
        else:
            after = self._next(place, ("dead",), None, Call(END, "died"))
        return self._moved(state, place, after, left=0)

    @staticmethod
    def _label(place: Place, how: str = "") -> str:
        arguments = [getattr(each, "body", each) for each in place.call.arguments]
        return f"{place.process.name}: {place.call.what}{arguments} {how}".strip()

    # What a call does, remembered

    def _ask_cache(self, place: Place, held: int) -> tuple[int, int]:
        key = (CACHE, place.number, held)
        if key not in self._steps:
            now, answer = ask_cache(self._helds.known[held], place.call)
            self._steps[key] = self._helds.of(now), self._next(place, ("", answer), answer)
        return self._steps[key]

    def _ask_rows(self, place: Place, rows: int) -> tuple[int, int]:
        key = (ROWS, place.number, rows)
        if key not in self._steps:
            memory = self._memories.known[rows].branch()
            answer = Run(place.process, place.answers, memory).go().outcome
            now = rows if isinstance(answer, Raised) else self._memories.of(memory, memory.state())
            self._steps[key] = now, self._next(place, ("", repr(answer)), answer)
        return self._steps[key]

    def _is_blocked(self, place: Place, state: State) -> bool:
        """Return whether a process waits, and another look would find nothing new."""
        if place.call.port != WAIT:
            return False
        here, held = self._places[self._looking_again(place)], state.held
        while here.call.port == CACHE:
            held, after = self._ask_cache(here, held)
            here = self._places[after]
        return here is place and held == state.held

    def _looking_again(self, place: Place) -> int:
        """Return where a loop goes on: the first time anew, then where it went on before."""
        (since,) = place.call.arguments
        if since is None:
            return self._next(place, AGAIN, AGAIN)
        while len(place.answers) > since:
            assert place.before is not None
            place = place.before
        return place.number

    # Places

    def _root(self, process: Process) -> int:
        if process.name not in self._roots:
            self._roots[process.name] = self._place(process, (), None)
        return self._roots[process.name]

    def _task(self, task: Message) -> int:
        run = functools.partial(_delivered, self._deliver, task)
        return self._root(Process(_body(task), run, is_task=True))

    def _next(self, place: Place, key: Hashable, answer: Any, call: Call | None = None) -> int:
        """Return where a process stands after an answer."""
        if key not in place.after:
            answers = (*place.answers, answer)
            place.after[key] = self._place(place.process, answers, place, call)
        return place.after[key]

    def _place(
        self,
        process: Process,
        answers: tuple[Any, ...],
        before: Place | None,
        call: Call | None = None,
    ) -> int:
        call = call or Run(process, answers).go().call
        place = Place(len(self._places), process, answers, call, before)
        number = self._same.setdefault(place.future, place.number)
        if number == place.number:
            self._places.append(place)
        return number


def _ordered(places: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(places))


def _body(task: Message) -> str:
    return task.body.decode()


def _named(task: Message) -> str:
    return f"{task.name} {_body(task)}"


def _delivered(deliver: Callable[[Any, Message], None], task: Message, clients: Any) -> None:
    deliver(clients, task)
