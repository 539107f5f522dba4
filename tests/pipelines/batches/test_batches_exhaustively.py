"""Batches in every interleaving of their steps: the real code, and the article's.

A batch of two members is populated and sealed by one process; every task is delivered. Each search
comes to its end: no state is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from models.batches import BatchState
from pipelines.batches import Policy, TaskBatch
from pipelines.tasks import Task
from tests.pipelines.batches import article_code
from tests.pipelines.batches.harness import Note, tell
from tests.pipelines.batches.stepwise_batches import (
    Callbacks,
    Pending,
    Waiting,
    batches_in_steps,
    delivering,
    fold,
    of_kind,
    relay,
    with_clients,
)
from tests.pipelines.model_checker import CRASH, DUPLICATE, REPLY_LOST, UNHEARD, End, Search
from tests.pipelines.stepwise import NOON, Process

NONE = ""
FAULTS = [NONE, CRASH, DUPLICATE, UNHEARD, REPLY_LOST]


def work(clients: Any, args: Note) -> None:
    """Do nothing: what becomes of the member is what is searched."""


MEMBER = Task("/tasks/member", "fan-out", Note, work)
PAIRS = TaskBatch("pairs", members=[MEMBER], on_complete=tell)
FIRST = TaskBatch("first", members=[MEMBER], on_complete=tell, policy=Policy.done_at(1))
LABELS = ("a", "b")


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    with batches_in_steps():
        yield


def user(batches: TaskBatch) -> Any:
    """Return one who populates a batch, and then seals it."""

    def act(clients: Any) -> None:
        batches.populate(clients, "b", [(MEMBER, Note(label)) for label in LABELS])
        batches.seal(clients, "b")

    return with_clients(act)


def sweep(clients: Any) -> None:
    """Do what the sweeps of the outbox and of fork-join queues do."""
    relay(clients)
    fold(clients, "pairs:b")
    fold(clients, "first:b")


def searched(batches: TaskBatch, fault: str) -> Search:
    return Search([Process("user", user(batches))], delivering(batches.tasks), fault=fault)


def check(search: Search, end: End, batches: TaskBatch) -> None:
    """F1 to F4, at an end and after the user has tried again, and a sweep."""
    try:
        assert completions(end) <= 1
        healed = search.heal(end, [Process("user again", user(batches), NOON)])
        for number in range(3):
            healed = search.heal(healed, [Process(f"sweep {number}", with_clients(sweep), NOON)])
        check_healed(healed, batches)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{search.story(end)}") from error


def check_healed(end: End, batches: TaskBatch) -> None:
    [state] = of_kind(end.rows, BatchState)
    assert completions(end) == 1
    assert state.state == "completed"
    assert state.members == state.done + state.cancelled == len(LABELS)
    assert state.done == len(LABELS) or batches is FIRST
    assert not of_kind(end.rows, Waiting)
    assert not of_kind(end.rows, Pending)


def walk(search: Search, batches: TaskBatch) -> int:
    """Check every end of a search; return how many there are."""
    return sum(1 for end in search.ends() if check(search, end, batches) is None)


def completions(end: End) -> int:
    return sum(row.count for row in of_kind(end.rows, Callbacks))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("batches", [PAIRS, FIRST], ids=lambda each: each.name)
def test_every_interleaving_completes_a_batch_once(batches: TaskBatch, fault: str) -> None:
    """F1, F2, F3, F4: with one fault of a kind at any step, or none."""
    search = searched(batches, fault)

    assert walk(search, batches)
    assert search.states > 300, "the search is too small to mean anything"


def test_the_articles_code_completes_twice() -> None:
    """M9: without any fault."""
    search = Search([Process("populate", article_code.populate)], article_code.deliver)

    sent = [sum(row.count for row in of_kind(end.rows, article_code.Sent)) for end in search.ends()]

    assert min(sent) >= 1
    assert max(sent) > 1


def test_the_search_sees_a_completion_that_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is found when it is there: an end that was counted is counted again."""
    monkeypatch.setattr("models.batches.BatchPage.is_open", lambda self, at, generation: True)
    search = searched(PAIRS, DUPLICATE)

    with pytest.raises(AssertionError):
        walk(search, PAIRS)
