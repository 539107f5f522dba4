"""Why an interval is split: backlog, slow bundles, or states that exceed the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.model.limits import Limits
from rollforward.streams.scaling import load_meter
from rollforward.streams.scaling.load_meter import LoadMeter, median_slot
from rollforward.streams.storage import state_store
from tests.rollforward.streams.simulator.driver import Came, Desk

KEYS = ["a", "b", "c", "d"]
MIDDLE = median_slot(dict.fromkeys(KEYS, 1))
NO_BACKLOG = 2.0  # No worker is busy for twice the time.


class Clocked:
    """A meter with a clock that only its bundles move."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.meter = LoadMeter(lambda: self.now_ms)

    def period(self, *, busy_ms: float = 900, bundles: int = 1, **more: Any) -> int | None:
        """Return the slot of the split that a period of one second or more suggests."""
        for _ in range(bundles):
            self.meter.round(busy_ms / bundles, keys=KEYS, **({"commit_ms": 5} | more))
        self.now_ms += max(busy_ms, 1_000)
        assert self.meter.end_period(int(self.now_ms))
        return self.meter.split_slot


@pytest.mark.parametrize(("busy_ms", "behind", "is_split"), [
    (800, True, True), (799, True, False), (999, False, False),
])  # fmt: skip
def test_a_worker_that_is_busy_and_always_behind_splits(
    busy_ms: float, behind: bool, is_split: bool
) -> None:
    slot = Clocked().period(busy_ms=busy_ms, behind=behind)
    assert slot == (MIDDLE if is_split else None)


def test_bundles_that_stay_slow_lead_to_a_split_and_one_slow_bundle_does_not() -> None:
    """The count begins again after a split, and with each period that is not slow."""
    clocked = Clocked()
    slow: dict[str, Any] = {"busy_ms": 1_000, "hooks_ms": 1_000, "behind": False}

    slots = [clocked.period(**slow) for _ in range(7)]
    assert slots == [None, None, MIDDLE, None, None, MIDDLE, None]

    assert [clocked.period(behind=False), clocked.period(**slow)] == [None, None]
    assert [clocked.period(**slow), clocked.period(**slow)] == [None, MIDDLE]


def test_slow_remote_calls_are_no_reason_for_a_split() -> None:
    """Each half would read and commit as slowly."""
    clocked = Clocked()
    slots = [clocked.period(busy_ms=1_900, hooks_ms=999, behind=False) for _ in range(6)]
    assert slots == [None] * 6


@pytest.mark.parametrize(("busy_ms", "reread", "is_split"), [
    (500, 1, True), (499, 1, False), (900, 0, False),
])  # fmt: skip
def test_a_working_set_above_the_cache_leads_to_a_split(
    busy_ms: float, reread: int, is_split: bool
) -> None:
    slot = Clocked().period(busy_ms=busy_ms, bundles=3, reread=reread, behind=False)
    assert slot == (MIDDLE if is_split else None)


def test_few_bundles_that_read_evicted_rows_are_no_reason_for_a_split() -> None:
    clocked = Clocked()
    for reread in (0, 0, 3, 3):
        clocked.meter.round(100, 5, KEYS, behind=False, reread=reread)
    assert clocked.period(busy_ms=600, behind=False, reread=0) is None


# On the services' stand-in, with the real worker


def pipeline_of(work_s: float, desk: list[Desk]) -> Pipeline:
    """Return a pipeline with a computation whose hook takes some time."""

    class Slow(Computation):
        inputs: ClassVar = {"in": lambda value: value["k"]}

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.value("text").set("x" * 40)
            ctx.state.counter("n").add(1)
            desk[0].wait(work_s)

    return Pipeline("p", Slow, intervals=1, limits=Limits(intervals=4))


def push_each(desk: Desk, labels: str, keys: int) -> None:
    for label in labels:
        desk.push(*(Came(f"{label}{n}", f"k{n}", 1) for n in range(keys)))


@pytest.mark.parametrize(("work_s", "is_split"), [(0.3, True), (0.2, False)])
def test_an_interval_whose_bundles_are_slow_is_split(
    work_s: float, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: four records a bundle, so four times the hook's time; each record counts once."""
    monkeypatch.setattr(load_meter, "SPLIT_BUSY", NO_BACKLOG)
    holder: list[Desk] = []
    desk = Desk(pipeline_of(work_s, holder))
    holder.append(desk)
    desk.simulation.config = replace(desk.simulation.config, max_records=4)

    push_each(desk, "ab", keys=24)
    desk.run()

    assert (len(desk.head.intervals["slow"]) > 1) == is_split
    assert all(desk.state("slow", f"k{n}")["n"] == 2 for n in range(24))


@pytest.mark.parametrize(("cache_bytes", "is_split"), [(2_000, True), (32_000_000, False)])
def test_an_interval_whose_states_exceed_the_cache_is_split(
    cache_bytes: int, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10, G13: a half has a cache of its own; each record counts once."""
    monkeypatch.setattr(load_meter, "PERIOD_MS", 0)
    monkeypatch.setattr(load_meter, "SPLIT_BUSY", NO_BACKLOG)
    monkeypatch.setattr(state_store, "MAX_SLAB_BYTES", 300)
    holder: list[Desk] = []
    desk = Desk(pipeline_of(0.001, holder))
    holder.append(desk)
    desk.simulation.config = replace(
        desk.simulation.config, cache_bytes=cache_bytes, max_records=40
    )

    push_each(desk, "abcd", keys=40)
    desk.run()

    assert (len(desk.head.intervals["slow"]) > 1) == is_split
    assert all(desk.state("slow", f"k{n}")["n"] == 4 for n in range(40))
