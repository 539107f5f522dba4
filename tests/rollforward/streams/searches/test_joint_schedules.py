"""Pushes that join the commits of workers, under many schedules, and what guards them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.planted import joining as planted
from tests.rollforward.streams.scenarios.changing import Changing
from tests.rollforward.streams.scenarios.following import following
from tests.rollforward.streams.scenarios.full_pipeline import Mixed
from tests.rollforward.streams.scenarios.growing import Held, Reshaped
from tests.rollforward.streams.scenarios.joining import join_pushes
from tests.rollforward.streams.scenarios.publishing import Publishing
from tests.rollforward.streams.scenarios.weak import Killing, Weak
from tests.rollforward.streams.simulator.schedules import Busy, Schedule, found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 10_000 if IS_SOAK else 30
MAX_SEARCHED = 1_000
KINDS = [Schedule, Busy, Mixed, Reshaped, Held, Weak, Killing, Changing, Publishing]
VARIANTS = [planted.lost_rest, planted.lost_inserts, planted.unguarded_source, planted.believed]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_holds_while_pushes_join_the_commits_of_workers(kind: type[Any]) -> None:
    """G1, G2, G3, G7: whatever fails in between, and however late a joint commit comes."""
    joined = 0
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        schedule = join_pushes(kind(seed))
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"{kind.__name__}({seed}): {violation}") from violation
        BUDGET.played()
        joined += schedule.simulation.counts["joint commits"]
    assert joined


@pytest.mark.parametrize("kind", [Schedule, Busy, Reshaped], ids=lambda kind: kind.__name__)
def test_what_a_tick_knows_is_what_is_there(kind: type[Any]) -> None:
    """G3: a joint commit notes where it sends, as the two commits would."""
    for seed in BUDGET.drawn(range(SCHEDULES)):
        if BUDGET.is_over():
            break
        schedule = join_pushes(kind(seed))
        try:
            with following(schedule):
                schedule.run()
        except Violation as violation:
            raise AssertionError(f"{kind.__name__}({seed}): {violation}") from violation
        BUDGET.played()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_a_joint_commit_without_a_guard_is_noticed(
    variant: Callable[[Any, pytest.MonkeyPatch], None],
) -> None:
    """G1: each part of a joint commit is for something."""
    assert found(Busy, variant, range(MAX_SEARCHED)) is not None
