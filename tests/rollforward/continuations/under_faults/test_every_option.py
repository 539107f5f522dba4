"""Runs with every hook and option at once: each item comes to its end, and the job is told."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from rollforward.continuations.pages import closing
from rollforward.testing.explorer import NO_SWEEPS
from rollforward.testing.injection import CRASH_BEFORE, ERROR, FLUSH, KINDS, OVERLAP
from rollforward.testing.leftovers import remaining_rows
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.continuations.under_faults.every_option import (
    EveryScenario,
    FinishCall,
    apply_job,
    side_effect_job,
)


@pytest.fixture(params=["apply", "deliver"])
def scenario(request: pytest.FixtureRequest, services: Services) -> EveryScenario:
    outside: Counter[str] = Counter()
    job = apply_job() if request.param == "apply" else side_effect_job(outside)
    return EveryScenario(World(services, [job]), job, outside)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_item_comes_to_its_end_with_a_fault_at_any_call(
    scenario: EveryScenario, kind: str
) -> None:
    """A1, A3: whether done, refused, skipped, deferred or broken; and without a sweep."""
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([kind])


def test_each_item_comes_to_its_end_when_deliveries_overlap(scenario: EveryScenario) -> None:
    """A1: a second delivery runs from start to end inside the first, at each of its calls."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, NO_SWEEPS).explore([OVERLAP])


@pytest.mark.parametrize("seed", range(3))
def test_each_item_comes_to_its_end_with_every_delivery_doubled(
    scenario: EveryScenario, seed: int
) -> None:
    """A1, A3: a chain that ends twice is one that has ended: the others go on."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed) if seed else None
    Explorer(scenario.world, scenario, NO_SWEEPS).play()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [CRASH_BEFORE, ERROR])
def test_a_job_is_told_wherever_the_last_delivery_of_its_run_breaks(
    services: Services, kind: str
) -> None:
    """A3: totals are kept after the job was told, so a crash before that has it told again.

    Its chains have no items: a page without any is stored and closed as others are.
    """
    job = apply_job()
    world = World(services, [job])
    scenario = EveryScenario(world, job, Counter())
    for at in itertools.count():
        run_id = f"run{at}"
        world.engine.reset()
        with world.context():
            scenario.names[run_id] = []
            scenario._start(run_id, 0)
        world.clock.sleep(60)  # The run has a rate, by which its second chain may begin later.
        first_task, last_task = world.engine.due()
        world.deliver(first_task.task_name)
        world.plan.reset(kind, at)
        with world.plan.watched():
            world.deliver(last_task.task_name)
        fired = world.plan.fired
        world.settle(revives=True)

        with world.context():
            assert FinishCall.get_by_id(run_id).count >= 1, fired
            assert remaining_rows() == [], fired
        if not fired:
            break
    assert at > 8


def test_a_chain_that_another_delivery_has_ended_tells_nobody_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: the second delivery runs to its end between the first one's last page and its chain."""
    job = apply_job()
    world = World(services, [job])
    scenario = EveryScenario(world, job, Counter())
    with world.context():
        scenario.names["run"] = []
        scenario._start("run", 0)
    close_one, deliveries = closing._close_one, [lambda: world.answer(world.current)]

    def overtaken(run_id: str, chain: int, number: int) -> Any:
        page = close_one(run_id, chain, number)
        if chain == 1 and deliveries:
            in_threads(deliveries.pop())
        return page

    monkeypatch.setattr(closing, "_close_one", overtaken)

    world.settle()

    assert deliveries == []
    with world.context():
        assert FinishCall.get_by_id("run").count == 1
