"""Streams that grow: workers, a state cache, values as bytes, known ids, a thousand series at once.

A worker is a process of gunicorn. The workers share two cores with the emulator, the queue and the
load. So more workers show the cost of the protocol, but hardly their possible rate elsewhere.

Each number of workers has a stack of its own, with its own emulator. All stacks are started and
warmed up, by a pull and by pushes, before any measurement: in a cold stack Java compiles the
emulator, and each process does everything for the first time, which is more work with four. Then
follow rounds in which each stack has the same turn while the others are idle; every other round is
in reverse order:

latency   6 s of pushes at a fixed rate, from a process other than the workers. The figure is the
          time from the return of a record's push to the return of the third stage's commit, without
          the records of the first 2 s
rate      a pull, until all windows have reached the end

Figures are medians of the rounds. Comparisons of numbers of workers are medians of the rounds'
ratios, because other load on the machine changes little within a round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median

from benchmarks.harness.results import Result
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.streams import cache, codecs, known_ids
from benchmarks.streams.app import (
    DETECTOR,
    FIRST_BUCKET_MS,
    SPREAD,
    SPREAD_PULLED,
    SPREAD_RECORDS,
    SPREAD_ROUNDS,
)
from benchmarks.streams.load import (
    TIMEOUT_S,
    WrongError,
    check_windows,
    hops_ms,
    push,
    push_paced,
    shares,
    until_collected,
    until_noted,
)
from benchmarks.streams.workload import truth
from pipelines.zeitgeist.pipeline import FEEDS
from pipelines.zeitgeist.series import BUCKET_MS
from rollforward.runtime import Cost
from rollforward.streams import Pipeline, PushedRecord

APP = "benchmarks.streams.app:serve()"
WORKERS = (1, 2, 4)
# For the latency: pushes a second, and records per push.
PUSHES_PER_S, SIZE = 20, 10
ROUNDS, TURN_S = 7, 6.0
MAX_LATENCY = 1.5
SERIES = 1_000
# Buckets of five minutes; the first ones are for the warm-up.
WARM, BUCKETS = 6, 24
LOOK_EVERY_S = 0.25


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    yield from _workers()
    yield from cache.measure()
    yield from codecs.measure()
    yield from known_ids.measure()
    with open_testbed(APP, emulator="firestore") as bench:
        yield from _detector(bench)


# Workers


@dataclass
class _Stack:
    """A testbed with a number of workers, and the measurements of its rounds."""

    bench: Bench
    pushed: int = 0
    p50_ms: list[float] = field(default_factory=list)
    p95_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)

    def warm_up(self) -> None:
        """Pull and push without measuring."""
        self._pull(SPREAD_PULLED[0])
        self._push()

    def note_latency(self) -> None:
        """Push at a fixed rate, and note the latencies of records."""
        p50_ms, p95_ms = shares(self._push())
        self.p50_ms.append(p50_ms)
        self.p95_ms.append(p95_ms)

    def note_rate(self) -> None:
        """Pull, and note the records a second that pass three stages and are counted."""
        self.per_s.append(self._pull(SPREAD_PULLED[1 + len(self.per_s)]))

    def _push(self) -> list[float]:
        accepted = push_paced(self.bench, SPREAD, PUSHES_PER_S, SIZE, self.pushed, TURN_S)
        self.pushed += len(accepted)
        until_noted(self.bench, self.pushed)
        return hops_ms(self.bench, accepted, self.pushed)

    def _pull(self, pipeline: Pipeline) -> float:
        began = time.perf_counter()
        pipeline.pull(self.bench.clients, "in")
        until_collected(self.bench, pipeline, "collect", len(truth(SPREAD_RECORDS)))
        took_s = time.perf_counter() - began
        check_windows(self.bench, pipeline, SPREAD_RECORDS)
        self.bench.queue.wait_idle(TIMEOUT_S)
        return SPREAD_RECORDS / took_s


def _measured() -> dict[int, _Stack]:
    """Run all rounds; return the stacks with their measurements, by the number of workers."""
    with ExitStack() as opened:
        stacks = {
            count: _Stack(
                opened.enter_context(open_testbed(APP, emulator="firestore", workers=count))
            )
            for count in WORKERS
        }
        for stack in stacks.values():
            stack.warm_up()
        for number in range(ROUNDS):
            for stack in _in_turn(stacks, number):
                stack.note_latency()
        for number in range(SPREAD_ROUNDS):
            for stack in _in_turn(stacks, number):
                stack.note_rate()
    return stacks


def _workers() -> Iterator[Result]:
    stacks = _measured()
    for count, stack in stacks.items():
        some = f"three stages of 2 intervals, worker processes: {count}"
        paced = f"{some}, {PUSHES_PER_S * SIZE} records a second"
        for name, figures, unit, versus in (
            ("latency_p50_ms", stack.p50_ms, "ms", paced),
            ("latency_p95_ms", stack.p95_ms, "ms", paced),
            ("per_s", stack.per_s, "records a second", some),
        ):
            yield _median(f"{name}_by_{count}", figures, unit, versus)
    largest, versus = WORKERS[-1], f"{WORKERS[-1]} worker processes to 1, on the same two cores"
    latencies = _ratios(stacks[largest].p50_ms, stacks[1].p50_ms)
    ratio = _median(f"latency_of_{largest}_versus_1", latencies, "ratio of medians", versus)
    yield replace(ratio, target=MAX_LATENCY, at_least=False)
    rates = _ratios(stacks[largest].per_s, stacks[1].per_s)
    yield _median(f"per_s_of_{largest}_versus_1", rates, "ratio of rates", versus)


def _in_turn(stacks: dict[int, _Stack], number: int) -> list[_Stack]:
    """Return the stacks in the order of a round."""
    return list(stacks.values())[:: -1 if number % 2 else 1]


def _ratios(of: list[float], to: list[float]) -> list[float]:
    return [one / other for one, other in zip(of, to, strict=True)]


def _median(name: str, rounds: list[float], unit: str, versus: str) -> Result:
    raw = {"rounds": [round(figure, 2) for figure in rounds]}
    return Result(f"streams_growth.{name}", median(rounds), unit, versus, raw=raw)


# A thousand series


def _detector(bench: Bench) -> Iterator[Result]:
    """Replay series at full speed; yield the rate, and the cost of a million records."""
    _replay(bench, 0, WARM)
    start_cost, start_read = bench.cost(), bench.read_meter.total()
    began = time.perf_counter()
    pushed_cost = _replay(bench, WARM, WARM + BUCKETS) - start_read
    took_s, count = time.perf_counter() - began, SERIES * BUCKETS
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    spent = bench.cost() - start_cost + pushed_cost
    name, some = "streams_growth.detector", f"{SERIES} series at once, five stages"
    yield Result(f"{name}_per_s", count / took_s, "series-buckets a second", some)
    for operation, value in spent.as_dict().items():
        unit = "operations a million records"
        yield Result(f"{name}_{operation}", value / count * 1_000_000, unit, some)


def _replay(bench: Bench, start: int, end: int) -> Cost:
    """Push some buckets of each series, and wait for their results; return the pushes' cost."""
    with ThreadPoolExecutor(len(FEEDS)) as threads:
        list(threads.map(lambda feed: _push_feed(bench, feed, start, end), range(len(FEEDS))))
    cost = bench.read_meter.total()
    ends_at = time.monotonic() + TIMEOUT_S
    while not _has_all(bench, SERIES * end):
        if time.monotonic() > ends_at:
            raise WrongError(f"{DETECTOR.name} did not finish")
        time.sleep(LOOK_EVERY_S)
    return cost


def _has_all(bench: Bench, buckets: int) -> bool:
    """Return whether a number of buckets are complete, and have passed all stages."""
    computations = DETECTOR.status(bench.clients).computations
    if computations["counter"].timers < buckets or any(
        computation.waiting for computation in computations.values()
    ):
        return False
    complete = computations["counter"].records, computations["counter"].timers
    if complete != (buckets, buckets) or any(
        computation.late or computation.dead for computation in computations.values()
    ):
        raise WrongError(f"{complete} records and complete buckets, not {buckets}")
    return True


def _push_feed(bench: Bench, feed: int, begin: int, end: int) -> None:
    """Push the records of one feed, bucket by bucket, with the matching watermark."""
    chance = random.Random(f"{feed} {begin}")
    for number in range(begin, end):
        start = FIRST_BUCKET_MS + number * BUCKET_MS
        records = [
            PushedRecord(
                f"{series}:{number}", {"query": f"q{series}", "n": chance.randint(5, 50)}, start
            )
            for series in range(feed, SERIES, len(FEEDS))
        ]
        options = {"process": FEEDS[feed], "watermark": start + BUCKET_MS}
        push(bench, DETECTOR, records, "queries", **options)
