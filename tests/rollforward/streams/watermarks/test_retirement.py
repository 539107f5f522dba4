"""Ticks that acknowledge a layout for idle senders, so that retired inboxes can be forgotten."""

from __future__ import annotations

from typing import Any, ClassVar

from rollforward.streams import Computation, Pipeline, PushSource
from rollforward.streams.coordinator import tick
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.scaling.autosplit import merge_idle, split_if_full
from rollforward.streams.scaling.load_meter import LoadMeter
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.schema import INTERVAL, Interval, Slab
from rollforward.streams.topology.changes import attach, detach
from rollforward.streams.watermarks.retirement import MAX_PUTS
from tests.rollforward.streams.simulator.driver import Came, Desk

AT = 1_767_225_600_000


class Stays(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}


class Comes(Stays):
    """Is attached."""


def _desk(intervals: int) -> Desk:
    sources = [PushSource("in", processes=("a", "b"))]
    desk = Desk(Pipeline("p", Stays, standby=[Comes], sources=sources, intervals=intervals))
    for process in ("a", "b"):
        desk.push(Came(process, "k", 1), process=process)
    desk.run()
    return desk


def _ticks(desk: Desk) -> int:
    """Return how many ticks it takes until nothing is left behind."""
    for count in range(1, 100):
        desk.do(tick(desk.environment))
        if not desk.head.retired:
            return count
    raise AssertionError(f"not forgotten: {desk.head.retired}")


def test_intervals_with_large_rows_are_noted_by_several_ticks() -> None:
    """G8, G10: all of them together are more than one commit takes."""
    desk = _desk(48)
    rows = desk.simulation.store.rows
    for key, row in [*rows.items()]:
        if key.kind == INTERVAL:
            lo = int(key.name.rpartition(":")[2], 16)
            slabs = tuple(Slab(lo + n // 2, AT, AT, AT, 9) for n in range(2_500))
            rows[key] = row._replace(body=row.body._replace(slabs=slabs))

    desk.do(split(desk.environment, "stays", 1))
    desk.wait(2)

    assert _ticks(desk) > 1


def test_all_intervals_of_a_few_computations_are_noted_at_once() -> None:
    """G15: a change ends after a few ticks, however finely all is cut."""
    assert MAX_PUTS >= 2 * 64
    desk = _desk(64)
    desk.do(attach(desk.environment, "comes", None))
    desk.wait(2)

    for _ in range(3):
        desk.do(tick(desk.environment))
    assert desk.head.topology["comes"][3] == "running"


def test_a_process_that_died_with_a_clock_a_day_ahead_holds_no_change() -> None:
    """G10, G15: what it has seen is no sign that it is at work."""
    desk = _desk(1)
    key = desk.environment.names.source("in", "b")
    row = desk.simulation.store.rows[key]
    ahead = row.body._replace(seen_ms=desk.simulation.now_ms + 86_400_000)
    desk.simulation.store.rows[key] = row._replace(body=ahead)

    desk.do(split(desk.environment, "stays", SLOTS // 2))
    desk.wait(2)

    assert _ticks(desk) < 5


def test_what_was_detached_meanwhile_is_neither_split_nor_merged() -> None:
    """G15: the worker or tick that wanted to split or merge it continues."""
    desk = _desk(2)
    pipeline = Pipeline("p", Stays, standby=[Comes], intervals=1, limits=Limits(intervals=8))
    desk.simulation.pipeline = desk.pipeline = pipeline
    desk.do(attach(desk.environment, "comes", None))
    desk.run()
    stale_head, environment = desk.head, desk.environment
    desk.do(detach(environment, "comes", discard=True))
    desk.run()
    assert "comes" not in desk.head.topology

    meter = LoadMeter(lambda: 0.0)
    meter.split_slot = 7
    assert desk.do(split_if_full(environment, stale_head, "comes", meter))
    idle: Any = {("comes", lo): Interval(SLOTS) for lo in (0, SLOTS // 2)}
    head = stale_head._replace(intervals={**stale_head.intervals, "comes": (0, SLOTS // 2)})
    desk.do(merge_idle(environment, head, idle))
    assert "comes" not in desk.head.topology
