"""Computations that come, change and leave, and code that is deployed, under many schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import changes
from tests.rollforward.streams.scenarios.changing import ACTS, Changing
from tests.rollforward.streams.simulator.schedules import found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 30_000 if IS_SOAK else 60
MAX_SEARCHED = 3_000
Variant = Callable[[Changing, pytest.MonkeyPatch], None]


def test_all_holds_in_any_schedule() -> None:
    """G1, G2, G3, G4, G5, G15: the results are those of a pipeline in which nothing changes."""
    done = Counter[str]()
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        schedule = Changing(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"Changing({seed}): {violation}") from violation
        done += schedule.done
        BUDGET.played()
    assert IS_SOAK or {*ACTS} <= {*done}


def test_no_wake_is_lost_without_faults_when_computations_change() -> None:
    """G15: the sweep makes up for crashes alone."""
    assert found(Changing, changes.calm, BUDGET.plays(range(SCHEDULES // 2))) is None


@pytest.mark.parametrize("variant", changes.VARIANTS, ids=lambda each: each.__name__)
def test_a_broken_change_is_noticed(variant: Variant) -> None:
    """G15: what a part of the protocol is for: without it some schedule breaks an invariant."""
    assert found(Changing, variant, range(MAX_SEARCHED)) is not None
