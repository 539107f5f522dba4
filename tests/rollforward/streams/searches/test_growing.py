"""Intervals that are split and merged, and sources that have to wait, under many schedules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollforward.streams.storage.schema import CHUNK, is_late
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import growth
from tests.rollforward.streams.scenarios.growing import (
    Crowded,
    EarlyNoMore,
    Held,
    PercentileWatermarks,
    Reshaped,
)
from tests.rollforward.streams.simulator.schedules import Schedule, found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 30_000 if IS_SOAK else 60
MAX_SEARCHED = 3_000
Variant = Callable[[Reshaped, pytest.MonkeyPatch], None]
# Each with the seed from which on it is searched, for the time's sake.
VARIANTS: list[tuple[Variant, int]] = [
    (growth.heirs_sleep, 590),
    (growth.generation_begins_again, 330),
    (growth.ids_stay_behind, 40),
    (growth.left_is_forgotten, 30),
    (growth.late_overtakes, 25),
    (growth.newest_inbox_first, 0),
    (growth.inboxes_together, 0),
]


@pytest.mark.parametrize(
    "kind",
    [Reshaped, Crowded, Held, PercentileWatermarks, EarlyNoMore],
    ids=lambda kind: kind.__name__,
)
def test_all_holds_in_any_schedule(kind: type[Schedule]) -> None:
    """G1, G2, G3, G4, G5, G10, G11, G12, G13."""
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        try:
            kind(seed).run()
        except Violation as violation:
            raise AssertionError(f"{kind.__name__}({seed}): {violation}") from violation
        BUDGET.played()


def test_no_wake_is_lost_without_faults_when_intervals_are_split_and_merged() -> None:
    """G10: the sweep makes up for crashes alone.

    While an inbox is left behind, what is late waits for a tick, and nobody wakes one for it.
    """
    for seed in BUDGET.plays(range(SCHEDULES // 2)):
        schedule = Reshaped(seed)
        with pytest.MonkeyPatch.context() as patch:
            growth.calm(schedule, patch)
            try:
                schedule.run()
            except Violation as violation:
                if not _waits_for_a_tick(schedule):
                    raise AssertionError(f"Reshaped({seed}): {violation}") from violation


def _waits_for_a_tick(schedule: Reshaped) -> bool:
    """Return whether all that waits is late, and an inbox of its computation is left."""
    left = schedule.head_now.retired
    waiting = [key.name for key, _ in schedule.simulation.rows if key.kind == CHUNK]
    return bool(waiting) and all(is_late(name) and name.split(":")[1] in left for name in waiting)


@pytest.mark.parametrize(
    ("variant", "first"), VARIANTS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_broken_split_is_noticed(variant: Variant, first: int) -> None:
    """G10: what a part of the protocol is for: without it some schedule breaks an invariant."""
    assert found(Reshaped, variant, range(first, first + MAX_SEARCHED)) is not None


def test_a_percentile_that_is_followed_for_ever_is_noticed() -> None:
    """G12: timers that wait for a watermark which nobody moves any more."""
    variant = growth.percentile_stays
    assert found(EarlyNoMore, variant, range(MAX_SEARCHED)) is not None
