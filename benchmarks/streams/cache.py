"""Savings of a worker's state cache by its size: reads, and the worker's processor time.

One worker in this process works on records pushed before, in batches of 100 as they were pushed;
only this work is measured. Only the emulator runs at the same time, and its time does not count.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness.results import Result
from benchmarks.streams.load import WrongError
from benchmarks.streams.lone_clients import lone_clients
from benchmarks.streams.workload import FIRST_MS
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.driver import Engine
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.workers.lease import CachedInterval
from rollforward.streams.workers.worker import Worker

KEYS, STATE_CHARS = 2_000, 400
BATCH, RECORDS, ROUNDS = 100, 4_000, 3
# Sizes as fractions of the memory of all states.
PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MIN_READS, MIN_CPU = 2.0, 1.5
MANY_BYTES = 100_000_000


class Kept(Computation):
    """Stores a text for each key, and counts its records."""

    inputs = {"in": lambda value: str(value["key"])}  # noqa: RUF012 - As its users write it.

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.value("text").set(record.value["text"])
        ctx.state.counter("seen").add(1)


@dataclass(frozen=True)
class Spent:
    """The cost of a record: entities read, and microseconds of this process."""

    reads: float
    cpu_us: float


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    with lone_clients() as clients:
        costs: dict[float, list[Spent]] = {part: [] for part in PARTS}
        for round_ in range(ROUNDS + 1):
            for part in PARTS:
                spent = _spent(clients, f"cache-{round_}-{int(100 * part)}", part)
                if round_:  # The first round warms up.
                    costs[part].append(spent)
    yield from _curve({part: _median(spent) for part, spent in costs.items()})


def _curve(curve: dict[float, Spent]) -> Iterator[Result]:
    for part, spent in curve.items():
        some = f"a state cache of {part:.0%} of all states"
        name = f"{int(100 * part)}"
        yield Result(f"streams_growth.cache_reads_at_{name}", spent.reads, "a record", some)
        yield Result(f"streams_growth.cache_cpu_us_at_{name}", spent.cpu_us, "us a record", some)
    none, all_ = curve[PARTS[0]], curve[PARTS[-1]]
    some = "a worker without a state cache"
    reads, cpu = none.reads / all_.reads, none.cpu_us / all_.cpu_us
    yield Result("streams_growth.cache_saves_reads", reads, "ratio", some, MIN_READS)
    yield Result("streams_growth.cache_saves_cpu", cpu, "ratio", some, MIN_CPU)


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(
        statistics.median(cost.reads for cost in spent),
        statistics.median(cost.cpu_us for cost in spent),
    )


def _spent(clients: Clients, name: str, part: float) -> Spent:
    """Push to a new pipeline, and run its worker; return the worker's cost of a record."""
    pipeline, chance = Pipeline(name, Kept, intervals=1), random.Random(7)
    keys = [f"k{n}" for n in range(KEYS)]
    _push(clients, pipeline, keys)
    _work(clients, pipeline, MANY_BYTES)
    all_bytes = _remembered(clients, pipeline)
    # The distribution resembles visits: a few keys are frequent, most are rare.
    weights = [1 / (n + 1) ** 0.5 for n in range(KEYS)]
    _push(clients, pipeline, chance.choices(keys, weights, k=RECORDS), KEYS)
    start_cost, began_s = clients.meter.total(), time.process_time()
    clients.process_state.clear()
    _work(clients, pipeline, int(all_bytes * part) if part < 1 else MANY_BYTES)
    cpu_s, cost = time.process_time() - began_s, clients.meter.total() - start_cost
    if (processed := pipeline.status(clients).computations["kept"].records) != KEYS + RECORDS:
        raise WrongError(f"{processed} of {KEYS + RECORDS} records were processed")
    return Spent(cost.reads / RECORDS, 1e6 * cpu_s / RECORDS)


def _push(clients: Clients, pipeline: Pipeline, keys: Sequence[str], start: int = 0) -> None:
    """Push a record of each key, in pushes of a batch's size."""
    records = [
        PushedRecord(f"{n}", {"key": key, "text": f"{n:0{STATE_CHARS}}"}, FIRST_MS + n)
        for n, key in enumerate(keys, start)
    ]
    for begin in range(0, len(records), BATCH):
        pipeline.push(clients, "in", records[begin : begin + BATCH])


def _work(clients: Clients, pipeline: Pipeline, cache_bytes: int) -> None:
    """Run a worker on all pending records, with a state cache of a given size."""
    config = StreamConfig(
        max_records=BATCH, max_chunks=10, linger=(), gather_s=0, cache_bytes=cache_bytes
    )
    engine = Engine(clients, pipeline, config)
    engine.run(Worker(engine.environment, "kept", 0).run())


def _remembered(clients: Clients, pipeline: Pipeline) -> int:
    """Return the bytes of all states in a worker's cache."""
    environment = Engine(clients, pipeline).environment
    memory = environment.caches[environment.names.interval("kept", 0)]
    assert isinstance(memory, CachedInterval)
    return memory.store.rows.bytes
