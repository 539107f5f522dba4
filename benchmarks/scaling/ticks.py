"""Costs of a tick, by the number of intervals and the share that changed since the last tick.

`python -m benchmarks.scaling.ticks` prints, for two computations with a number of intervals in
total, the rows read, the queries, the calls and the time of one tick. Time is virtual, with the
latencies of the cloud's profile: the median of five ticks, or a single tick if many intervals
change. Before each tick, records arrive at some intervals of the first computation, whose workers
pass them to the workers of the second one. With `--full` each tick reads everything, as in
pipelines with few intervals.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.harness.results import percentile
from benchmarks.scaling.benchmark import SEED, Shape, arrival
from benchmarks.scaling.profile import Latencies
from benchmarks.scaling.simulation import FIRST_MS, Machine, Simulation
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, ingest
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.layout import interval_of
from rollforward.streams.storage.schema import Head
from rollforward.streams.workers.worker import Worker

INTERVALS = (16, 256, 4_096, 10_000)
CHANGED = (0.0, 0.01, 1.0)
STREAM, PROCESS = "in-0", "feed-0"
AT_ONCE = 500  # Records per push.
TICKS, MANY = 5, 1_000  # A single tick if this many change, as their workers take minutes.
STEP_MS = 10_000  # Time between two records of one interval.


class Ticks:
    """A pipeline whose sources, workers and ticks run on demand."""

    def __init__(self, intervals: int, *, is_full: bool) -> None:
        pipeline = replace(Shape(), stages=2).pipeline(1)
        pipeline.intervals = intervals // 2  # More than a declaration allows.
        config = StreamConfig(linger=(), gather_s=0.0)
        self.simulation = Simulation(
            pipeline, 0, at_once=1, latencies=Latencies(is_limited=False),
            config=replace(config, follow_from=10**9) if is_full else config, seed=SEED,
        )  # fmt: skip
        self.simulation.ticks.machines.clear()
        self.machine = Machine()
        self.at_ms = FIRST_MS
        self._do(read_head(self.environment), "first")
        self.keys = self._keys()

    @property
    def environment(self) -> Any:
        return self.simulation.environment(self.machine)

    @property
    def head(self) -> Head:
        [row] = self.simulation.rows.read([self.environment.names.head])
        assert row is not None
        head: Head = row.body
        return head

    def _keys(self) -> Mapping[int, str]:
        """Return a key of each interval of the first computation."""
        head, keys, number = self.head, dict[int, str](), 0
        name, *_ = self.simulation.pipeline.graph.order
        while len(keys) < len(head.intervals[name]):
            key = f"k{number}"
            keys.setdefault(interval_of(head, name, slot_of(key)), key)
            number += 1
        return keys

    def _do(self, steps: Any, role: str) -> float:
        """Run steps to their end; return their milliseconds."""
        simulation = self.simulation
        began_ms, ended = simulation.now_ms, list[float]()

        def whole() -> Any:
            yield from steps
            ended.append(simulation.now_ms)

        simulation.start(whole(), self.machine, role)
        while not ended:
            simulation.run(simulation.now_ms + 100)
        return ended[0] - began_ms

    def change(self, share: float) -> None:
        """Push a record to some intervals of the first computation, and run all workers."""
        self.at_ms += STEP_MS
        keys = [key for _, key in sorted(self.keys.items())]
        count = max(1, round(share * len(keys))) if share else 0
        chosen = keys[:: len(keys) // count][:count] if count else []
        records = [arrival(key, self.at_ms) for key in chosen]
        for start in range(0, len(records), AT_ONCE):
            request = IngestRequest(STREAM, PROCESS, records[start : start + AT_ONCE])
            self._do(ingest(self.environment, request), "push")
        for name in self.simulation.pipeline.graph.order:
            for lo in self._intervals_of(name, chosen):
                self._do(Worker(self.environment, name, lo).run(), "work")

    def _intervals_of(self, name: str, keys: Iterable[str]) -> list[int]:
        head = self.head
        return sorted({interval_of(head, name, slot_of(key)) for key in keys})

    def tick(self) -> tuple[Counter[str], float]:
        """Tick once; return its costs and its milliseconds."""
        start_costs = self.simulation.costs.copy()
        took_ms = self._do(tick(self.environment), "measured")
        costs = self.simulation.costs.copy()
        costs.subtract(start_costs)
        return costs, took_ms

    def row(self, share: float) -> str:
        """Return a row of the table."""
        self.tick()
        ticks = []
        for _ in range(TICKS if share * len(self.keys) < MANY else 1):
            self.change(share)
            ticks.append(self.tick())
        costs = ticks[-1][0]
        took_ms = percentile(sorted(took for _, took in ticks), 0.5)
        count = sum(map(len, self.head.intervals.values()))
        return (
            f"| {count:,} | {share:.0%} | {costs['reads']:,} | {costs['queries']:,} "
            f"| {costs['calls']:,} | {took_ms:,.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling.ticks")
    parser.add_argument("--intervals", type=int, nargs="*", default=INTERVALS)
    parser.add_argument("--full", action="store_true", help="read everything at each tick")
    arguments = parser.parse_args()
    print("| intervals | changed | rows read | queries | calls | a tick, ms |")
    print("|---:|---:|---:|---:|---:|---:|", flush=True)
    for intervals in arguments.intervals:
        for share in CHANGED:
            print(Ticks(intervals, is_full=arguments.full).row(share), flush=True)


if __name__ == "__main__":
    main()
