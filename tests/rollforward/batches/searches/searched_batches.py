"""What the exhaustive search plays: batches of one or two members, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.batches import Completed, Policy, TaskBatch, UnknownBatchError, current_member
from rollforward.batches.entities import BatchState
from rollforward.tasks import Reject, Task
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.model_checker import CRASH, DUPLICATE, REPLY_LOST, UNHEARD, End
from tests.infra.model_checking.stepwise import Process
from tests.rollforward.batches.harness import Note
from tests.rollforward.batches.searches.stepwise_batches import (
    DELIVERED,
    PURGED,
    Callbacks,
    Called,
    CallsBack,
    Nested,
    Pending,
    Waiting,
    call,
    of_kind,
    transact,
    with_clients,
)


@dataclass(frozen=True)
class NextNote:
    """A member's arguments as the next version of the code declares them."""

    label: str
    colour: str = "black"


def work(clients: Any, args: Note) -> None:
    """Do as the label says: "bad" fails in the first generation, "nest" becomes a batch."""
    member = current_member()
    if args.label == "bad" and member.ref.generation == 1:
        raise Reject("in the first generation")
    if args.label.startswith("nest"):
        label = args.label.removeprefix("nest ")
        member.nest(CHILD, [(LEAF, Note(label))])


CALL = Task("/tasks/call", "default", Completed, call)
MEMBER = Task("/tasks/member", "fan-out", Note, work)
NEXT_MEMBER = Task("/tasks/member", "imports", NextNote, work)
LEAF = Task("/tasks/leaf", "fan-out", Note, work)
PAIRS = TaskBatch("pairs", members=[MEMBER], on_complete=CALL)
NEXT_PAIRS = TaskBatch("pairs", members=[NEXT_MEMBER], on_complete=CALL)
FIRST = TaskBatch("first", members=[MEMBER], on_complete=CALL, policy=Policy.done_at(1))
CHILD = TaskBatch("child", members=[LEAF], on_complete=CALL)


@dataclass(frozen=True)
class Scenario:
    """What is done to a batch, by one process each; then all of it is done again, and a sweep."""

    name: str
    batches: TaskBatch
    acts: Sequence[Callable[[Any], None]]
    counts: Callable[[BatchState], bool]  # Whether what came of the batch is right.
    again: Sequence[Callable[[Any], None]] = ()  # After all has ended; left out: the first act.
    generations: int = 1
    is_nested: bool = False
    calls_back: Sequence[str] = ()  # Whether callbacks are delivered, and first purged.
    knows: Sequence[str] | None = None  # The paths of the version that delivers; None: all.
    is_large: bool = False  # Left to `make soak`.
    faults: Sequence[str] = ()  # In `make test`, beside none.
    most: Sequence[str] = (CRASH, DUPLICATE, UNHEARD, REPLY_LOST)  # In `make soak`.

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        return [*self.batches.tasks, *CHILD.tasks]

    def processes(self) -> list[Process]:
        return [
            Process(f"act {number}", with_clients(self._begun(act)))
            for number, act in enumerate(self.acts)
        ]

    def later(self) -> list[Process]:
        return [
            Process(f"again {number}", with_clients(self._marked(act)))
            for number, act in enumerate(self.again or self.acts[:1])
        ]

    def _begun(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(clients: Any) -> None:
            if self.is_nested:
                Nested(id="some").put()
            self._marked(act)(clients)

        return run

    def _marked(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(clients: Any) -> None:
            for mark in self.calls_back:
                CallsBack(id=mark).put()
            act(clients)

        return run

    def check_end(self, end: End) -> None:
        """Check an end, before anything is done again: nothing has completed twice."""
        assert max((row.count for row in of_kind(end.rows, Callbacks)), default=1) == 1
        roots, nested = states(end.rows)
        for root in roots:
            if root.outcome == "succeeded":
                assert all(state.state == "completed" for state in nested), "a child runs on"

    def check_healed(self, end: End) -> None:
        """Check what is left when all was done again: each generation has completed once."""
        [root], nested = states(end.rows)
        calls = {row.key.id(): row.count for row in of_kind(end.rows, Callbacks)}
        assert set(calls.values()) == {1}
        assert root.state == "completed"
        for state in (root, *nested):
            assert state.state == "completed", state.key
            assert f"{state.key.id()}:{state.generation}" in calls
            assert state.members == state.done + state.failed + state.cancelled
        assert root.generation <= self.generations
        assert self.counts(root), root
        assert not of_kind(end.rows, Waiting)
        assert not of_kind(end.rows, Pending)
        if self.calls_back:
            self.check_called(end, [root, *nested])

    def check_called(self, end: End, batches: Sequence[BatchState]) -> None:
        """Check that each completion was called back: once, or twice if something broke."""
        called = {row.key.id(): row.count for row in of_kind(end.rows, Called)}
        assert set(called) == {row.key.id() for row in of_kind(end.rows, Callbacks)}
        assert max(called.values()) <= (2 if end.is_broken else 1), called
        for state in batches:
            assert not state.unacked, state.key
            assert state.due is None, state.key


def states(memory: Memory) -> tuple[list[BatchState], list[BatchState]]:
    """Return the roots, and what is nested."""
    rows = of_kind(memory, BatchState)
    return [s for s in rows if not s.parent], [s for s in rows if s.parent]


def populate(batches: TaskBatch, *labels: str, task: Task[Any] = MEMBER) -> Callable[[Any], None]:
    def act(clients: Any) -> None:
        batches.populate(clients, "b", [(task, task.args(label)) for label in labels])
        batches.seal(clients, "b")

    return act


def populate_sealed(*labels: str) -> Callable[[Any], None]:
    def act(clients: Any) -> None:
        PAIRS.populate(clients, "b", [(MEMBER, Note(label)) for label in labels], seal=True)

    return act


def add_twice(clients: Any) -> None:
    """Add both members in one transaction, by two calls."""

    def body() -> None:
        add = PAIRS.populate_in_transaction
        add(clients, "b", [(MEMBER, Note("a"))])
        add(clients, "b", [(MEMBER, Note("b"))], idempotency_key="more", seal=True)

    transact(body)


def cancel(clients: Any) -> None:
    try:
        PAIRS.cancel(clients, "b")
    except UnknownBatchError:
        return


def run_again(clients: Any) -> None:
    try:
        PAIRS.run_again(clients, "b")
    except UnknownBatchError:
        return


def in_turn(*acts: Callable[[Any], None]) -> Callable[[Any], None]:
    def act(clients: Any) -> None:
        for step in acts:
            step(clients)

    return act


def _all_done(state: BatchState) -> bool:
    return bool(state.done == state.members == 2)


def _one_done(state: BatchState) -> bool:
    return bool(state.done >= 1 and state.done + state.cancelled == 2)


def _is_done(state: BatchState) -> bool:
    return bool(state.done == state.members == 1)


def _is_cancelled(state: BatchState) -> bool:
    return state.outcome in ("cancelled", "succeeded") and not state.failed


def _has_failed(state: BatchState) -> bool:
    return bool(state.done == 1 and state.failed == 1 and state.outcome == "failed")


def _is_mended(state: BatchState) -> bool:
    """What fails in the first generation does so in no other: a late end counts no more."""
    return state.generation == 1 or bool(state.done == state.members)


ALL_FAULTS = (CRASH, DUPLICATE, UNHEARD, REPLY_LOST)
SOME_FAULTS = (CRASH, REPLY_LOST)

SCENARIOS = (
    Scenario("pairs", PAIRS, [populate(PAIRS, "a", "b")], _all_done, faults=ALL_FAULTS),
    Scenario("first", FIRST, [populate(FIRST, "a", "b")], _one_done, faults=ALL_FAULTS),
    Scenario("fail", PAIRS, [populate(PAIRS, "a", "bad")], _has_failed, faults=SOME_FAULTS),
    Scenario("two additions", PAIRS, [add_twice], _all_done, faults=SOME_FAULTS),
    Scenario("cancel", PAIRS, [populate(PAIRS, "a", "b"), cancel], _is_cancelled, most=(CRASH,)),
    Scenario(
        "callback",
        PAIRS,
        [populate(PAIRS, "a")],
        _is_done,
        calls_back=[DELIVERED],
        faults=ALL_FAULTS,
    ),
    Scenario(
        "callback that is lost",
        PAIRS,
        [populate(PAIRS, "a", "b")],
        _all_done,
        calls_back=[DELIVERED, PURGED],
        faults=[CRASH],
    ),
    Scenario(
        "callbacks of two generations",
        PAIRS,
        [populate_sealed("bad"), run_again],
        _is_mended,
        generations=2,
        calls_back=[DELIVERED],
        # With lost replies it has over five million states, and comes to no end.
        faults=[CRASH],
        most=(CRASH, DUPLICATE, UNHEARD),
    ),
    Scenario(
        "callbacks of two generations that are lost",
        PAIRS,
        [populate_sealed("bad"), run_again],
        _is_mended,
        generations=2,
        calls_back=[DELIVERED, PURGED],
    ),
    Scenario(
        "two versions",
        PAIRS,
        [populate(PAIRS, "a", "b")],
        _all_done,
        again=[populate(NEXT_PAIRS, "a", "b", task=NEXT_MEMBER)],
        knows=[],
        faults=SOME_FAULTS,
    ),
    Scenario(
        "run again",
        PAIRS,
        [populate_sealed("bad"), in_turn(cancel, run_again)],
        _is_mended,
        generations=2,
        most=SOME_FAULTS,
    ),
    Scenario(
        "nest",
        PAIRS,
        [populate_sealed("nest a")],
        lambda state: bool(state.done == 1),
        is_nested=True,
        faults=ALL_FAULTS,
    ),
    Scenario(
        "cancel what is nested",
        PAIRS,
        [in_turn(populate_sealed("nest a"), cancel)],
        _is_cancelled,
        is_nested=True,
        is_large=True,
        most=(),
    ),
    Scenario(
        "run again what is nested",
        PAIRS,
        [in_turn(populate_sealed("nest bad"), run_again)],
        _is_mended,
        generations=2,
        is_nested=True,
        is_large=True,
        most=(),
    ),
)
