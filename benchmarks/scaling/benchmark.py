"""The scaling of streams: the real code in virtual time, with 1 to 64 workers.

`python -m benchmarks.scaling` prints by the number of workers: the rate under overload, its share
of linear scaling, the distribution of a worker's time, and the latency of records at half of that
rate. The base of linear scaling is the best rate per worker so far in the table. A worker is a
process with one processor, which runs one task at a time. Processes other than the workers push the
records, and each stage counts them by key. Latencies come from the cloud's profile (`profile.py`).
With `--unlimited` a row can be written as often as commits return, and not only once a second.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from benchmarks.harness.results import percentile
from benchmarks.scaling.profile import Latencies
from benchmarks.scaling.simulation import FIRST_MS, Machine, Simulation, Steps, found_letters
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.exchange.ingest import InboundRecord, IngestRequest, ingest
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.sources import MAX_PROCESSES
from rollforward.streams.storage.remote_calls import Commit, Key, Pause, StoredRow
from rollforward.streams.storage.schema import HEAD

WORKERS = (1, 2, 4, 8, 16, 32, 64)
KEYS, SEED = 10_000, 1
DISORDER = timedelta(seconds=1)


@dataclass(frozen=True)
class Shape:
    """A pipeline and its load.

    Attributes:
        feeds: Pushing processes per worker; there are at least four.
        pushed: Records per push.
        at_once: Concurrent tasks of the workers' queue.
        rate: Records a second of all feeds; None: as many as the sources accept.
    """

    stages: int = 1
    intervals: int = 64
    feeds: int = 1
    pushed: int = 500
    waiting_rows: int | None = None
    at_once: int = 32
    warm_s: float = 8.0
    seconds: float = 8.0
    rate: float | None = None

    def pipeline(self, feeds: int) -> Pipeline:
        """Return a pipeline of the stages, with a number of feeding processes."""
        sources = [
            PushSource(
                f"in-{start}", disorder=DISORDER,
                processes=[f"feed-{n}" for n in range(min(feeds - start, MAX_PROCESSES))],
            )
            for start in range(0, feeds, MAX_PROCESSES)
        ]  # fmt: skip
        streams = [source.stream for source in sources]
        stages = [Stage(n, streams, is_last=n == self.stages) for n in range(1, self.stages + 1)]
        return Pipeline(
            "scaling", *stages, intervals=self.intervals, sources=sources,
            limits=Limits(waiting_rows=self.waiting_rows),
        )  # fmt: skip


class Stage(Computation):
    """Counts a key's records, and passes each to the next stage."""

    def __init__(self, stage: int, streams: Sequence[str], *, is_last: bool) -> None:
        self.name = f"stage-{stage}"
        self.inputs = dict.fromkeys(streams if stage == 1 else [f"passed-{stage - 1}"], by_key)
        self.outputs = () if is_last else (f"passed-{stage}",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        for stream in self.outputs:
            ctx.produce(stream, record.value)


def by_key(value: Mapping[str, Any]) -> str:
    return str(value["key"])


def arrival(key: str, at: int) -> InboundRecord:
    """Return a record of a key."""
    return InboundRecord("", f'{{"key":"{key}"}}', at, {"key": key})


@dataclass
class Load:
    """Feeds that push, and measurements of the last stage's records."""

    simulation: Simulation
    shape: Shape
    is_counted: bool = False
    records: int = 0
    held_ms: float = 0.0  # The time under backpressure.
    lags_ms: list[float] = field(default_factory=list)
    watermark_lags_ms: list[float] = field(default_factory=list)
    _held_since_ms: float | None = None

    def __post_init__(self) -> None:
        simulation = self.simulation
        *_, self._last = simulation.pipeline.graph.order
        simulation.rows.on_commit = self._note
        simulation.start(read_head(simulation.environment(Machine())), Machine(), "first")
        simulation.run(1_000)
        sources = simulation.pipeline.sources.items()
        feeds = [(stream, name) for stream, source in sources for name in source.processes]
        for feed in feeds:
            begin_ms = simulation.now_ms + simulation.random.random() * 1_000
            simulation.at(begin_ms, lambda feed=feed: self._begin(feed, len(feeds)))

    def _begin(self, feed: tuple[str, str], feeds: int) -> None:
        machine = Machine()
        self.simulation.start(self._pushes(machine, feed, feeds), machine, "push")

    def _pushes(self, machine: Machine, feed: tuple[str, str], feeds: int) -> Steps:
        """Push without end, at the rate, or as fast as the source accepts."""
        simulation, shape, chance = self.simulation, self.shape, random.Random(f"{SEED} {feed}")
        environment = simulation.environment(machine)
        pause_ms = 0.0 if shape.rate is None else shape.pushed * feeds * 1_000 / shape.rate
        due_ms = simulation.now_ms
        while True:
            now_ms = FIRST_MS + int(simulation.now_ms)
            keys = [f"k{chance.randrange(KEYS)}" for _ in range(shape.pushed)]
            request = IngestRequest(*feed, [arrival(key, now_ms) for key in keys])
            try:
                yield from ingest(environment, request)
            except BackpressureError as error:
                yield Pause(error.retry_after_s)
            due_ms = due_ms + pause_ms if shape.rate else simulation.now_ms
            if due_ms > simulation.now_ms:
                yield Pause((due_ms - simulation.now_ms) / 1_000)

    def begin_count(self) -> None:
        """Start the measurement."""
        self.is_counted, simulation = True, self.simulation
        if self._held_since_ms is not None:
            self._held_since_ms = simulation.now_ms
        simulation.note_full(simulation.work)
        self.held_ms = simulation.work.full_ms = 0.0
        for figures in (simulation.spent, simulation.calls, simulation.costs, simulation.tick_ms):
            figures.clear()

    def end_count(self) -> None:
        self._note_paused(is_paused=False)
        self.simulation.note_full(self.simulation.work)

    def _note(self, commit: Commit, replaced: Mapping[Key, StoredRow]) -> None:
        now_ms = FIRST_MS + self.simulation.now_ms
        for key, head, _ in commit.puts:
            if key.kind == HEAD:
                self._note_paused(is_paused=bool(head.paused))
                self.watermark_lags_ms.append(now_ms - head.inputs.get(self._last, FIRST_MS))
        if self.is_counted:
            lags = [
                now_ms - letter.timestamp_ms
                for letter in found_letters(replaced.items(), self._last)
            ]
            self.records += len(lags)
            self.lags_ms += lags[::10]

    def _note_paused(self, *, is_paused: bool) -> None:
        now_ms, since_ms = self.simulation.now_ms, self._held_since_ms
        self.held_ms += 0.0 if since_ms is None else now_ms - since_ms
        self._held_since_ms = now_ms if is_paused else None


@dataclass(frozen=True)
class Run:
    """The measurements of a run."""

    workers: int
    shape: Shape
    load: Load

    @property
    def per_s(self) -> float:
        return self.load.records / self.shape.seconds

    def shares(self) -> dict[str, float]:
        """Return the shares of the workers' time by activity, in descending order."""
        all_ms = self.workers * self.shape.seconds * 1_000
        spent = self.load.simulation.spent
        shares = {call: ms / all_ms for (role, call), ms in spent.items() if role == "work"}
        shares["no task"] = max(0.0, 1 - sum(shares.values()))
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def limits(self) -> dict[str, float]:
        """Return for each limit outside of the workers its share of the time."""
        simulation, all_ms = self.load.simulation, self.shape.seconds * 1_000
        return {
            "queue": simulation.work.full_ms / all_ms,
            "back-pressure": self.load.held_ms / all_ms,
            "head row": simulation.spent["tick", "wait for StreamHead"] / all_ms,
        }

    def row(self, one: float, lags: Run | None = None) -> str:
        """Return the run as a row of a table."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in [*self.shares().items()][:4])
        limits = ", ".join(
            f"{n} {share:.0%}" for n, share in self.limits().items() if share >= 0.05
        )
        lag = (
            ""
            if lags is None
            else " / ".join(_seconds(lags.load.lags_ms, at) for at in (0.5, 0.95))
        )
        ticks = self.load.simulation.tick_ms or [0.0]
        return (
            f"| {self.workers} | {self.per_s:,.0f} | {self.per_s / one / self.workers:.2f} | {lag} "
            f"| {percentile(ticks, 0.5):.0f} | {shares} | {limits} |"
        )


COLUMNS = (
    "workers", "records a second", "of linear", "lag p50 / p95, s", "a tick, ms",
    "a worker's time", "limited by",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n|---:|---:|---:|---:|---:|---|---|"


def _seconds(lags_ms: list[float], share: float) -> str:
    return f"{percentile(lags_ms, share) / 1_000:.2f}" if lags_ms else "-"


def run(workers: int, shape: Shape, latencies: Latencies) -> Run:
    """Simulate one pipeline, and measure it after a warm-up."""
    feeds = max(4, shape.feeds * workers)
    simulation = Simulation(
        shape.pipeline(feeds), workers, at_once=shape.at_once,
        latencies=latencies, config=StreamConfig(), seed=SEED,
    )  # fmt: skip
    load = Load(simulation, shape)
    simulation.run(simulation.now_ms + shape.warm_s * 1_000)
    load.begin_count()
    simulation.run(simulation.now_ms + shape.seconds * 1_000)
    load.end_count()
    return Run(workers, shape, load)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--unlimited", action="store_true", help="do not limit the writes of a row")
    parser.add_argument("--no-lags", action="store_true", help="skip the runs at half the rate")
    for name, value in vars(Shape()).items():
        kind = float if value is None else type(value)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value)
    arguments = vars(parser.parse_args())
    shape = Shape(**{name: arguments[name] for name in vars(Shape())})
    one = 0.0
    print(HEADER, flush=True)
    for workers in arguments["workers"]:
        result = run(workers, shape, _latencies(arguments))
        one, half = max(one, result.per_s / workers), None
        if not arguments["no_lags"] and result.per_s:
            paced = Shape(**{**vars(shape), "rate": result.per_s / 2})
            half = run(workers, paced, _latencies(arguments))
        print(result.row(one, half), flush=True)


def _latencies(arguments: Mapping[str, Any]) -> Latencies:
    return Latencies(is_limited=not arguments["unlimited"])
