"""Keys with a time to live: when they are forgotten, and when they are not any more."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    PushSource,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.graph.plan import history_of
from rollforward.streams.storage.schema import SLAB
from rollforward.streams.topology.changes import attach, detach
from tests.rollforward.streams.simulator.driver import Came, Desk

SOURCE = PushSource("in", disorder=timedelta(0))


class Tally(Computation):
    """Counts the records of a key, with a timer far ahead."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    ttl = timedelta(seconds=10)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("n").add(1)
        ctx.set_timer("later", 10**12)


class Tally2(Tally):
    name = "tally"
    version = 2
    reads = (1,)
    ttl = None


class Edited(Tally):
    name = "tally"
    ttl = None


def test_a_key_that_is_in_use_is_kept_when_its_time_to_live_is_taken_away() -> None:
    """G15: also with a time to live that the version before has left with it."""
    test = StreamTest(Pipeline("p", Tally, standby=[Tally2]))
    test.push("in", {"k": "a"}, timestamp_ms=1_000)
    test.replace("tally", 2)
    test.push("in", {"k": "a"}, timestamp_ms=2_000)

    test.advance_watermark(11_001)

    assert test.state("tally", "a") == {"n": 2}
    assert [timer.tag for timer in test.timers("tally", "a")] == ["later"]


def test_what_lies_still_is_kept_and_nobody_spins_when_a_time_to_live_is_taken_away() -> None:
    """G15: keys that have had no record since, by an edit of the same version."""
    desk = Desk(Pipeline("p", Tally, intervals=1, sources=[SOURCE]))
    desk.push(Came("1", "a", 1_000), watermark=1_000)
    desk.run()
    desk.simulation.pipeline = desk.pipeline = Pipeline("p", Edited, intervals=1, sources=[SOURCE])
    for machine in desk.simulation.machines:
        machine.caches.clear()

    desk.push(Came("2", "b", 50_000), watermark=50_000)
    desk.run()

    assert [desk.state("tally", key) for key in "ab"] == [{"n": 1}, {"n": 1}]
    assert desk.interval("tally").due == 10**12
    desk.push(watermark=FOREVER)
    desk.run()
    assert desk.interval("tally").fired == 2


class Base(Computation):
    """Stays."""

    inputs: ClassVar = {"in": lambda value: value["k"]}


class Alarm(Computation):
    """Rings half a minute after a record, by the clock, and once more."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    rung: ClassVar[Counter[str]] = Counter()

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["since"] = ctx.now_ms
        ctx.set_timer("ring", ctx.now_ms + 30_000, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        self.rung[timer.tag] += ctx.state["since"] > 0
        if timer.tag == "ring":
            ctx.set_timer("again", ctx.now_ms + 30_000, processing_time=True)


@pytest.mark.parametrize("ttl_", [None, timedelta(days=1)], ids=["kept", "with a ttl"])
def test_what_leaves_fires_its_timers_of_the_clock(ttl_: timedelta | None) -> None:
    """G15: also of keys that have a time to live, which is over when a watermark ends."""

    class Mortal(Alarm):
        name = "alarm"
        ttl = ttl_
        rung: ClassVar[Counter[str]] = Counter()

    desk = Desk(Pipeline("p", Base, standby=[Mortal], intervals=1, sources=[SOURCE]))
    desk.push(Came("0", "a", 1))
    desk.do(attach(desk.environment, "alarm", None))
    desk.run()
    desk.push(Came("1", "a", 2))
    desk.do(desk.worker("alarm"))

    desk.do(detach(desk.environment, "alarm", discard=False))
    desk.run()

    assert Mortal.rung == {"ring": 1, "again": 1}
    assert history_of(desk.head)[0][:2] == ("alarm", "detached")
    assert history_of(desk.head)[0].timers == 0


def test_a_key_is_forgotten_behind_its_last_timer_of_the_clock_when_all_is_closed() -> None:
    """G15: nothing is left of it."""

    class Mortal(Alarm):
        name = "alarm"
        ttl = timedelta(days=1)
        rung: ClassVar[Counter[str]] = Counter()

    desk = Desk(Pipeline("p", Mortal, intervals=1, sources=[SOURCE]))
    desk.push(Came("1", "a", 2), watermark=FOREVER)
    desk.run()

    assert Mortal.rung == {"ring": 1, "again": 1}
    assert _keys(desk) == []


def _keys(desk: Desk) -> list[Any]:
    rows = desk.simulation.store.rows.items()
    return [key for name, row in rows if name.kind == SLAB for key in row.body.keys]
