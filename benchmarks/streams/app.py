"""The measured app: a windowed count in one stage and in three, and by a task for each record.

one, three   the count alone, or after two stages that keep a state for each key and pass every
             record on; a last computation stores the results. Each round has its own pipeline,
             since its source ends. The source is pulled, 100 records at a time
fused        the three stages as one computation
pushed       the count, with pushed records
hops         the same; the app notes when each record's commit has returned, so that its result can
             be read
lags         the three stages, with pushed records
spread       three stages of two intervals each; the last one notes commits like `hops`
detector     the stages of the demo Zeitgeist
each         one task and one transaction for each record
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from benchmarks.streams.workload import DISORDER_MS, WINDOW_MS, events
from pipelines.zeitgeist.model import MIN_SEEN, Model
from pipelines.zeitgeist.pipeline import FEEDS, Board, Counter, History, Usual, Watcher
from pipelines.zeitgeist.series import BUCKET_MS
from rollforward.datastore import bodies
from rollforward.datastore.transactions import transact
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushSource,
    Record,
)
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.tasks import task

RECORDS, BATCH = 50_000, 100
# Our runs for the warm-up. Java compiles the emulator during its work: a record of one stage took
# 77 microseconds of the emulator's processor time in the first run, 18 to 22 in the fourth, and 9
# to 14 in the sixth.
WARM_ROUNDS, ROUNDS = 6, 3
SPREAD_RECORDS, SPREAD_ROUNDS = 20_000, 3
SIZES = (1, 10, 100)
WINDOW = Tumbling(timedelta(milliseconds=WINDOW_MS))
NOTES = "hops"


def by_key(value: Mapping[str, Any]) -> str:
    """Return the key of a record, which is the same at every stage."""
    return str(value["key"])


class Pass(Computation):
    """Counts a key's records, and passes each on."""

    def __init__(self, stage: int, stream: str, output: str) -> None:
        self.name = f"pass-{stage}"
        self.inputs = {stream: by_key}
        self.outputs = (output,)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce(self.outputs[0], record.value)


class Collect(Computation):
    """Stores the results in the state of their keys, so each is readable after its commit."""

    inputs: ClassVar = {"windows": by_key}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append([record.value["start"], record.value["value"]])


class Noted(Computation):
    """Counts a key's records, and marks the ones in its commit."""

    def __init__(self, stream: str = "in") -> None:
        self.inputs = {stream: by_key}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        marks().append(record.value["number"])


def read(count: int, clients: Clients, position: int | None, limit: int) -> Pulled:
    """Return the next records of a workload of `count` records."""
    begin = position or 0
    end = min(begin + min(BATCH, limit), count)
    part = [({"key": event.key}, event.at) for event in events(count)[begin:end]]
    return Pulled(part, end, is_over=end == count)


def stages(count: int) -> Sequence[Computation]:
    """Return a count as the last of some stages, and a computation that stores its results."""
    streams = ["in", *(f"passed-{stage}" for stage in range(1, count))]
    passes = [Pass(n + 1, *streams[n : n + 2]) for n in range(count - 1)]
    counted = Windowed("count", WINDOW, inputs={streams[-1]: by_key}, output="windows")
    return [*passes, counted, Collect()]


def fused(count: int) -> Sequence[Computation]:
    """Return the same stages as one computation, and a computation that stores its results."""
    *counted, collect = stages(count)
    return [Fused("fused", *counted), collect]


def pulled(
    name: str, computations: Sequence[Computation], records: int = RECORDS, intervals: int = 1
) -> Pipeline:
    """Return a pipeline that pulls the workload."""
    disorder = timedelta(milliseconds=DISORDER_MS)
    source = PullSource("in", functools.partial(read, records), disorder=disorder)
    return Pipeline(name, *computations, sources=[source], intervals=intervals)


def pushed(
    name: str, *computations: Computation, disorder_ms: int = DISORDER_MS, intervals: int = 1
) -> Pipeline:
    """Return a pipeline with a push source."""
    source = PushSource("in", disorder=timedelta(milliseconds=disorder_ms))
    return Pipeline(name, *computations, sources=[source], intervals=intervals)


ONE = [pulled(f"one-{n}", stages(1)) for n in range(WARM_ROUNDS + ROUNDS)]
THREE = [pulled(f"three-{n}", stages(3)) for n in range(WARM_ROUNDS + ROUNDS)]
FUSED = [pulled(f"fused-{n}", fused(3)) for n in range(WARM_ROUNDS + ROUNDS)]
PUSHED = {size: pushed(f"pushed-{size}", *stages(1)) for size in SIZES}
HOPS = pushed("hops", Noted())
LAGS = pushed("lags", *stages(3), disorder_ms=1_000)
# For one worker and more; the first of the pulled pipelines is for the warm-up.
PASSES = Pass(1, "in", "passed-1"), Pass(2, "passed-1", "passed-2")
SPREAD = pushed("spread", *PASSES, Noted("passed-2"), intervals=2)
SPREAD_PULLED = [
    pulled(f"spread-{n}", stages(3), SPREAD_RECORDS, intervals=2) for n in range(1 + SPREAD_ROUNDS)
]


# A thousand series

# 2025-01-06 0:00, UTC.
FIRST_BUCKET_MS = 1_736_121_600_000


class Known(Usual):
    """The usual values of series, learned from a day before their start."""

    name = "model"

    def record(self, ctx: Context, record: Record) -> None:
        if "model" not in ctx.state:
            ctx.state["model"] = learned()
        super().record(ctx, record)


@functools.cache
def learned() -> dict[str, Any]:
    """Return the stored form of a model that has seen a day of counts."""
    model = Model()
    for number in range(MIN_SEEN):
        model.learn(FIRST_BUCKET_MS + (number - MIN_SEEN) * BUCKET_MS, 5 + number * 7919 % 46)
    return model.kept()


DETECTOR = Pipeline(
    "detector", Counter, Known, Watcher, History, Board,
    sources=[PushSource("queries", disorder=timedelta(0), processes=FEEDS)],
)  # fmt: skip


# One task and one transaction for each record


class BenchCount(ndb.Model):
    """The number of records of a key in a window."""

    count = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Arrived:
    """A record."""

    key: str
    at: int


@task("/tasks/bench/count-each", queue="bench")
def count_each(clients: Clients, args: Arrived) -> None:
    """Count a record in its window."""
    name = f"{args.key}:{args.at // WINDOW_MS * WINDOW_MS}"

    def body() -> None:
        row = BenchCount.get_by_id(name) or BenchCount(id=name)
        row.count += 1
        row.put()

    transact(body)


# Notes of commits

_local = threading.local()


def marks() -> list[Any]:
    """Return the numbers of the records in this thread's batch."""
    if not hasattr(_local, "numbers"):
        _local.numbers = []
    return _local.numbers  # type: ignore[no-any-return]


def _note_commits() -> None:
    """Wrap `bodies.commit` to note the records of a marked batch once its commit has returned."""
    commit, path = bodies.commit, Path(os.environ["BENCH_COSTS"]) / f"{os.getpid()}.{NOTES}"

    def noted(client: ndb.Client, **writes: Any) -> list[int]:
        numbers, _local.numbers = marks(), []
        versions = commit(client, **writes)
        if numbers:
            with path.open("a") as notes:
                notes.writelines(f"{number} {time.time()}\n" for number in numbers)
        return versions

    bodies.commit = noted


def serve(*extra: Pipeline) -> Flask:
    """Return the app, with further pipelines."""
    _note_commits()
    pipelines = (*ONE, *THREE, *FUSED, *PUSHED.values(), HOPS, LAGS, SPREAD, *SPREAD_PULLED, *extra)
    app, _ = app_for(Registry(*pipelines, DETECTOR, count_each))
    return app
