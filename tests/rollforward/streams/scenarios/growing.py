"""Schedules in which intervals are split and merged, sources are held back, and some go ahead."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.model.errors import BackpressureError, BadLayoutError
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage.remote_calls import Pause
from rollforward.streams.storage.schema import HEAD, INTERVAL, Head
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import (
    IDLE_MS,
    KEYS,
    TINY,
    WINDOW,
    Client,
    Collect,
    Rekey,
    Schedule,
    Windows,
    is_taken,
)
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Violation

STAGES = ("rekey", "windows", "collect")
RESHAPED = 6  # Splits and merges of one schedule.
SLOTS_OF_KEYS = [slot_of(f"{letter}{n}") for letter in "km" for n in range(KEYS)]


def pipeline_of(*stages: type[Computation], processes: int = 2, **more: Any) -> Pipeline:
    names = ("a", "b")[:processes]
    source = PushSource("in", processes=names, idle=timedelta(milliseconds=IDLE_MS))
    return Pipeline("sim", *stages, intervals=2, sources=[source], **more)


class Other(Schedule):
    """A schedule of another pipeline, with clients that push again what was refused."""

    simulation_type: ClassVar = Simulation

    def __init__(self, pipeline: Pipeline, seed: int, chances: Chances | None) -> None:
        super().__init__(seed, chances)
        chance = random.Random(seed)
        self.simulation = self.simulation_type(pipeline, seed, chances)
        self.simulation.store.takes = is_taken
        self.judge = Judge(self.simulation)
        names = pipeline.sources["in"].processes
        self.clients = [
            Client(process, self.records[n :: len(names)], chance)
            for n, process in enumerate(names)
        ]
        self.refused = 0
        for client in self.clients:
            self.simulation.users.append(partial(self._patient, client))

    def _patient(self, client: Client) -> Generator[Any, Any, None]:
        while True:
            try:
                yield from client.steps(self.simulation)
            except BackpressureError:
                self.refused += 1
                yield Pause(0.02)
            else:
                return


class NotingRekey(Rekey):
    """Notes what it gets as late."""

    name = "rekey"

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        if ctx.late:
            ctx.state.list("came late").append(record.value["id"])


class Reshaped(Other):
    """Somebody splits and merges intervals at any time."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        processes = 2 if seed % 3 == 0 else 1
        super().__init__(
            pipeline_of(NotingRekey, Windows, Collect, processes=processes), seed, chances
        )
        self.luck = random.Random(f"reshaped {seed}")
        self.reshaped = 0
        if seed % 2:  # So that each batch reads again what others have evicted.
            self.simulation.config = replace(self.simulation.config, cache_bytes=seed % 5 * 200)
        self.stages: tuple[str, ...] = STAGES
        self.simulation.users.append(partial(self._reshape, self.simulation))

    @property
    def head_now(self) -> Head:
        rows = self.simulation.store.rows
        heads = [found.body for key, found in rows.items() if key.kind == HEAD]
        return heads[0] if heads else Head()

    def _reshape(self, simulation: Simulation) -> Generator[Any, Any, None]:
        machine = simulation.random.choice(simulation.machines)
        environment = simulation.environment(machine)
        while self.reshaped < RESHAPED:
            yield Pause(self.luck.choice((0.001, 0.01, 0.03)))
            name = self.luck.choice(self.stages)
            los = self.head_now.intervals.get(name, ())[1:]
            try:
                if los and self.luck.random() < 0.5:
                    yield from merge(environment, name, self.luck.choice(los))
                else:
                    slot = self.luck.choice([*SLOTS_OF_KEYS, self.luck.randrange(SLOTS)])
                    yield from split(environment, name, slot)
            except BadLayoutError:
                pass
            self.reshaped += 1

    def run(self) -> None:
        super().run()
        self._judge_layout()
        lanes = self.judge.lanes
        for _, state in self.judge.states("rekey"):
            if wrong := [id_ for id_ in state.get("came late", ()) if lanes[id_] == "0"]:
                raise Violation(f"{wrong} came in time, and were overtaken by themselves")

    def _judge_layout(self) -> None:
        """Check that at rest the intervals have all slots once, and nothing is left behind."""
        head, rows = self.head_now, self.simulation.store.rows
        if head.retired:
            raise Violation(f"not forgotten: {head.retired}")
        intervals = {
            (key.name.split(":")[1], int(key.name.split(":")[2], 16)): found.body
            for key, found in rows.items()
            if key.kind == INTERVAL
        }
        for name in STAGES:
            los = list(head.intervals[name])
            if sorted(lo for each, lo in intervals if each == name) != los:
                raise Violation(f"{name} is cut at {los}, and its rows are {sorted(intervals)}")
            for lo, hi in zip(los, [*los[1:], SLOTS], strict=True):
                slabs = [slab.lo for slab in intervals[name, lo].slabs]
                if intervals[name, lo].hi != hi or slabs[0] != lo or max(slabs) >= hi:
                    raise Violation(f"{name} at {lo} ends at {hi}: {intervals[name, lo]}")


class Crowded(Reshaped):
    """An interval with more than three slabs is split, too, whatever its load is."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(seed, chances)
        self.sizes = {**TINY, "MOST_SLABS": 3, "MAX_SLOT_BYTES": 400}


TIGHT = Limits(waiting_rows=2, max_drift=timedelta(milliseconds=6))


class Held(Other):
    """Sources are held back after two chunks, or when one is 6 ms ahead of the other."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(pipeline_of(Rekey, Windows, Collect, limits=TIGHT), seed, chances)


class EarlyWindows(Windows):
    """Windows that close when most is there."""

    name = "windows"
    percentile = 60

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms // WINDOW * WINDOW + WINDOW <= ctx.watermark:
            ctx.state.list("late").append(record.value["id"])
            ctx.drop_late()
            return
        super().record(ctx, record)


class PercentileWatermarks(Other):
    """Windows of a percentile: the same but that what comes too late may have come in time."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(pipeline_of(Rekey, EarlyWindows, Collect), seed, chances)

    def _judge_counts(self) -> None:
        self.judge.lanes = dict.fromkeys(self.judge.lanes, "1")
        super()._judge_counts()


class ExactWindows(EarlyWindows):
    """The same, edited: they wait for all."""

    name = "windows"
    percentile = 100


class EarlyNoMore(PercentileWatermarks):
    """The percentile is taken away, and instances of before, or that lack the windows, serve on."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(seed, chances)
        simulation = self.simulation
        before, simulation.pipeline = simulation.pipeline, pipeline_of(Rekey, ExactWindows, Collect)
        lacking = pipeline_of(Rekey, Collect)
        simulation.machines[0].pipeline = before
        simulation.machines[1].pipeline = (before, lacking, None)[seed % 3]
