"""Flows in a lane with a fault at any remote call: each effect once, and nothing is left there."""

from __future__ import annotations

import random

import pytest

from rollforward.lanes import Lane
from rollforward.lanes.rows.entities import LaneTask
from rollforward.testing.injection import FLUSH, KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.flows import shop
from tests.rollforward.flows.shop import BANK, quick_order
from tests.rollforward.flows.test_flows_under_faults import MOST_SWEEPS, OrderScenario
from tests.rollforward.tasks.reminders import one_emulator

ORDERS = Lane("test-flow-orders", order=True)


class LaneScenario(OrderScenario):
    """An order in a lane of one at a time, whose courier comes."""

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        quick_order.start_in(clients, ORDERS("all"), tag, tag)
        quick_order.signal(clients, tag, "courier", "here", event_id=f"{tag}-came")

    def is_done(self, tag: str) -> bool:
        return super().is_done(tag) and not LaneTask.query().fetch(1)


@pytest.fixture
def scenario(services: Services) -> LaneScenario:
    BANK.__init__()  # type: ignore[misc]
    return LaneScenario(World(services, flows=[quick_order], lanes=[ORDERS], tasks=[shop.mail]))


@one_emulator
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_step_takes_effect_once_in_a_lane_with_a_fault_at_any_call(
    scenario: LaneScenario, kind: str
) -> None:
    """W25: a turn that was added, lost its reply, or whose worker died."""
    assert Explorer(scenario.world, scenario, MOST_SWEEPS).explore([kind])


@one_emulator
def test_each_step_takes_effect_once_in_a_lane_when_deliveries_overlap(
    scenario: LaneScenario,
) -> None:
    """W25: a second delivery runs from start to end inside the first."""
    Explorer(scenario.world, scenario, MOST_SWEEPS).explore([OVERLAP], at_most=3)


@pytest.mark.parametrize("seed", range(2))
def test_each_step_takes_effect_once_in_a_lane_in_any_order(
    scenario: LaneScenario, seed: int
) -> None:
    """W25: every task delivered twice, in a shuffled order, and side by side."""
    scenario.world.doubles = seed == 0
    scenario.world.overlaps = seed == 1
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, MOST_SWEEPS).play()
