"""An explicit-state model checker for real code: all interleavings of processes, with a fault.

Each process may stop between any two calls that it makes; `stepwise` runs it so, without threads. A
state of the whole is: what memcached holds, what Datastore holds, which tasks
were created, whether the fault is still to come, and the local state of each process. States are
searched as a graph, each once, until there is none left. What a call does to what it finds is
remembered, so code runs once for each local state, and not once for each state of the whole.

Each task that is created is a process; it may begin at once, whenever it is due, and any time
later.

A loop that looks again and again is a circle of the graph and not a count: after a look that
found nothing new a process is where it was before. How long it waits is as open as it can be. It
gives up when nothing that has begun can go on; with the fault TIME_OUT once more, at will.

What is left out, because it leads nowhere else:

- A crash changes nothing for the others, so a process dies right after one of its steps. An
  emptied memcached is noticed by a process that asks it, so it is emptied right before a call.
- Partial-order reduction: the creation of tasks comes before all else that could be done. No
  other process asks for their names, and what they start may start later all the same.
- Partial-order reduction, too: a compare-and-set whose row has changed since is made at once. It is
  refused whenever it is made, and changes nothing for others. That holds where no row is ever again
  what it was (`versions_recur`). Its process takes no other step in any history, so the fault that
  may hit it is searched there as well.
- Symmetry reduction: deliveries of tasks with the same body are interchangeable, and a value read
  from memcached leaves the state of a task once it no longer decides the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from google.api_core import exceptions as rpc_errors

from rollforward.runtime.messages import Message
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.stepwise import (
    CACHE,
    END,
    FAILED,
    GAVE_UP,
    ROWS,
    TASKS,
    WAIT,
    Call,
    LocalState,
    LocalStates,
    Process,
    Raised,
    Run,
)

T = TypeVar("T")

CRASH, FLUSH, TIME_OUT, DUPLICATE = "crash", "flush", "time-out", "duplicate"
UNHEARD, REPLY_LOST = "unheard", "reply-lost"
FAULTS = (CRASH, FLUSH, TIME_OUT, DUPLICATE, UNHEARD, REPLY_LOST)


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
    """A state of the whole: numbers of the contents of memcached and Datastore, and so on."""

    held: int
    rows: int
    names: int  # Of all tasks that were ever created.
    left: int  # Faults.
    local_states: tuple[int, ...]


class Step(NamedTuple):
    """A step from a state to the next: the place of its process, and the way."""

    local_state: int
    how: str = ""


class Interner(Generic[T]):
    """Interner for things, the same for equal ones."""

    def __init__(self) -> None:
        self.known: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number_of(self, thing: T, key: Hashable = None) -> int:
        number = self._numbers.setdefault(thing if key is None else key, len(self.known))
        if number == len(self.known):
            self.known.append(thing)
        return number


@dataclass(frozen=True)
class End:
    """An end of the whole. `answers` are those of the processes that are no tasks."""

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
        versions_recur: bool = True,
    ) -> None:
        """Search.

        Args:
            deliver: Runs a task.
            versions_recur: Whether a row may be again what it was before.
            most: States; more is an error, since a search that is cut off proves nothing.
        """
        self.fault = fault
        self._most = most
        self._versions_recur = versions_recur
        self._locals = LocalStates(deliver)
        self._caches: Interner[Held] = Interner()
        self._names: Interner[frozenset[str]] = Interner()
        self._memories: Interner[Memory] = Interner()
        self._steps: dict[tuple[str, int, int], tuple[int, int]] = {}
        roots = [self._locals.root(process) for process in processes]
        nothing = (
            self._caches.number_of(frozenset()),
            self._memories.number_of(Memory(), Memory().state()),
        )
        left = int(fault != "")
        self._first = State(*nothing, self._names.number_of(frozenset()), left, _ordered(roots))
        self._from: dict[State, tuple[State, Step] | None] = {self._first: None}

    @property
    def states(self) -> int:
        return len(self._from)

    def ends(self) -> Iterator[End]:
        """Walk through all states; return those in which no process has anything left to do."""
        waiting = [self._first]
        while waiting:
            state = waiting.pop()
            is_end = True
            for step, following in self._following(state):
                is_end = False
                if following not in self._from:
                    self._from[following] = (state, step)
                    waiting.append(following)
            if is_end:
                yield self._end(state)
            assert len(self._from) <= self._most, "the search does not come to its end"

    def heal(self, end: End, processes: Sequence[Process]) -> End:
        """Go on from an end, one process after the other, and nothing broken."""
        roots = [self._locals.root(process) for process in processes]
        state = end.state._replace(left=0, local_states=_ordered([*end.state.local_states, *roots]))
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
            steps.append(self._told(step))
        return "\n".join(reversed(steps))

    def _end(self, state: State) -> End:
        local_states = [self._locals[number] for number in state.local_states]
        answers = {local.process.name: local.call for local in local_states}
        memory, held = self._memories.known[state.rows], self._caches.known[state.held]
        return End(state, memory, dict(held), answers, self.fault != "" and not state.left)

    # Steps

    def _following(self, state: State) -> Iterator[tuple[Step, State]]:
        """Return all states that one step can lead to, faults included."""
        local_states = [self._locals[number] for number in dict.fromkeys(state.local_states)]
        creating = [local for local in local_states if local.call.port == TASKS]
        refused = [local for local in local_states if self._is_refused(local, state.rows)]
        for local in creating[:1] or refused[:1] or local_states:
            if local.call.port != END and (local.has_begun or self._may_begin(local, local_states)):
                yield from self._steps_of(state, local)
        if creating or refused:
            return
        waiting = [local for local in local_states if local.call.port == WAIT]
        is_stuck = all(
            local.call.port == END or not local.has_begun or self._is_blocked(local, state)
            for local in local_states
        )
        for local in waiting:
            if is_stuck or (self.fault == TIME_OUT and state.left):
                left = state.left if is_stuck else 0
                after = self._locals.after(local, GAVE_UP, GAVE_UP)
                yield Step(local.number, GAVE_UP), self._moved(state, local, after, left=left)
        if self.fault == DUPLICATE and state.left:
            yield from self._duplicates(state)

    def _is_refused(self, local: LocalState, rows: int) -> bool:
        """Return whether a compare-and-set has lost its race, for good."""
        if self._versions_recur or local.call.port != ROWS or not local.call.arguments:
            return False
        key, version = local.call.arguments
        if version is None:
            return False  # An insert: the row that is there may be deleted again.
        there = self._memories.known[rows].facts.get(key)
        return there is not None and there[2] != version

    @staticmethod
    def _may_begin(local: LocalState, local_states: Sequence[LocalState]) -> bool:
        process = local.process
        others = [
            other for other in local_states if other is not local and not other.process.is_task
        ]
        if process.is_last:
            return all(other.call.port == END for other in others)
        first = [other for other in others if other.process.name == process.follows]
        return all(other.has_begun for other in first)

    def _duplicates(self, state: State) -> Iterator[tuple[Step, State]]:
        """Begin a delivery of a task that was delivered, or is on its way, once before."""
        names = self._names.known[state.names]
        for root in {self._locals.roots[name.partition(" ")[2]] for name in names}:
            again = state._replace(left=0, local_states=_ordered([*state.local_states, root]))
            for step, following in self._steps_of(again, self._locals[root]):
                yield step._replace(how=f"{step.how}, delivered twice"), following

    def _steps_of(self, state: State, local: LocalState) -> Iterator[tuple[Step, State]]:
        """Return what the next step of a process can lead to."""
        if local.call.port == WAIT:
            # To look again is no step of its own: no other process sees when it is decided.
            here = self._locals[self._locals.looking_again(local)]
            state, local = self._moved(state, local, here.number), here
        after, following = self._step(state, local)
        yield Step(local.number), following
        if not state.left:
            return
        if self.fault == CRASH and self._locals[after].call.port != END:
            yield Step(local.number, "and dies"), self._dead(following, after)
        elif self.fault == FLUSH and local.call.port == CACHE and self._caches.known[state.held]:
            emptied = state._replace(held=self._caches.number_of(frozenset()), left=0)
            emptying = Step(local.number, "after memcached was emptied")
            yield emptying, self._step(emptied, local)[1]
        elif self.fault in (UNHEARD, REPLY_LOST):
            changed = self._effect(state, local)[0] if self.fault == REPLY_LOST else state
            failed = self._locals.after(local, FAILED, _FAILURES.get(local.call.what, _UNAVAILABLE))
            yield Step(local.number, self.fault), self._moved(changed, local, failed, left=0)

    def _step(self, state: State, local: LocalState) -> tuple[int, State]:
        """Do what a process does next; return where it stands then, and the state."""
        changed, after = self._effect(state, local)
        return after, self._moved(changed, local, after)

    def _effect(self, state: State, local: LocalState) -> tuple[State, int]:
        """Do what a process does next; return the state, and where it will stand."""
        if local.call.port == CACHE:
            held, after = self._ask_cache(local, state.held)
            # Not by `_replace` in what most steps do: it took a fifth of a search.
            return State(held, state.rows, state.names, state.left, state.local_states), after
        if local.call.port == ROWS:
            rows, after = self._ask_rows(local, state.rows)
            return State(state.held, rows, state.names, state.left, state.local_states), after
        known = self._names.known[state.names]
        fresh = {_named(task): task for task in local.call.arguments if _named(task) not in known}
        answers = [_named(task) in fresh for task in local.call.arguments]
        born = [self._locals.of_task(task) for task in fresh.values()]
        names = self._names.number_of(known.union(fresh))
        state = state._replace(names=names, local_states=_ordered([*state.local_states, *born]))
        return state, self._locals.after(local, ("", *answers), answers)

    def _moved(self, state: State, local: LocalState, after: int, left: int | None = None) -> State:
        """Return the state in which a process stands elsewhere."""
        others = list(state.local_states)
        others.remove(local.number)
        following = self._locals[after]
        if not following.process.is_task or following.call.port != END:
            others.append(after)
        elif following.call.what == "raised":
            assert self.fault in (UNHEARD, REPLY_LOST), following.call
            others.append(self._locals.root(following.process))
        left = state.left if left is None else left
        return State(state.held, state.rows, state.names, left, _ordered(others))

    def _dead(self, state: State, number: int) -> State:
        """Return the state in which a process is dead; if it was a task's, that is retried."""
        local = self._locals[number]
        if local.process.is_task:
            after = self._locals.root(local.process)
        else:
            after = self._locals.after(local, ("dead",), None, Call(END, "died"))
        return self._moved(state, local, after, left=0)

    def _told(self, step: Step) -> str:
        """Return a step in words: few steps of many are ever told."""
        local = self._locals[step.local_state]
        arguments = [getattr(each, "body", each) for each in local.call.arguments]
        return f"{local.process.name}: {local.call.what}{arguments} {step.how}".strip()

    # What a call does, remembered

    def _ask_cache(self, local: LocalState, held: int) -> tuple[int, int]:
        key = (CACHE, local.number, held)
        if key not in self._steps:
            now, answer = ask_cache(self._caches.known[held], local.call)
            self._steps[key] = (
                self._caches.number_of(now),
                self._locals.after(local, ("", answer), answer),
            )
        return self._steps[key]

    def _ask_rows(self, local: LocalState, rows: int) -> tuple[int, int]:
        key = (ROWS, local.number, rows)
        if key not in self._steps:
            memory = self._memories.known[rows].branch()
            answer = Run(local.process, local.answers, memory).go().outcome
            now = (
                rows
                if isinstance(answer, Raised)
                else self._memories.number_of(memory, memory.state())
            )
            self._steps[key] = now, self._locals.after(local, ("", repr(answer)), answer)
        return self._steps[key]

    def _is_blocked(self, local: LocalState, state: State) -> bool:
        """Return whether a process waits, and another look would find nothing new."""
        if local.call.port != WAIT:
            return False
        here, held = self._locals[self._locals.looking_again(local)], state.held
        while here.call.port == CACHE:
            held, after = self._ask_cache(here, held)
            here = self._locals[after]
        return here is local and held == state.held


def _ordered(local_states: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(local_states))


def _named(task: Message) -> str:
    return f"{task.name} {task.body.decode()}"
