"""Weak computations and sinks that are attached, replaced and detached, under many schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.infra.runs import sampling
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import weak_changes
from tests.rollforward.streams.scenarios.weak_changes import WeakChanges
from tests.rollforward.streams.simulator.schedules import found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 30_000 if IS_SOAK else 100
MAX_SEARCHED = 3_000
DONE = {"attach", "drain", "discard", "replace", "split", "merge"}
Variant = Callable[[WeakChanges, pytest.MonkeyPatch], None]


@sampling.long
def test_each_commit_sends_what_follows_by_its_topology_in_any_schedule() -> None:
    """G14, G15, G1, G3, G7, G10: weak and strong, after each commit, and at rest."""
    done, inlined = Counter[str](), 0
    for seed in BUDGET.plays(range(SCHEDULES)):
        schedule = WeakChanges(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"WeakChanges({seed}): {violation}") from violation
        done += schedule.done
        inlined += len(schedule.simulation.handed)
    assert IS_SOAK or {*done} >= DONE
    assert IS_SOAK or inlined > SCHEDULES / 2


@sampling.long
def test_no_wake_is_lost_without_faults_when_weak_computations_change() -> None:
    """G14, G15: the sweep makes up for crashes alone."""
    calm = BUDGET.plays(range(SCHEDULES // 2))
    assert found(WeakChanges, weak_changes.calm, calm) is None


@sampling.minute
@pytest.mark.parametrize(
    ("variant", "first"),
    weak_changes.VARIANTS,
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_broken_change_around_weak_computations_is_noticed(variant: Variant, first: int) -> None:
    """G14, G15: what a part of the protocol is for: without it some schedule notices."""
    assert found(WeakChanges, variant, range(first, first + MAX_SEARCHED)) is not None
