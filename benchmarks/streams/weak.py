"""Latencies of weak and strong productions, compared in one run: 1,000 records a second.

All latencies are from the start of a push. A weak result counts at the call of its sink. A strong
result counts when the commit of its stage has returned, so that it can be read. The paper (T.
Akidau and others, "MillWheel", 2013, 8.1) measured one stage on 200 CPUs: 3.6 ms (median) and 30 ms
(95 %) weak and without deduplication, 33.7 ms and 93.8 ms strong and exactly once.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from os import cpu_count

from benchmarks.harness.results import Result, percentile
from benchmarks.harness.testbed import Bench
from benchmarks.streams.app import NOTES
from benchmarks.streams.weak_app import (
    BEHIND_STRONG,
    BEHIND_WEAK,
    HANDED,
    PUSH,
    STRONG,
    WEAK,
    records,
)
from rollforward.streams import Pipeline

PER_S, SIZE = 1_000, 10
PACED_S, WARM_S, TIMEOUT_S = 10.0, 2.0, 240
KEPT_S = 1.0
ROUNDS = 3
# The records' numbers begin here, as other benchmarks use the same files of notes.
FIRST = 10_000_000
MAX_WEAK_MS, MAX_STRONG_MS = (3.6, 30.0), (15.0, 60.0)  # The median, and 95 %.
MAX_RATIO = 2.0
MAX_INSIDE_MS = (12.0, None)
# Pushes records by their first number and their count; if the app pushes, returns its start time.
Push = Callable[[int, int], float | None]


class LostError(Exception):
    """A record has no result."""


def measure_weak(bench: Bench) -> Iterator[Result]:
    """Measure all in turn for some rounds, and yield the latencies over all rounds."""
    machine = f"{cpu_count()} cores, {platform.machine()}"
    latencies: dict[str, list[float]] = defaultdict(list)
    start, pushes = FIRST, _pushes(bench)
    for _ in range(ROUNDS):
        for name, push in pushes.items():
            begun, inside = _paced(push, start)
            bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
            seen = {**_noted(bench), **HANDED.seen}
            if lost := begun.keys() - seen.keys():
                raise LostError(f"{name}: {len(lost)} of {len(begun)} records have no result")
            start += len(begun)
            warm_s = min(begun.values()) + WARM_S
            for of, times in ((name, begun), (f"{name}_inside", inside)):
                latencies[of] += [1000 * (seen[n] - at) for n, at in times.items() if at > warm_s]
    yield from _results(latencies, machine)


def _results(latencies: Mapping[str, list[float]], machine: str) -> Iterator[Result]:
    weak, strong = "the paper, 200 CPUs: 3.6 / 30 ms", "the paper, 200 CPUs: 33.7 / 93.8 ms"
    for name, versus, limits in (
        ("weak", f"until a weak sink is called; {weak}", MAX_WEAK_MS),
        ("weak_over_http", f"the same, pushed by HTTP; {weak}", MAX_WEAK_MS),
        ("strong", f"until it can be read; {strong}", MAX_STRONG_MS),
        ("strong_over_http", f"the same, pushed by HTTP; {strong}", MAX_STRONG_MS),
        ("strong_over_http_inside", "the same, from when the app begins it", MAX_INSIDE_MS),
        ("behind_weak", "until it can be read behind a weak stage", (None, None)),
        ("behind_strong", "until it can be read behind a strong stage", (None, None)),
    ):
        for (quantile, share), limit in zip((("p50", 0.5), ("p95", 0.95)), limits, strict=True):
            yield Result(
                f"streams.{name}_{quantile}_ms",
                percentile(latencies[name], share),
                "ms",
                f"{PER_S} a second, from the beginning of a push of {SIZE}, {versus}; {machine}",
                limit,
                at_least=False,
            )
    for name, one, other, limit in (
        ("strong_versus_weak", "strong", "weak", MAX_RATIO),
        ("behind_strong_versus_behind_weak", "behind_strong", "behind_weak", None),
    ):
        yield Result(
            f"streams.{name}",
            percentile(latencies[one], 0.5) / percentile(latencies[other], 0.5),
            "ratio of medians",
            "the paper: 9.4" if limit else "of results that are durable",
            limit,
            at_least=False,
        )


def _pushes(bench: Bench) -> dict[str, Push]:
    """Return a function for each measurement that pushes its records."""
    connection, asked_at = HTTPConnection("127.0.0.1", bench.port, timeout=TIMEOUT_S), 0.0

    def ask(name: str, start: int, size: int) -> float:
        nonlocal asked_at
        if time.time() - asked_at > KEPT_S:
            connection.close()  # The server may have closed it.
        asked_at = time.time()
        connection.request("POST", f"{PUSH}/{name}/{start}/{size}")
        response = connection.getresponse()
        began_at = response.read()
        if response.status != HTTPStatus.OK:
            raise LostError(f"a push was answered by {response.status}")
        return float(began_at)

    def in_process(pipeline: Pipeline) -> Push:
        def push(start: int, size: int) -> None:
            pipeline.push(bench.clients, "in", records(start, size))

        return push

    return {
        "weak": in_process(WEAK),
        "weak_over_http": partial(ask, WEAK.name),
        "strong": in_process(STRONG),
        "strong_over_http": partial(ask, STRONG.name),
        "behind_weak": in_process(BEHIND_WEAK),
        "behind_strong": in_process(BEHIND_STRONG),
    }


def _paced(push: Push, start: int) -> tuple[dict[int, float], dict[int, float]]:
    """Push at a fixed rate; return the start times of each record's push, here and in the app."""
    began, begun, inside = time.time(), dict[int, float](), dict[int, float]()
    for number in range(start, start + int(PER_S * PACED_S), SIZE):
        time.sleep(max(0.0, began + (number - start) / PER_S - time.time()))
        numbers = range(number, number + SIZE)
        begun.update(dict.fromkeys(numbers, time.time()))
        if (at := push(number, SIZE)) is not None:
            inside.update(dict.fromkeys(numbers, at))
    return begun, inside


def _noted(bench: Bench) -> dict[int, float]:
    """Return the time of each record's commit in the app, or of its earlier call there."""
    noted_at: dict[int, float] = {}
    for path in bench.costs.glob(f"*.{NOTES}"):
        for line in path.open():
            number, at = line.split()
            noted_at[int(number)] = min(float(at), noted_at.get(int(number), float(at)))
    return noted_at
