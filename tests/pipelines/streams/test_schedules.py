"""The protocol of streams under many schedules, and broken variants of it, which must be noticed.

What a schedule has found is found again by its seed: `Schedule(seed).run()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.pipelines.streams import broken
from tests.pipelines.streams.schedules import Schedule
from tests.pipelines.streams.simulator import Violation
from tests.soak import BUDGET, IS_SOAK

SCHEDULES = 100_000 if IS_SOAK else 2_000
PARTS = 4

Variant = Callable[[Schedule, pytest.MonkeyPatch], None]
VARIANTS: list[Variant] = [
    broken.no_sweep,
    broken.same_generation,
    broken.scan_before_raise,
    broken.no_last_look,
    broken.no_fence,
    broken.unguarded_lease,
    broken.two_commits,
    broken.no_dedup,
    broken.downstream_first,
    broken.timers_first,
    broken.no_marks,
    broken.late_first,
    broken.free_return,
]
MAX_SEARCHED = 2_000


def test_no_wake_is_lost_without_faults_in_any_schedule() -> None:
    """The sweep makes up for crashes alone: with delays and repeats only, nothing needs it."""
    assert found(broken.calm_without_sweep, range(SCHEDULES // 20)) is None


@pytest.mark.parametrize("part", range(PARTS))
def test_all_holds_under_faults_in_any_schedule(part: int) -> None:
    """G1, G2, G3, G4, G5: after each commit, and at rest."""
    faults = 0
    for seed in BUDGET.drawn(range(part, SCHEDULES, PARTS)):
        if BUDGET.is_over():
            break
        schedule = Schedule(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"schedule {seed}: {violation}") from violation
        faults += schedule.simulation.counts["faults"]
        BUDGET.played()
    assert faults > BUDGET.counts["played"]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_a_broken_variant_is_noticed_under_faults(variant: Variant) -> None:
    """What a part of the protocol is for: without it some schedule breaks an invariant."""
    assert found(variant, range(MAX_SEARCHED)) is not None


def found(variant: Variant, seeds: Iterable[int]) -> int | None:
    """Return the first seed that notices a variant."""
    for seed in seeds:
        schedule = Schedule(seed)
        with pytest.MonkeyPatch.context() as patch:
            variant(schedule, patch)
            try:
                schedule.run()
            except Violation:
                return seed
    return None
