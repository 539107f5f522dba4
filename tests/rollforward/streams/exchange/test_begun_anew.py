"""Pipelines that begin anew under the name of one whose rows were deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, Pulled, PullSource, Record, entities
from tests.infra.world import Services
from tests.rollforward.streams.harness import WEBLOG, delete_rows, hits, stream_world, windows

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


class Counted(Computation):
    inputs: ClassVar = {"log": lambda value: "all"}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("records").add()


class Log:
    """A log in which each record comes a little later than the last one."""

    def __init__(self) -> None:
        self._reads = 0

    def read(self, clients: Clients, position: Any, limit: int) -> Pulled:
        self._reads += 1
        if self._reads % 2:  # There is nothing for now.
            return Pulled([], position)
        number = (position or 0) + 1
        return Pulled([(number, number)], number, is_over=number == 5)


@one_emulator
def test_a_pipeline_begun_anew_needs_no_sweep(services: Services) -> None:
    """G9: names of tasks stay taken for hours, and those of its first tasks were all used."""
    world = stream_world(services)
    for _ in range(2):
        with world.context():
            delete_rows(entities)
        for minute in range(3):
            with world.context():
                WEBLOG.push(world.clients, "requests", hits((f"{minute}", "/", minute * 60_000)))
            world.settle()
        with world.context():
            WEBLOG.close(world.clients, "requests")
        world.settle()
        assert windows(world) == {str(n * 60_000): [["/", 1]] for n in range(3)}


@one_emulator
def test_a_source_read_anew_needs_no_sweep(services: Services) -> None:
    """G9: its reader's tasks are named by the commits of its source."""
    source = PullSource("log", Log().read, poll=timedelta(seconds=1))
    pipeline = Pipeline("read-anew", Counted, sources=[source], intervals=1)
    world = stream_world(services, pipeline)
    for _ in range(2):
        with world.context():
            delete_rows(entities)
            pipeline.pull(world.clients, "log")
        world.settle()
        with world.context():
            assert pipeline.state(world.clients, "counted", "all") == {"records": 5}
