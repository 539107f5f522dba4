"""Tracing: the throughput of deliveries and saves with an SDK, against the same without one.

The SDK records all traces, or one in ten, and an exporter discards them; or it records all, and
sends them to a collector, a process of its own. One process of the app turns its SDKs on and off
between short rounds, until two minutes have passed for each load. Rates are told with the processor
time of the app's process, which what else the machine does disturbs less. Without an SDK the cost
is a number of calls that do nothing: their time is measured alone, as no rate could show it.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil
import requests

from benchmarks.harness.load import closed, new_numbers
from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.tracing.app import COLLECTOR, Mark, mark
from rollforward.tracing import is_on, start_span

# Many short rounds: what else the machine does changes within seconds.
LOAD_S, MIN_ROUNDS = 105, 6
DELIVERIES, SAVE_S, CLIENTS = 80, 0.4, 8
TIMEOUT_S = 120
# With an SDK; and without one, of the processor time.
LEAST_RATE, MOST_IDLE = 0.98, 0.001
CALLS = 40_000


@dataclass
class Side:
    """Rounds with an SDK, or without: rates, and processor time an item."""

    rates: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    items: int = 0
    spans: float = 0.0


def measure() -> Iterator[Result]:
    """Measure both loads and yield the comparisons."""
    with (
        _collector() as url,
        open_testbed(
            "benchmarks.tracing.app:serve()", workers=1, environment={COLLECTOR: url}
        ) as bench,
    ):
        for name, load in (("delivery", deliver), ("save", save)):
            yield from _compared(bench, name, lambda load=load: load(bench))  # type: ignore[misc]


def deliver(bench: Bench) -> int:
    """Deliver tasks; return their number."""
    marks = [Mark(number) for number in new_numbers(DELIVERIES)]
    mark.enqueue_many(bench.clients, marks)
    bench.queue.wait_idle(TIMEOUT_S)
    return DELIVERIES


def save(bench: Bench) -> int:
    """Save sources as fast as the answers come, and update their rows; return their number."""
    saved = len(closed(bench.port, "/bench/save", CLIENTS, SAVE_S).latencies_s)
    bench.queue.wait_idle(TIMEOUT_S)
    return saved


def _compared(bench: Bench, name: str, load: Callable[[], int]) -> Iterator[Result]:
    """Measure in turns; the side that begins changes, too."""
    sides = {state: Side() for state in ("off", "all", "sampled", "sent")}
    load()
    ends_at, number = time.monotonic() + LOAD_S, 0
    while time.monotonic() < ends_at or number < MIN_ROUNDS:
        for turn in range(len(sides)):
            state = list(sides)[(number + turn) % len(sides)]
            _ask(bench, f"sdk/{state}")
            spans = float(_ask(bench, "spans"))
            count = _round(bench, sides[state], load)
            sides[state].items += count
            sides[state].spans += float(_ask(bench, "spans")) - spans
        number += 1
    _ask(bench, "sdk/off")
    per_item = sides["all"].spans / sides["all"].items
    raw = {
        **{f"{state}_per_s": quartiles(side.rates) for state, side in sides.items()},
        **{f"{state}_cpu_ms": quartiles(side.processor_ms) for state, side in sides.items()},
        "spans": {state: round(side.spans / side.items, 2) for state, side in sides.items()},
        "rounds": number,
    }
    versus = "without an SDK, in turns"
    for state in ("sampled", "all", "sent"):
        rates = _ratios(sides[state].rates, sides["off"].rates)
        result = f"tracing.{name}_{state}"
        yield Result(
            f"{result}_rate",
            statistics.median(rates),
            "ratio",
            versus,
            LEAST_RATE,
            raw={**raw, "quartiles": quartiles(rates)},
        )
        times = _ratios(sides[state].processor_ms, sides["off"].processor_ms)
        spread = {"quartiles": quartiles(times)}
        yield Result(
            f"{result}_processor_time", statistics.median(times), "ratio", versus, raw=spread
        )
    idle_us = _idle_us()
    share = per_item * idle_us / 1e3 / statistics.median(sides["off"].processor_ms)
    yield Result(
        f"tracing.{name}_idle_share",
        share,
        "share",
        "of the processor time, without an SDK",
        MOST_IDLE,
        at_least=False,
        raw={"idle_us_a_span": round(idle_us, 2)},
    )


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _round(bench: Bench, side: Side, load: Callable[[], int]) -> int:
    """Measure one round, with the time in which its spans are sent; return its items."""
    [process] = [psutil.Process(pid) for pid in bench.workers()]
    used_s, began = sum(process.cpu_times()[:2]), time.perf_counter()
    count = load()
    took_s = time.perf_counter() - began
    _ask(bench, "flush")
    side.rates.append(count / took_s)
    side.processor_ms.append((sum(process.cpu_times()[:2]) - used_s) * 1e3 / count)
    return count


def _ask(bench: Bench, path: str) -> str:
    answer = requests.get(f"http://127.0.0.1:{bench.port}/bench/{path}", timeout=TIMEOUT_S)
    answer.raise_for_status()
    return answer.text


def _idle_us() -> float:
    """Return the processor time of a span in a process that has no SDK, as this one."""
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
