"""Continuations with a fault at every remote call, and deliveries in every disorder."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from models.continuations import FINISHED
from pipelines import continuations, pages
from pipelines.jobs import Job
from pipelines.progress import UnknownRunError, progress
from tests.explorer import Explorer
from tests.faults import KINDS, OVERLAP
from tests.pipelines.walks import (
    APPLY,
    Item,
    Walk,
    deliver_job,
    ledger_here,
    put_items_here,
)
from tests.world import Services, World

ITEMS = 3  # Two pages of two.


class WalkScenario:
    """Start a run over a few items of its own, and walk to the end."""

    def __init__(self, world: World, job: Job[Walk, Item], outside: Counter[str]) -> None:
        self.world = world
        self.job = job
        self.outside = outside
        self.names: dict[str, list[str]] = {}

    def begin(self, tag: str) -> None:
        if tag not in self.names:
            with self.world.plan.unwatched():
                self.names[tag] = put_items_here(ITEMS, tag)
        walk = Walk(tag, group=tag)
        continuations.start(self.world.clients, self.job, walk, run_id=tag)

    def is_done(self, tag: str) -> bool:
        try:
            return progress(tag).state == FINISHED
        except UnknownRunError:
            return False

    def check(self, tag: str, fault: str) -> None:
        now = progress(tag)
        assert (now.totals.done, now.totals.known, now.totals.failed) == (ITEMS, ITEMS, 0), fault
        if self.job.apply is not None:
            applied = ledger_here(tag)
            assert applied == Counter(self.names[tag]), fault
        else:
            delivered = [self.outside[name] for name in self.names[tag]]
            assert min(delivered) >= 1, fault
            assert sum(delivered) - ITEMS <= now.totals.in_doubt, fault
            if not fault.startswith(("reply-lost", "crash")):
                assert sum(delivered) == ITEMS, fault


@pytest.fixture
def outside() -> Counter[str]:
    """The outside world: how often each item was delivered."""
    return Counter()


@pytest.fixture(params=["apply", "deliver"])
def scenario(
    request: pytest.FixtureRequest, services: Services, outside: Counter[str]
) -> WalkScenario:
    job = APPLY if request.param == "apply" else deliver_job(outside)
    return WalkScenario(World(services, [job]), job, outside)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_each_item_ends_once_with_a_fault_at_any_call(scenario: WalkScenario, kind: str) -> None:
    """A1, A3: one fault at each remote call; in Datastore exactly once, outside all accounted."""
    Explorer(scenario.world, scenario).explore([kind])


def test_each_item_ends_once_when_deliveries_overlap_at_any_call(scenario: WalkScenario) -> None:
    """A1: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP])


def test_each_item_ends_once_with_every_delivery_doubled(scenario: WalkScenario) -> None:
    """A1: every task delivered twice, one after the other."""
    scenario.world.doubles = True
    Explorer(scenario.world, scenario).play()


@pytest.mark.parametrize("seed", range(5))
def test_each_item_ends_once_in_any_order(scenario: WalkScenario, seed: int) -> None:
    """A1: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario).play()


def test_each_item_ends_once_with_all_deliveries_side_by_side(scenario: WalkScenario) -> None:
    """A1: all tasks that are due run at once, each of them twice, on threads."""
    scenario.world.overlaps = True
    for _ in range(3):
        Explorer(scenario.world, scenario).play()


def test_without_receipts_the_faults_double_work(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults bite: with the proof of a commit taken out, the same exploration fails."""
    scenario = WalkScenario(World(services, [APPLY]), APPLY, Counter())
    monkeypatch.setattr(pages._Attempt, "_record", lambda *args, **kwargs: None)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore()
