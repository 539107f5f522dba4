"""Batches with a fault at every remote call, and deliveries in every disorder."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.batches import callbacks as callback_tasks
from rollforward.batches import entities as rows
from rollforward.batches.adding import populate
from rollforward.batches.entities import BatchPage
from rollforward.datastore.transactions import transact
from rollforward.tasks import Task
from rollforward.testing.explorer import NO_SWEEPS
from rollforward.testing.injection import CRASH_AFTER, ERROR, FLUSH, KINDS, OVERLAP
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import (
    CALLED,
    NOTES,
    TREES,
    Branch,
    batch_world,
    branch,
    callbacks,
    is_acknowledged,
    is_quiet,
    notes,
    outcomes,
    told,
)


class BatchScenario:
    """Members of which one fails, populated and sealed in two steps."""

    batches = NOTES

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        self.batches.populate(self.world.clients, tag, notes("a", "bad", "says"))
        self.batches.seal(self.world.clients, tag)

    def is_done(self, tag: str) -> bool:
        return is_quiet() and bool(told(self.batches, tag)) and is_acknowledged(self.batches, tag)

    def check_called(self, tag: str, fault: str) -> None:
        """Check that a callback ran again only if it was not acknowledged, and has one task."""
        limit = 2 if fault or self.world.overlaps else 1
        counts = [count for key, count in CALLED.items() if key.split(":")[1] == tag]
        assert max(counts) <= limit, fault
        assert set(callbacks(self.world).values()) == {1}, fault

    def check(self, tag: str, fault: str) -> None:
        [completion] = told(self.batches, tag)
        assert completion == {
            "outcome": "failed", "members": 3, "done": 2, "failed": 1, "cancelled": 0
        }, fault  # fmt: skip
        assert outcomes(self.batches, tag) == ["done", "failed", "done"], fault
        self.check_called(tag, fault)


class EmptyScenario(BatchScenario):
    """No member at all: the seal completes it."""

    def begin(self, tag: str) -> None:
        NOTES.populate(self.world.clients, tag, [], seal=True)

    def check(self, tag: str, fault: str) -> None:
        assert [completion["members"] for completion in told(NOTES, tag)] == [0], fault
        self.check_called(tag, fault)


class TransactionScenario(BatchScenario):
    """The same members, added in two parts by one transaction."""

    def begin(self, tag: str) -> None:
        add = partial(NOTES.populate_in_transaction, self.world.clients, tag)

        def body() -> None:
            add(notes("a", "bad"))
            add(notes("says"), idempotency_key="more", seal=True)

        transact(body)


class AgainScenario(BatchScenario):
    """A batch of which all members fail is run again, by one who presses until it is accepted."""

    def begin(self, tag: str) -> None:
        plan, world = self.world.plan, self.world
        if not told(NOTES, tag):
            with plan.unwatched():
                NOTES.populate(world.clients, tag, notes("bad1", "bad2"), seal=True)
                in_threads(world.settle)
        if NOTES.progress(tag).generation == 1:
            NOTES.run_again(world.clients, tag)

    def is_done(self, tag: str) -> bool:
        return super().is_done(tag) and len(told(NOTES, tag)) == 2

    def check(self, tag: str, fault: str) -> None:
        assert [completion["failed"] for completion in told(NOTES, tag)] == [2, 2], fault
        assert outcomes(NOTES, tag) == ["failed"] * 2, fault
        self.check_called(tag, fault)


class TreeScenario(BatchScenario):
    """A batch of two batches, beside a leaf."""

    batches = TREES

    def begin(self, tag: str) -> None:
        work = [(branch, Branch("t", 2)), *notes("a")]
        TREES.populate(self.world.clients, tag, work, seal=True)

    def check(self, tag: str, fault: str) -> None:
        assert told(TREES, tag)[0]["done"] == 2, fault
        assert [nested.done for nested in TREES.nested(tag)] == [2], fault
        self.check_called(tag, fault)


SCENARIOS: Sequence[type[BatchScenario]] = (
    BatchScenario,
    EmptyScenario,
    TransactionScenario,
    AgainScenario,
    TreeScenario,
)


@pytest.fixture(params=SCENARIOS, ids=lambda kind: kind.__name__)
def scenario(request: pytest.FixtureRequest, services: Services) -> BatchScenario:
    played: BatchScenario = request.param(batch_world(services))
    return played


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_a_batch_completes_once_with_a_fault_at_any_call(
    scenario: BatchScenario, kind: str
) -> None:
    """F1, F2, F3, F4, F6: one completion per generation, with exact counts."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_a_batch_completes_once_when_deliveries_overlap_at_any_call(
    scenario: BatchScenario,
) -> None:
    """F1, F6: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([OVERLAP])


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_completes_once_in_any_order(scenario: BatchScenario, seed: int) -> None:
    """F1, F2, F6: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


def test_a_batch_completes_once_with_all_deliveries_side_by_side(scenario: BatchScenario) -> None:
    """F1, F2, F6: all tasks that are due run at once, each of them twice, on threads."""
    scenario.world.overlaps = True
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


# Planted bugs


def _counts_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.BatchPage, "is_open", lambda self, position, generation: True)


def _calls_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def enqueue(clients: Any, task: Task[Any], args: Any) -> None:
        task.enqueue(clients, args)

    monkeypatch.setattr(callback_tasks, "outbox", SimpleNamespace(enqueue=enqueue))


def _acknowledges_by_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_tasks, "transact", lambda body: None)


def _adds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = populate.addition_name
    names = iter(range(10**6))
    monkeypatch.setattr(populate, "addition_name", lambda key: sound(f"{key}{next(names)}"))


def _forgets_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: BatchPage, position: int, letter: str, generation: int) -> None:
        self.letters = f"{self.letters[:position]}{letter}{self.letters[position + 1 :]}"

    monkeypatch.setattr(rows.BatchPage, "end", end)


Plant = Callable[[pytest.MonkeyPatch], None]
# Each with the kinds of fault that show it, and the call at which they do; "": at many. So what is
# seen only when one certain commit of all is broken is seen soon.
PLANTED: Sequence[tuple[type[BatchScenario], Plant, Sequence[str], str]] = (
    (BatchScenario, _counts_blindly, KINDS, ""),
    (BatchScenario, _calls_back_at_once, [ERROR], "Commit"),
    (EmptyScenario, _acknowledges_by_one_commit, [ERROR], "Commit"),
    (BatchScenario, _adds_again, [CRASH_AFTER], "Commit"),
    (AgainScenario, _forgets_generations, KINDS, ""),
)


@pytest.mark.parametrize(
    ("kind", "plant", "faults", "call"), PLANTED, ids=[plant.__name__ for _, plant, *_ in PLANTED]
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BatchScenario],
    plant: Plant,
    faults: Sequence[str],
    call: str,
) -> None:
    """With one of its guards taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = kind(batch_world(services))
    plant(monkeypatch)
    # A second delivery would acknowledge what the first one has not.
    scenario.world.doubles = plant is not _acknowledges_by_one_commit

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(faults, ALL, named=call)
