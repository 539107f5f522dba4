"""Tracing: the processor time of deliveries and saves with an SDK, against the same without one.

The SDK records all traces, or one in ten, and sends them to a collector, a process of its own. A
worker repeats a request in each state, in turns of tens of milliseconds. `bare` is a control: the
SDK makes as many spans without the library. Without an SDK the only cost is some empty calls. Their
time is measured separately, as it is too small for a comparison of requests.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Sequence
from typing import Any

import requests

from benchmarks.harness.load import new_numbers
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.tracing.app import COLLECTOR, Mark, mark
from rollforward.tracing import is_on, start_span

WARM_S, LOAD_S = 5, 100
TIMEOUT_S = 300
# The rate with an SDK, and the share of processor time without one.
LEAST_RATE, MOST_IDLE = 0.98, 0.001
CALLS = 40_000
PATHS = {"delivery": "tasks/bench/mark", "save": "bench/save"}


def measure() -> Iterator[Result]:
    """Measure both loads and yield the comparisons."""
    with (
        _collector() as url,
        open_testbed(
            "benchmarks.tracing.app:serve()", workers=1, environment={COLLECTOR: url}
        ) as bench,
    ):
        mark.enqueue(bench.clients, Mark(new_numbers(1)[0]))
        bench.queue.wait_idle(TIMEOUT_S)
        _ask(bench, PATHS["save"])
        bench.queue.wait_idle(TIMEOUT_S)
        _pause(bench)  # Otherwise updates would use the worker's processor.
        for name, path in PATHS.items():
            _ask(bench, f"bench/compare/{WARM_S}/{path}")
            compared = _ask(bench, f"bench/compare/{LOAD_S}/{path}").json()
            yield from _results(name, compared["times"], compared["spans"])


def _pause(bench: Bench) -> None:
    for queue in bench.queue.engine.queues.all():
        bench.queue.engine.pause_queue(queue.name)


def _results(name: str, times: dict[str, list[float]], spans: int) -> Iterator[Result]:
    off, bare = times["off"], times["bare"]
    raw: dict[str, Any] = {
        **{f"{state}_cpu_ms": quartiles(figures) for state, figures in times.items()},
        "spans": spans,
        "rounds": len(off),
    }
    for label, ours, against, versus, target in (
        ("sampled_rate", times["sampled"], off, "without an SDK", LEAST_RATE),
        ("all_rate", times["all"], off, "without an SDK", LEAST_RATE),
        ("all_of_bare", times["all"], bare, "as many spans by the SDK alone", LEAST_RATE),
        ("bare_rate", bare, off, "without an SDK", None),
    ):
        rates = _ratios(against, ours)
        yield Result(
            f"tracing.{name}_{label}",
            statistics.median(rates),
            "ratio",
            f"{versus}, in turns, by processor time",
            target,
            raw={**raw, "quartiles": quartiles(rates)},
        )
    idle_us = _idle_us()
    yield Result(
        f"tracing.{name}_idle_share",
        spans * idle_us / 1e3 / statistics.median(off),
        "share",
        "of the processor time, without an SDK",
        MOST_IDLE,
        at_least=False,
        raw={"idle_us_a_span": round(idle_us, 2)},
    )


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _ask(bench: Bench, path: str) -> requests.Response:
    answer = requests.get(f"http://127.0.0.1:{bench.port}/{path}", timeout=TIMEOUT_S)
    answer.raise_for_status()
    return answer


def _idle_us() -> float:
    """Return the processor time of a span in a process without an SDK, like this one."""
    assert not is_on()

    def nothing() -> None:
        with start_span("nothing"):
            pass

    times = timeit.repeat(nothing, timer=time.process_time, number=CALLS, repeat=5)
    return min(times) / CALLS * 1e6


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.tracing.collector"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1/traces"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(TIMEOUT_S)
