"""Deferred calls with a fault at every remote call: each runs once its data is committed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from rollforward.compat import deferred
from rollforward.testing.injection import FLUSH, KINDS, OVERLAP
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World
from tests.rollforward.compat.deferred_calls import FUNCTIONS, STEPS, place
from tests.rollforward.outbox.order_tasks import ran_here, rows_here

MAX_SWEEPS = 2


@dataclass
class DeferScenario:
    """Place an order whose steps are deferred: three by its transaction, two after it by name."""

    world: World
    looked: Counter[str] = field(default_factory=Counter)

    def begin(self, tag: str) -> None:
        place(tag)

    def is_done(self, tag: str) -> bool:
        self.looked[tag] += 1
        return not rows_here() and set(ran_here(tag)) == set(STEPS)

    def check(self, tag: str, fault: str) -> None:
        assert ran_here(tag) == Counter(STEPS), fault
        assert self.looked[tag] <= MAX_SWEEPS + 1, f"{fault}: healed too late"


@pytest.fixture
def scenario(services: Services) -> DeferScenario:
    return DeferScenario(World(services, tasks=FUNCTIONS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_call_exists_once_with_a_fault_at_any_call(scenario: DeferScenario, kind: str) -> None:
    """B1, B3, B5: a fault at each call; healed within two sweeps."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_each_call_exists_once_when_deliveries_overlap_at_any_call(scenario: DeferScenario) -> None:
    """B1: a second delivery runs from start to end inside the first."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP])


def test_each_call_exists_once_in_any_order(scenario: DeferScenario) -> None:
    """B1: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(1)
    Explorer(scenario.world, scenario).play()


def test_the_faults_bite(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that do not join the transaction, as the original's did not, are lost or doubled."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = DeferScenario(World(services, tasks=FUNCTIONS))
    monkeypatch.setattr(deferred, "is_in_transaction", lambda: False)

    with pytest.raises((AssertionError, deferred.TaskAlreadyExistsError)):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
