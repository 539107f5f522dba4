"""The protocol of streams under many schedules, and broken variants of it, which must be noticed.

What a schedule has found is found again by its seed: `play_of(seed).run()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.runs import sampling
from tests.infra.runs.soak import BUDGET, IS_SOAK, SEED
from tests.rollforward.streams.planted import codecs, fusion, holds, protocol, publications
from tests.rollforward.streams.scenarios.coding import Coding
from tests.rollforward.streams.scenarios.full_pipeline import Mixed, Parted
from tests.rollforward.streams.scenarios.fusing import Fusing
from tests.rollforward.streams.scenarios.holding import Holding
from tests.rollforward.streams.scenarios.publishing import Publishing
from tests.rollforward.streams.simulator.schedules import Busy, Schedule, found
from tests.rollforward.streams.simulator.store import Violation

SCHEDULES = 100_000 if IS_SOAK else 400 if sampling.IS_SAMPLED else 800
# Another seed, of a soak or of the day, plays others.
FIRST = SCHEDULES * (int(SEED) if IS_SOAK and SEED.isdecimal() else sampling.SEED)
PARTS = 2  # All of which `make test` draws.

Play = Schedule | Mixed | Fusing | Holding | Publishing | Coding
Variant = Callable[[Any, pytest.MonkeyPatch], None]
VARIANTS: list[tuple[type[Play], Variant]] = [
    *((Schedule, variant) for variant in protocol.OF_STAGES),
    *((Busy, variant) for variant in protocol.OF_BUSY),
    *((Mixed, variant) for variant in protocol.OF_MIXED),
    *((Parted, variant) for variant in protocol.OF_PARTED),
    *((Fusing, variant) for variant in fusion.VARIANTS),
    *((Holding, variant) for variant in holds.VARIANTS),
    *((Publishing, variant) for variant in publications.VARIANTS),
    *((Coding, variant) for variant in codecs.VARIANTS),
]
MAX_SEARCHED = 2_000


def test_no_wake_is_lost_without_faults_in_any_schedule() -> None:
    """The sweep makes up for crashes alone: with delays and repeats only, nothing needs it."""
    calm = BUDGET.plays(range(SCHEDULES // 10))
    assert found(Schedule, protocol.calm_without_sweep, calm) is None


@pytest.mark.soak_share(0.24)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_holds_under_faults_in_any_schedule(part: int) -> None:
    """G1, G2, G3, G4, G5, G6, G7, G16, G18, G19, G20, G21, G23: after each commit, at rest."""
    for seed in BUDGET.drawn(range(FIRST + part, FIRST + SCHEDULES, PARTS)):
        if BUDGET.is_over():
            break
        schedule = play_of(seed)
        try:
            schedule.run()
        except Violation as violation:
            raise AssertionError(f"schedule {seed}: {violation}") from violation
        BUDGET.note(schedule.simulation.counts)
        BUDGET.played()
    assert BUDGET.happened["crash"] > BUDGET.counts["played"] / 2


def test_a_source_is_read_although_the_task_of_a_sweep_is_purged_too() -> None:
    """G4: a purged task's name stays taken, that of a sweep as well."""
    play_of(112_394_645).run()


@pytest.mark.parametrize(("kind", "variant"), VARIANTS, ids=lambda each: each.__name__)
def test_a_broken_variant_is_noticed_under_faults(kind: type[Play], variant: Variant) -> None:
    """What a part of the protocol is for: without it some schedule breaks an invariant."""
    assert found(kind, variant, range(MAX_SEARCHED)) is not None


def play_of(seed: int) -> Play:
    """Return a schedule: one in three has all kinds of sources and timers, one in six fuses.

    One in six holds the watermark, one in twelve publishes, one in twelve has codecs, and one in
    fifteen reads partitions.
    """
    if seed % 3 == 2:
        number = seed // 3
        return Mixed(number) if number % 5 else Parted(number // 5)
    if seed % 6 == 4:
        return Holding(seed)
    if seed % 12 == 3:
        return Publishing(seed)
    if seed % 12 == 6:
        return Coding(seed // 12)
    return Fusing(seed) if seed % 6 == 1 else Schedule(seed)
