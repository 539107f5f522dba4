"""Pipelines with more intervals and processes than a commit has rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.graph.head import MAX_FIRST_ROWS, read_head
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import INTERVAL, SOURCE
from rollforward.streams.topology.changes import attach
from tests.rollforward.streams.simulator.driver import Came, Desk

INTERVALS, PROCESSES = 64, 100


def counting(number: int, inputs: Sequence[str]) -> Computation:
    """Return a computation that counts the records of some streams."""

    class Counting(Computation):
        name = f"counting-{number}"

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.counter("records").add()

    made = Counting()
    made.inputs = dict.fromkeys(inputs, lambda value: str(value["k"]))
    return made


def desk_of(computations: int, streams: Sequence[str], intervals: int, **options: Any) -> Desk:
    names = [f"p{n}" for n in range(PROCESSES)]
    return Desk(
        Pipeline(
            "many",
            *[counting(number, streams) for number in range(computations)],
            sources=[PushSource(stream, processes=names, **options) for stream in streams],
            intervals=intervals,
        )
    )


@pytest.mark.parametrize("died_at", range(3))
def test_a_pipeline_begins_with_more_rows_than_a_commit_has(died_at: int) -> None:
    """G1: its first push was refused as if its record were too large; and one that died goes on."""
    desk = desk_of(8, ["in"], INTERVALS)
    if died_at:
        desk.until(read_head(desk.environment), Commit, of=died_at)
        desk.do(tick(desk.environment))
    for number in range(PROCESSES):
        desk.push(Came(f"{number}", "a", 1_000), process=f"p{number}")
    desk.run()

    assert desk.status().sources["in"].records == PROCESSES
    assert desk.state("counting-7", "a") == {"records": PROCESSES}
    rows = len(desk.rows(INTERVAL)), len(desk.rows(SOURCE))
    assert rows == (8 * INTERVALS, PROCESSES)
    assert sum(rows) > MAX_FIRST_ROWS


def test_more_processes_fall_silent_at_once_than_a_commit_has_rows() -> None:
    """G3: each tick failed by its commit, and all watermarks stood still for good."""
    streams = [f"in{n}" for n in range(6)]
    desk = desk_of(1, streams, 1, advance_when_idle=timedelta(minutes=1))
    for stream in streams:
        for number in range(PROCESSES):
            process, at = f"p{number}", desk.simulation.now_ms
            desk.push(Came(f"{number}", "a", at), stream=stream, process=process)
    desk.run()
    desk.wait(300)
    desk.do(tick(desk.environment))
    desk.run()

    status = desk.status()
    assert [len(status.sources[stream].idle) for stream in streams] == [PROCESSES] * len(streams)
    assert desk.head.inputs["counting-0"] >= desk.simulation.now_ms - 80_000


@pytest.mark.parametrize("died_at", range(3))
def test_a_computation_of_more_new_processes_than_a_commit_has_rows_is_attached(
    died_at: int,
) -> None:
    """G15: its attachment was refused, each time, as a commit of too many rows."""
    names, streams = [f"p{n}" for n in range(PROCESSES)], [f"in{n}" for n in range(6)]
    sources = [PushSource(stream, processes=names) for stream in streams]
    pipeline = Pipeline(
        "many",
        counting(0, ["in"]),
        standby=[counting(1, streams)],
        sources=[PushSource("in"), *sources],
        intervals=1,
    )
    desk = Desk(pipeline)
    desk.push(Came("first", "a", 1_000))
    desk.run()
    if died_at:
        desk.until(attach(desk.environment, "counting-1", None), Commit, of=died_at)
        desk.do(tick(desk.environment))
    desk.do(attach(desk.environment, "counting-1", None))
    for stream in streams:
        for process in names:
            desk.push(Came(process, "a", 200_000), stream=stream, process=process)
    desk.run()

    assert desk.state("counting-1", "a") == {"records": PROCESSES * len(streams)}
    assert desk.status().sources["in5"].watermark > 0
