"""Pipelines with more intervals and processes than a commit has rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.graph.head import MAX_FIRST_ROWS, read_head
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import INTERVAL, SOURCE
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
