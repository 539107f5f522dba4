"""Streams: a windowed count, exactly once, against Bytewax and a task for each record, in one run.

All designs have the same workload (benchmarks/streams/workload.py). Each round runs every design
once and checks every count, so a design that loses or doubles a record fails the benchmark. Our
design runs on gunicorn, as the dev server runs it, with its Cloud Tasks and the Firestore emulator
in Datastore mode. Bytewax runs in one process of its own, with its state in SQLite: a snapshot
after each batch of 100 ("durable"), or every ten seconds, its default ("default"). Our design reads
100 records at a time, too; if more are available, one commit has up to five reads.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.harness.results import Result, percentile, quartiles
from benchmarks.harness.rivals import PYTHON, MissingError
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.streams.app import (
    BATCH,
    FUSED,
    HOPS,
    LAGS,
    ONE,
    PUSHED,
    RECORDS,
    ROUNDS,
    THREE,
    WARM_ROUNDS,
    Arrived,
    BenchCount,
    count_each,
)
from benchmarks.streams.load import (
    TIMEOUT_S,
    WARM_S,
    WrongError,
    check_windows,
    hops_ms,
    push,
    push_paced,
    shares,
    until_collected,
)
from benchmarks.streams.weak import measure_weak
from benchmarks.streams.workload import events, truth
from rollforward.datastore import bodies
from rollforward.runtime import Cost
from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.storage.schema import HEAD

# Records of the design with a task for each record.
TASKS = 2_000
PUSHES = {1: 300, 10: 200, 100: 200}
ATTEMPTS = 5  # For each run of Bytewax.
# Bytewax's epochs, in seconds.
EPOCHS = {"durable": 0.0, "default": 10.0}
MAX_ROUND_TRIPS, MAX_WRITES = 0.03, 0.12
MAX_HOP_MS, MAX_HOP_P95_MS = 15.0, 60.0
MAX_LAG_MS, MAX_LAG_A_STAGE_MS = 1_800.0, 200.0


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    if not PYTHON.exists():
        raise MissingError("Bytewax is missing: run `make bench NAMES=streams`")
    with _stack() as bench:
        yield from _rates(bench)
        yield from _costs(bench)
    # The emulator stores every version of every row, and slows down with their number.
    for latencies in (_hops, _lags, measure_weak):
        with _stack() as bench:
            for n in range(WARM_ROUNDS):
                _pulled(bench, ONE[n])
            yield from latencies(bench)


def _stack() -> AbstractContextManager[Bench]:
    return open_testbed("benchmarks.streams.weak_app:serve()", emulator="firestore")


# Records a second


def _rates(bench: Bench) -> Iterator[Result]:
    seconds: dict[str, list[float]] = {}
    for n in range(WARM_ROUNDS):
        _pulled(bench, ONE[n])
        _pulled(bench, THREE[n])
        _pulled(bench, FUSED[n])
    for n in range(ROUNDS):
        took_s = {
            "one_stage": _pulled(bench, ONE[WARM_ROUNDS + n]) / RECORDS,
            "three_stages": _pulled(bench, THREE[WARM_ROUNDS + n]) / RECORDS,
            "three_fused": _pulled(bench, FUSED[WARM_ROUNDS + n]) / RECORDS,
            "task_each": _task_each(bench, n) / TASKS,
        }
        for stages in (1, 3):
            for name, epoch_s in EPOCHS.items():
                took_s[f"bytewax_{name}_{stages}"] = _bytewax(epoch_s, stages) / RECORDS
        for name, each_s in took_s.items():
            seconds.setdefault(name, []).append(each_s)
    for name, times in seconds.items():
        rates = [1 / seconds_each for seconds_each in times]
        yield Result(
            f"streams.{name}_per_s",
            statistics.median(rates),
            "records a second",
            f"batches of {BATCH}" if name != "task_each" else "a transaction each",
            raw={"quartiles": quartiles(rates)},
        )
    yield from _ratios(seconds)


def _ratios(seconds: dict[str, list[float]]) -> Iterator[Result]:
    durable, default = "Bytewax, a snapshot a batch", "Bytewax, a snapshot every 10 s"
    for ours, theirs, versus, target in (
        ("one_stage", "bytewax_durable_1", durable, 2.0),
        ("three_fused", "bytewax_durable_3", durable, 2.0),
        ("three_stages", "bytewax_durable_3", durable, 2.0),
        ("one_stage", "bytewax_default_1", default, None),
        ("three_fused", "bytewax_default_3", default, None),
        ("three_stages", "bytewax_default_3", default, None),
        ("one_stage", "task_each", "one task and one transaction a record", 20.0),
    ):
        yield Result(
            f"streams.{ours}_versus_{theirs.removesuffix('_1').removesuffix('_3')}",
            statistics.median(seconds[theirs]) / statistics.median(seconds[ours]),
            "ratio of rates",
            versus,
            target,
        )


def _pulled(bench: Bench, pipeline: Pipeline) -> float:
    """Run a pipeline from its first record until all results are stored; return the seconds."""
    began = time.perf_counter()
    pipeline.pull(bench.clients, "in")
    until_collected(bench, pipeline, "collect", len(truth(RECORDS)))
    took_s = time.perf_counter() - began
    check_windows(bench, pipeline, RECORDS)
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    return took_s


def _task_each(bench: Bench, round_: int) -> float:
    """Count some records by a task and a transaction each; return the seconds."""
    part = events(RECORDS)[round_ * TASKS : (round_ + 1) * TASKS]
    began = time.perf_counter()
    count_each.enqueue_many(bench.clients, [Arrived(*event) for event in part])
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    took_s = time.perf_counter() - began
    with bench.clients.context():
        counted = sum(row.count for row in BenchCount.query().fetch())
    if counted != (round_ + 1) * TASKS:
        raise WrongError(f"{counted} of {(round_ + 1) * TASKS} records were counted by tasks")
    return took_s


def _bytewax(epoch_s: float, stages: int) -> float:
    """Return the seconds of one run of Bytewax, which checks its counts itself.

    Its watermark follows the machine's clock. So on a busy machine records in time count as late,
    and the counts are too low; then the run is repeated.
    """
    program = Path(__file__).parent / "rivals.py"
    options = [epoch_s, stages, BATCH, RECORDS, 1]
    command = [str(PYTHON), str(program), *map(str, options)]
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S)
        if done.returncode == 0:
            [took_s] = json.loads(done.stdout.splitlines()[-1])
            return float(took_s)
    raise WrongError(f"Bytewax has failed {ATTEMPTS} times; its errors are above")


# Operations


def _costs(bench: Bench) -> Iterator[Result]:
    """Count the operations of a record, from its push to its stored result, by size of push."""
    for size, pipeline in PUSHED.items():
        count = size * PUSHES[size]
        start_cost, start_read = bench.cost(), bench.read_meter.total()
        for start in range(0, count, size):
            part = enumerate(events(count)[start : start + size], start)
            pushed = [PushedRecord(f"{n}", {"key": event.key}, event.at) for n, event in part]
            push(bench, pipeline, pushed)
        pipeline.close(bench.clients, "in")
        read = bench.read_meter.total() - start_read
        until_collected(bench, pipeline, "collect", len(truth(count)))
        bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
        check_windows(bench, pipeline, count)
        yield from _cost_of(size, count, bench.cost() - start_cost + read)


def _cost_of(size: int, count: int, cost: Cost) -> Iterator[Result]:
    targets = {"round_trips": MAX_ROUND_TRIPS, "writes": MAX_WRITES} if size == BATCH else {}
    for operation, spent in cost.as_dict().items():
        yield Result(
            f"streams.{operation}_at_{size}",
            spent / count,
            "operations a record",
            f"in pushes of {size}",
            targets.get(operation),
            at_least=False,
        )


# Latency


def _hops(bench: Bench) -> Iterator[Result]:
    """Push at a rate; yield the time from a record's push until its result can be read."""
    pushed = 0
    for per_s in (100, 1_000):
        size = max(1, per_s // 100)
        accepted = push_paced(bench, HOPS, per_s / size, size, pushed)
        bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
        pushed += len(accepted)
        p50, p95 = shares(hops_ms(bench, accepted, pushed))
        for name, value, target in (("p50", p50, MAX_HOP_MS), ("p95", p95, MAX_HOP_P95_MS)):
            yield Result(
                f"streams.hop_{name}_ms_at_{per_s}",
                value,
                "ms",
                f"from the end of a push of {size}, 100 a second, until its result can be read",
                target if per_s == 1_000 else None,
                at_least=False,
            )


# Watermarks


def _lags(bench: Bench) -> Iterator[Result]:
    """Push at a rate; yield the lag of each stage's watermark behind the clock."""
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sampled = thread.submit(_sample, bench, LAGS, is_over)
        pushed = len(push_paced(bench, LAGS, 100, 1, 0))
        is_over.set()
        samples = sampled.result()
    LAGS.close(bench.clients, "in")
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    states = dict(LAGS.states(bench.clients, "collect")).values()
    if sum(count for state in states for _, count in state["windows"]) != pushed:
        raise WrongError(f"the windows do not have the {pushed} pushed records")
    source_stage, *next_stages = LAGS.graph.order
    yield _lag(f"{source_stage}_ms", [sample[source_stage] for sample in samples], MAX_LAG_MS)
    for previous, name in zip([source_stage, *next_stages], next_stages, strict=False):
        more_ms = [sample[name] - sample[previous] for sample in samples]
        yield _lag(f"more_of_{name}_ms", more_ms, MAX_LAG_A_STAGE_MS)


def _lag(name: str, lags_ms: Sequence[float], target: float) -> Result:
    return Result(
        f"streams.watermark_lag_{name.replace('-', '_')}",
        percentile(lags_ms, 0.95),
        "ms",
        "p95, of records at most 1 s out of order" if "more" not in name else "p95, stage before",
        target,
        at_least=False,
        raw={"quartiles": quartiles(lags_ms)},
    )


def _sample(bench: Bench, pipeline: Pipeline, is_over: threading.Event) -> list[dict[str, float]]:
    """Poll the watermarks; return samples of the lag of each computation."""
    samples = []
    is_over.wait(WARM_S)
    while not is_over.wait(0.05):
        [head], _ = bodies.read(bench.clients.datastore, [bodies.Name(HEAD, pipeline.name)])
        if head is not None:
            inputs = json.loads(head.body)["inputs"]
            samples.append({name: time.time() * 1000 - at for name, at in inputs.items()})
    return samples
