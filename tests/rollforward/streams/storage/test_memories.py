"""Cached rows of a process that other processes have overwritten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rollforward.streams import FOREVER, Computation, Context, Pipeline, Pulled, PullSource, Record
from rollforward.streams.exchange.pulling import Partition, pull_wake
from rollforward.streams.storage.schema import SLAB, SourceRow
from tests.rollforward.streams.simulator.accidents import NO_FAULTS, Chances
from tests.rollforward.streams.simulator.simulator import Simulation

LINES = 12


def read(clients: Any, position: int | None, limit: int) -> Pulled:
    at = position or 0
    return Pulled([({"k": f"k{at % 3}"}, at)], at + 1, is_over=at + 1 == LINES)


class Counted(Computation):
    inputs: ClassVar = {"lines": lambda line: line["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


PULLED = Pipeline("pulled", Counted, sources=[PullSource("lines", read)], intervals=1)


@pytest.mark.parametrize("chances", [NO_FAULTS, Chances(purge=0)], ids=["calm", "faults"])
def test_processes_that_pull_in_turn_come_to_the_end(chances: Chances) -> None:
    """G1: each yields after each commit, and has cached a row that the other one overwrites.

    No queue is purged: a source without `poll` then waits for another call of `pull`.
    """
    for seed in range(50):
        simulation = Simulation(PULLED, seed, chances)
        simulation.config = replace(simulation.config, run_ms=-1, linger=())
        environment = simulation.environment(simulation.machines[0])
        simulation.wakes.append(
            (simulation.now_ms, pull_wake(environment, Partition("lines", ""), SourceRow()))
        )
        simulation.run()

        rows = simulation.store.rows
        [slab] = [row.body for key, row in rows.items() if key.kind == SLAB]
        seen = {key: Counted.codec.load(state.text)["seen"] for key, state in slab.keys.items()}
        assert seen == {"k0": 4, "k1": 4, "k2": 4}, seed
        assert rows[environment.names.head].body.inputs == {"counted": FOREVER}, seed


def skip(clients: Any, position: int | None, limit: int) -> Pulled:
    at = position or 0
    records = [({"k": "k"}, at)] if at % 2 else []
    return Pulled(records, at + 1, watermark=at, is_over=at + 1 == LINES)


def test_a_read_that_comes_over_what_is_no_record_goes_on() -> None:
    """G1: only one that finds nothing and stays where it is has come to the end for now."""
    pipeline = Pipeline("skipping", Counted, sources=[PullSource("lines", skip)], intervals=1)
    simulation = Simulation(pipeline, 0, NO_FAULTS)
    environment = simulation.environment(simulation.machines[0])
    simulation.wakes.append(
        (simulation.now_ms, pull_wake(environment, Partition("lines", ""), SourceRow()))
    )
    simulation.run()

    [slab] = [row.body for key, row in simulation.store.rows.items() if key.kind == SLAB]
    assert Counted.codec.load(slab.keys["k"].text) == {"seen": LINES // 2}
