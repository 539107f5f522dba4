"""Streams that grow: more workers, a state cache of any size, and a thousand series at once.

A worker is a process of gunicorn. They share two cores with the emulator, the queue and the load,
so more of them show what the protocol costs them, and hardly what they could do elsewhere.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks import streams_cache
from benchmarks.results import Result
from benchmarks.streams_app import (
    DETECTOR,
    FIRST_BUCKET_MS,
    SPREAD,
    SPREAD_PULLED,
    SPREAD_RECORDS,
)
from benchmarks.streams_load import (
    TIMEOUT_S,
    WrongError,
    check_windows,
    hops_ms,
    push,
    push_paced,
    shares,
    until_collected,
)
from benchmarks.streams_workload import truth
from benchmarks.testbed import Bench, open_testbed
from demos.zeitgeist.pipeline import FEEDS
from demos.zeitgeist.series import BUCKET_MS
from pipelines.runtime import Cost
from pipelines.streams import Pushed

APP = "benchmarks.streams_app:serve()"
WORKERS = (1, 2, 4)
# For the latency: so many pushes a second, each of so many records.
PUSHES_PER_S, SIZE = 20, 10
MAX_LATENCY = 1.5
SERIES = 1_000
# Of five minutes; the first ones warm up.
WARM, BUCKETS = 6, 24
LOOK_EVERY_S = 0.25


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons."""
    yield from _workers()
    yield from streams_cache.measure()
    with open_testbed(APP, emulator="firestore") as bench:
        yield from _detector(bench)


# Workers


def _workers() -> Iterator[Result]:
    latency_ms: dict[int, tuple[float, float]] = {}
    per_s: dict[int, float] = {}
    for count in WORKERS:
        with open_testbed(APP, emulator="firestore", workers=count) as bench:
            latency_ms[count] = _latency(bench)
            per_s[count] = _rate(bench)
        some = f"three stages of 2 intervals, worker processes: {count}"
        for name, value in zip(("p50", "p95"), latency_ms[count], strict=True):
            what = f"{some}, {PUSHES_PER_S * SIZE} records a second"
            yield Result(f"streams_growth.latency_{name}_ms_by_{count}", value, "ms", what)
        yield Result(f"streams_growth.per_s_by_{count}", per_s[count], "records a second", some)
    most = WORKERS[-1]
    versus = f"{most} worker processes to 1, on the same two cores"
    yield Result(
        f"streams_growth.latency_of_{most}_versus_1",
        latency_ms[most][0] / latency_ms[1][0],
        "ratio of medians",
        versus,
        MAX_LATENCY,
        at_least=False,
    )
    name = f"streams_growth.per_s_of_{most}_versus_1"
    yield Result(name, per_s[most] / per_s[1], "ratio of rates", versus)


def _latency(bench: Bench) -> tuple[float, float]:
    """Push at a rate; return how long after its push a record has passed three stages."""
    accepted = push_paced(bench, SPREAD, PUSHES_PER_S, SIZE, 0)
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    return shares(hops_ms(bench, accepted, len(accepted)))


def _rate(bench: Bench) -> float:
    """Return how many records a second pass three stages and are counted."""
    for pipeline in SPREAD_PULLED:  # The first one warms up.
        began = time.perf_counter()
        pipeline.pull(bench.clients, "in")
        until_collected(bench, pipeline, "collect", len(truth(SPREAD_RECORDS)))
        took_s = time.perf_counter() - began
        check_windows(bench, pipeline, SPREAD_RECORDS)
        bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    return SPREAD_RECORDS / took_s


# A thousand series


def _detector(bench: Bench) -> Iterator[Result]:
    """Replay series as fast as they go; yield the rate, and the cost of a million records."""
    _replay(bench, 0, WARM)
    before, read_before = bench.cost(), bench.read_meter.total()
    began = time.perf_counter()
    pushed_cost = _replay(bench, WARM, WARM + BUCKETS) - read_before
    took_s, count = time.perf_counter() - began, SERIES * BUCKETS
    bench.queue.wait_idle(TIMEOUT_S, with_scheduled=True)
    spent = bench.cost() - before + pushed_cost
    name, some = "streams_growth.detector", f"{SERIES} series at once, five stages"
    yield Result(f"{name}_per_s", count / took_s, "series-buckets a second", some)
    for what, value in spent.as_dict().items():
        unit = "operations a million records"
        yield Result(f"{name}_{what}", value / count * 1_000_000, unit, some)


def _replay(bench: Bench, first: int, end: int) -> Cost:
    """Push some buckets of each series, wait for their results; return what that has cost here."""
    with ThreadPoolExecutor(len(FEEDS)) as threads:
        list(threads.map(lambda feed: _push_feed(bench, feed, first, end), range(len(FEEDS))))
    cost = bench.read_meter.total()
    ends_at = time.monotonic() + TIMEOUT_S
    while not _has_all(bench, SERIES * end):
        if time.monotonic() > ends_at:
            raise WrongError(f"{DETECTOR.name} does not come to its end")
        time.sleep(LOOK_EVERY_S)
    return cost


def _has_all(bench: Bench, buckets: int) -> bool:
    """Return whether so many buckets are complete, and have passed all stages."""
    found = DETECTOR.status(bench.clients).computations
    if found["counter"].timers < buckets or any(each.waiting for each in found.values()):
        return False
    complete = found["counter"].records, found["counter"].timers
    if complete != (buckets, buckets) or any(each.late or each.dead for each in found.values()):
        raise WrongError(f"{complete} records and complete buckets of {buckets}")
    return True


def _push_feed(bench: Bench, feed: int, first: int, end: int) -> None:
    """Push what one feed has, bucket by bucket, with the watermark that follows from it."""
    chance = random.Random(f"{feed} {first}")
    for number in range(first, end):
        start = FIRST_BUCKET_MS + number * BUCKET_MS
        records = [
            Pushed(f"{series}:{number}", {"query": f"q{series}", "n": chance.randint(5, 50)}, start)
            for series in range(feed, SERIES, len(FEEDS))
        ]
        options = {"process": FEEDS[feed], "watermark": start + BUCKET_MS}
        push(bench, DETECTOR, records, "queries", **options)
