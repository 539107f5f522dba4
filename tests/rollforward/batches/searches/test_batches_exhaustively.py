"""Batches in every interleaving of their steps: the real code, and the article's.

A batch of one or two members is populated, cancelled or run again by one process each, or becomes a
batch, or is delivered by an older version; every task is delivered. Each search comes to its end:
no state is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.batches.entities import BatchState
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.model_checking.model_checker import DUPLICATE, End, Search
from tests.infra.model_checking.stepwise import NOON, Process, rows
from tests.rollforward.batches.searches import article_code
from tests.rollforward.batches.searches.searched_batches import SCENARIOS, Scenario
from tests.rollforward.batches.searches.stepwise_batches import (
    batches_in_steps,
    delivering,
    fold,
    of_kind,
    relay,
    wake,
    with_clients,
)

NONE = ""
LATER = NOON + datetime.timedelta(hours=2)
SEARCHED = [
    (scenario, fault)
    for scenario in SCENARIOS
    if IS_EXHAUSTIVE or not scenario.is_large
    for fault in (NONE, *(scenario.most if IS_EXHAUSTIVE else scenario.faults))
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(autouse=True)
def in_steps() -> Iterator[None]:
    with batches_in_steps():
        yield


def sweep(clients: Any) -> None:
    """Do what the sweeps of the outbox and of fork-join queues do."""
    relay(clients)
    for batch in rows("query", lambda memory: [s.key.id() for s in of_kind(memory, BatchState)]):
        fold(clients, batch)


def searched(scenario: Scenario, fault: str) -> Search:
    deliver = delivering(scenario.tasks, knows=scenario.knows)
    return Search(scenario.processes(), deliver, fault=fault)


def check(search: Search, end: End, scenario: Scenario) -> None:
    """F1 to F4, F6 and F7, at an end and after all was tried again, and a sweep."""
    try:
        scenario.check_end(end)
        healed = search.heal(end, scenario.later())
        for number in range(3):
            healed = search.heal(healed, [Process(f"sweep {number}", with_clients(sweep), NOON)])
        if scenario.calls_back:
            healed = search.heal(healed, [Process("sweep late", with_clients(wake), LATER)])
        scenario.check_healed(healed)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{search.story(end)}") from error


def walk(search: Search, scenario: Scenario) -> int:
    """Check every end of a search; return how many there are."""
    return sum(1 for end in search.ends() if check(search, end, scenario) is None)


@pytest.mark.one_of("interleavings of a batch", 4)
@pytest.mark.timeout(3600 if IS_EXHAUSTIVE else 240)
@pytest.mark.parametrize(
    ("scenario", "fault"),
    SEARCHED,
    ids=lambda parameter: getattr(parameter, "name", parameter) or "none",
)
def test_every_interleaving_completes_a_batch_once(scenario: Scenario, fault: str) -> None:
    """F1, F2, F3, F4, F6, F7: with one fault of a kind at any step, or none."""
    search = searched(scenario, fault)

    assert walk(search, scenario)
    assert search.states > 150, "the search is too small to mean anything"


def test_the_articles_code_completes_twice() -> None:
    """M9: without any fault."""
    search = Search([Process("populate", article_code.populate)], article_code.deliver)

    sent = [sum(row.count for row in of_kind(end.rows, article_code.Sent)) for end in search.ends()]

    assert min(sent) >= 1
    assert max(sent) > 1


def test_the_search_sees_a_completion_that_is_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is found when it is there: an end that was counted is counted again."""
    monkeypatch.setattr(
        "rollforward.batches.entities.BatchPage.is_open", lambda self, at, generation: True
    )
    search = searched(BY_NAME["pairs"], DUPLICATE)

    with pytest.raises(AssertionError):
        walk(search, BY_NAME["pairs"])
