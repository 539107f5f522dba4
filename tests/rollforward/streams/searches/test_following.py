"""Ticks that read what has changed, under many schedules: each cut is that of a full read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import following as planted
from tests.rollforward.streams.scenarios.changing import Changing
from tests.rollforward.streams.scenarios.following import following
from tests.rollforward.streams.scenarios.full_pipeline import Mixed
from tests.rollforward.streams.scenarios.fusing import Fusing
from tests.rollforward.streams.scenarios.growing import EarlyNoMore, Held, Reshaped
from tests.rollforward.streams.scenarios.holding import Holding
from tests.rollforward.streams.scenarios.publishing import Publishing
from tests.rollforward.streams.scenarios.weak import Weak
from tests.rollforward.streams.scenarios.weak_changes import WeakChanges
from tests.rollforward.streams.simulator.schedules import Busy, Schedule
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 10_000 if IS_SOAK else 24
MAX_SEARCHED = 2_000
KINDS = [
    Schedule, Busy, Mixed, Reshaped, Held, EarlyNoMore, Fusing, Holding, Weak, Changing,
    WeakChanges, Publishing,
]  # fmt: skip


def play(kind: type[Any], seeds: Any, *, old_machine: bool = False) -> Counter[str]:
    """Play schedules; return how many cuts have followed, and how many were full."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        if BUDGET.is_over():
            break
        schedule = kind(seed)
        try:
            with following(schedule, old_machine=old_machine) as cuts:
                schedule.run()
        except Violation as violation:
            raise AssertionError(f"{kind.__name__}({seed}): {violation}") from violation
        counts += cuts
        BUDGET.played()
    return counts


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_tick_knows_is_what_is_there(kind: type[Any]) -> None:
    """G3: whatever has happened since the last tick of the process, and whatever has failed."""
    counts = play(kind, BUDGET.drawn(range(SCHEDULES)))
    assert counts["followed"] > counts["full"] / 10


@pytest.mark.parametrize("kind", [Schedule, Busy, Reshaped], ids=lambda kind: kind.__name__)
def test_code_that_notes_nothing_is_noticed(kind: type[Any]) -> None:
    """G3: a machine of the release before sends as well, and takes the leases in turn."""
    counts = play(kind, BUDGET.drawn(range(SCHEDULES)), old_machine=True)
    assert counts["followed"]


@pytest.mark.parametrize("plant", planted.VARIANTS, ids=lambda plant: plant.variant.__name__)
def test_a_tick_that_misses_something_is_noticed(plant: planted.Plant) -> None:
    """G3: what each rule is for: without it some cut is not that of a full read."""
    for seed in range(plant.first, plant.first + MAX_SEARCHED):
        schedule = plant.kind(seed)
        with pytest.MonkeyPatch.context() as patch:
            plant.variant(patch)
            try:
                with following(schedule, old_machine=plant.old_machine):
                    schedule.run()
            except Violation:
                return
    pytest.fail("no schedule has noticed it")
