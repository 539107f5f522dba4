"""Streams on our engine and on Apache Beam's local runners: the demos' web log and Zeitgeist.

Each round runs the same declarations over the same records on each engine, in turns, and checks
each result against the simulator. Our engine runs as in `benchmarks/streams`: every record is
durable when its push returns, and every result when its commit returns. Beam's local runners keep
all data in the memory of one process, so none of it is durable. `FnApiRunner` gets all records at
once, and `BundleBasedDirectRunner` gets Zeitgeist's one after the other. Prism, Flink and Dataflow
were not available.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.growth.spent import APP, OURSELVES, processor_s_by_role
from benchmarks.harness.results import Result, percentile, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.streams.app import NOTES
from benchmarks.streams.load import TIMEOUT_S, push, until_collected
from benchmarks.streams_beam import workload
from benchmarks.streams_beam.app import PIPELINES, ROUNDS, WARM_ROUNDS, run_name
from benchmarks.streams_beam.workload import BATCH, RECORDS, STREAM
from rollforward.streams import PushedRecord

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "beam" / "bin" / "python"
RIVAL = "benchmarks.streams_beam.rival"
# A push has one bucket of Zeitgeist: without disorder, records before a push's latest are late.
A_PUSH = {BATCH: 12, STREAM: 1}
PACE_S = {BATCH: 0.0, STREAM: 0.1}
Figures = Mapping[str, Any]


def measure() -> Iterator[Result]:
    """Measure both engines and yield the comparisons, or nothing if Beam is not installed."""
    if not PYTHON.exists():
        print("streams_beam is skipped: `make beam` installs Apache Beam", file=sys.stderr)
        return
    with contextlib.ExitStack() as stack:
        target = "benchmarks.streams_beam.app:serve()"
        bench = stack.enter_context(open_testbed(target, emulator="firestore"))
        rivals = {
            (name, kind): stack.enter_context(_rival(kind, name))
            for name, kind in workload.BEAM_RUNS
        }
        for name in RECORDS:
            yield from _compared(bench, name, rivals)


def _compared(
    bench: Bench, name: str, rivals: Mapping[tuple[str, str], Callable[[], Figures]]
) -> Iterator[Result]:
    """Warm both engines up, run them in turns, and yield their figures for one demo."""
    for round_ in range(WARM_ROUNDS):
        for kind in (BATCH, STREAM):
            _ours(bench, name, kind, round_)
    of_beam = {kind: rival for (of, kind), rival in rivals.items() if of == name}
    for rival in of_beam.values():
        rival()
    figures: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for round_ in range(WARM_ROUNDS, WARM_ROUNDS + ROUNDS):
        for kind in (BATCH, STREAM):
            figures["ours", kind].append(_ours(bench, name, kind, round_))
            if kind in of_beam:
                figures["beam", kind].append(of_beam[kind]())
    yield from _rates(name, figures["ours", BATCH], figures["beam", BATCH])
    yield from _latencies(name, figures["ours", STREAM], figures["beam", STREAM])


def _rates(name: str, ours: list[Figures], beams: list[Figures]) -> Iterator[Result]:
    records = RECORDS[name][BATCH]
    for engine, figures, versus in (
        ("", ours, "exactly once; durable before it is answered; goes on after a restart"),
        ("_beam", beams, "FnApiRunner: in memory; nothing durable; a restart begins anew"),
    ):
        rates = [records / run["wall_s"] for run in figures]
        yield Result(
            f"streams_beam.{name}{engine}_per_s",
            statistics.median(rates),
            "records a second",
            f"{records} records; {versus}",
            raw={"quartiles": quartiles(rates)},
        )
        yield Result(
            f"streams_beam.{name}{engine}_cpu_ms",
            1000 * statistics.median(run["cpu_s"] for run in figures) / records,
            "ms a record",
            "processor time of the process" if engine else "processor time of workers and pusher",
        )
    ratio = statistics.median(
        theirs["wall_s"] / our["wall_s"] for our, theirs in zip(ours, beams, strict=True)
    )
    versus = "Beam's local runner, which keeps nothing"
    yield Result(f"streams_beam.{name}_versus_beam", ratio, "ratio of rates", versus)


def _latencies(name: str, ours: list[Figures], beams: list[Figures]) -> Iterator[Result]:
    records = RECORDS[name][STREAM]
    for engine, figures, versus in (
        ("_durable", ours, "from the push that completes a result until its commit has returned"),
        ("_beam", beams, "BundleBasedDirectRunner: until the result is in memory; never durable"),
    ):
        lags = [lag for run in figures for lag in run["lags_ms"]]
        if not lags:
            continue
        for quantile, share in (("p50", 0.5), ("p95", 0.95)):
            yield Result(
                f"streams_beam.{name}{engine}_{quantile}_ms",
                percentile(lags, share),
                "ms",
                f"{records} records, one by one; {versus}",
                raw={"results": len(lags)},
            )


def _ours(bench: Bench, name: str, kind: str, round_: int) -> Figures:
    """Push the records of a run until all results are durable, and check them."""
    run = run_name(kind, round_)
    pipeline, stream = PIPELINES[name, run], workload.SOURCES[name]
    records, inputs = workload.records_of(name, kind), list[tuple[float, float]]()
    count, _ = workload.truth(name, kind)
    cpu, began, latest = _cpu_s(), time.time(), 0
    for start in range(0, len(records), A_PUSH[kind]):
        part = records[start : start + A_PUSH[kind]]
        pushed = [PushedRecord(f"{start + n}", value, at) for n, (value, at) in enumerate(part)]
        latest = max(latest, *(record.timestamp_ms for record in pushed))
        inputs.append((latest - workload.DISORDER_MS[name], time.time()))
        is_last = start + len(part) == len(records)
        # A watermark ends the input, as on Beam: Zeitgeist counts no further bucket after its end.
        end = workload.end_of(name, records) if is_last else None
        push(bench, pipeline, pushed, stream, watermark=end)
        time.sleep(PACE_S[kind])
    until_collected(bench, pipeline, "kept", count)
    took = {"wall_s": time.time() - began, "cpu_s": _cpu_s() - cpu}
    states = [state for _, state in pipeline.states(bench.clients, "kept")]
    actual = sum(state["results"] for state in states), sum(state["sum"] for state in states)
    if actual != workload.truth(name, kind):
        raise workload.WrongError(f"{name}, {run}: {actual}, not {workload.truth(name, kind)}")
    pipeline.close(bench.clients, stream)
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    return {**took, "lags_ms": workload.lags_ms(inputs, _noted(bench, f"{name}-{run}"))}


def _cpu_s() -> float:
    spent = processor_s_by_role()
    return spent[APP] + spent[OURSELVES]


def _noted(bench: Bench, run: str) -> list[tuple[int, float]]:
    """Return the event time of each result of a run, and the time its commit had returned."""
    lines = [line.split() for path in bench.costs.glob(f"*.{NOTES}") for line in path.open()]
    return [
        (int(mark.removeprefix(f"{run}:")), float(when))
        for mark, when in lines
        if mark.startswith(f"{run}:")
    ]


@contextlib.contextmanager
def _rival(kind: str, name: str) -> Iterator[Callable[[], Figures]]:
    """Start Beam in its own environment; yield a function that runs a demo once."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    command = [str(PYTHON), "-m", RIVAL, kind, name]
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        asks, answers = process.stdin, process.stdout

        def run() -> Figures:
            asks.write("run\n")
            asks.flush()
            answer = answers.readline()
            if not answer:
                raise workload.WrongError(f"{name}, {kind}: Beam has failed")
            return dict(json.loads(answer))

        with asks:
            if answers.readline() != "ready\n":
                raise RuntimeError("Beam did not start")
            yield run
