"""Weak computations in topologies drawn by a seed, under many schedules, and broken variants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.infra.runs import sampling
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import weak
from tests.rollforward.streams.scenarios.weak import Killing, Weak
from tests.rollforward.streams.simulator.accidents import NO_FAULTS
from tests.rollforward.streams.simulator.schedules import found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 30_000 if IS_SOAK else 200
MAX_SEARCHED = 3_000
Variant = Callable[[Weak, pytest.MonkeyPatch], None]


@sampling.long
def test_nothing_is_lost_or_doubled_behind_weak_stages_in_any_schedule() -> None:
    """G14, G1, G3, G7: after each commit, and at rest."""
    inlined = 0
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        schedule = Weak(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"Weak({seed}): {violation}") from violation
        BUDGET.played()
        inlined += len(schedule.simulation.handed)
    assert inlined > SCHEDULES / 2 or IS_SOAK


def test_a_record_that_kills_its_process_is_a_dead_letter_in_any_schedule() -> None:
    """G7: at a weak stage, too, where it is the source's process that it kills at first."""
    killed = 0
    for seed in BUDGET.drawn(range(SCHEDULES // 4)):
        if BUDGET.is_over():
            break
        schedule = Killing(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"Killing({seed}): {violation}") from violation
        BUDGET.played()
        killed += schedule.simulation.counts["killed"]
    assert killed > SCHEDULES / 8 or IS_SOAK


def test_a_source_that_counts_no_attempts_is_noticed() -> None:
    """G7: each attempt to let the record in kills a process, for ever."""
    assert found(Killing, weak.attempts_are_forgotten, range(100)) is not None


@sampling.long
def test_deaths_that_count_against_whatever_stands_first_are_noticed() -> None:
    """G7: an older record that comes meanwhile would be a dead letter in place of the killer."""
    assert found(Killing, weak.nobody_is_suspected, range(500)) is not None


def test_a_weak_sink_acts_once_when_nothing_fails_and_nobody_repeats() -> None:
    """G14: what may repeat repeats by faults, by what is too slow, and by pushing again alone."""
    acted = 0
    for seed in range(SCHEDULES // 4):
        schedule = Weak(seed, NO_FAULTS)
        schedule.client.sends[:] = schedule.records

        schedule.run()

        assert max(schedule.acts.values(), default=1) == 1, f"Weak({seed}, NO_FAULTS)"
        acted += len(schedule.acts)
    assert acted > SCHEDULES / 4


@pytest.mark.parametrize("variant", weak.VARIANTS, ids=lambda each: each.__name__)
def test_a_broken_variant_is_noticed(variant: Variant) -> None:
    """G14: what a part of the protocol is for: without it some schedule breaks an invariant."""
    assert found(Weak, variant, range(MAX_SEARCHED)) is not None
