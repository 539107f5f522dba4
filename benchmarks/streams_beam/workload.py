"""The demos' web log and Zeitgeist without their pages, for our engine and for Beam's.

Both engines run these declarations over the same records. Each result yields a number that does not
depend on the order, so a single lost, doubled or different result is noticed. Beam's program
imports this module in an environment of its own.
"""

from __future__ import annotations

import bisect
import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.weblog import pipeline as weblog
from pipelines.weblog.lines import read_log
from pipelines.weblog.sample import sample_log
from pipelines.zeitgeist import sample
from pipelines.zeitgeist.pipeline import Counter, Usual, Watcher
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS
from rollforward.streams import Computation, Context, Pipeline, Record, StreamTest
from rollforward.streams.model.sources import Source

BATCH, STREAM = "batch", "stream"
# The web log has windows over windows, and the watermark of Beam's streaming runner does not wait
# for the timers of the first windows (tests/rollforward/streams/beam/test_runners.py).
BEAM_RUNS = [("weblog", BATCH), ("zeitgeist", BATCH), ("zeitgeist", STREAM)]
# Records of runs all at once, and one after the other. Beam's local runners would be too slow with
# more; with fewer, only the last tick of the watermark would be measured.
RECORDS = {
    "weblog": {BATCH: 1_000, STREAM: 12},
    "zeitgeist": {BATCH: 2_880, STREAM: 24},
}
SOURCES = {"weblog": "requests", "zeitgeist": "queries"}
OUTPUTS = {"weblog": ("hits-per-minute", "tops", "rates", "visits"), "zeitgeist": ("measured",)}
# The slowest response of the web log; Zeitgeist's records are in order.
DISORDER_MS = {"weblog": 60_000, "zeitgeist": 0}
Records = Sequence[tuple[Any, int]]


class WrongError(Exception):
    """Results were lost, doubled or changed."""


@functools.cache
def records_of(name: str, kind: str) -> Records:
    """Return the records of a run, with their times in ms, in the order of their arrival."""
    count = RECORDS[name][kind]
    if name == "weblog":
        requests = read_log(sample_log()).requests[:count]
        return [(request.value, request.at) for request in requests]
    begin = sample.FIRST_DAY * DAY_MS
    every = [
        ({"query": query.name, "n": sample.made_up_count(query, feed, at)}, begin + at)
        for at in range(0, DAY_MS, BUCKET_MS)
        for query in sample.QUERIES
        for feed in sample.PLACES
    ]
    return every[:count]


def end_of(name: str, records: Records) -> int:
    """Return the watermark at which Beam ends a pipeline.

    Zeitgeist counts a query in each bucket until `ctx.is_over`, which Beam never sets.
    """
    last_ms = records[-1][1]
    # A millisecond after the last bucket: if the watermark jumped to the end at once, Beam's
    # streaming runner would end the model before the counter has written.
    return last_ms + DAY_MS if name == "weblog" else (last_ms // BUCKET_MS + 1) * BUCKET_MS + 1


def number_of(value: Mapping[str, Any]) -> int:
    """Return a number for a result, or 0 if it depends on the order of its key's records."""
    if "is_complete" in value:
        if not value["is_complete"]:
            return 0
        value = {name: value[name] for name in ("query", "start", "count")}
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


class Kept(Computation):
    """Stores the number of results, and the sum of their numbers."""

    def __init__(self, *streams: str) -> None:
        self.inputs = dict.fromkeys(streams, lambda value: str(number_of(value) % 4))

    def record(self, ctx: Context, record: Record) -> None:
        number = number_of(record.value)
        ctx.state.counter("results").add(number > 0)
        ctx.state.counter("sum").add(number)


def stages(name: str) -> Sequence[Computation]:
    """Return the computations of a demo, except the ones that store results for its pages."""
    if name == "weblog":
        return (
            weblog.HITS, weblog.ERRORS_BY_SHARD, weblog.SESSIONS, weblog.TOP_BY_SHARD,
            weblog.ERROR_RATES, weblog.TOP,
        )  # fmt: skip
    return Counter(), Usual(), Watcher()


def declared(name: str, run: str, *readers: Computation, source: Source | None = None) -> Pipeline:
    """Return a pipeline for one run, since its source ends.

    Args:
        readers: Computations that read the results.
    """
    sources = [source] if source is not None else []
    return Pipeline(f"{name}-{run}", *stages(name), *readers, sources=sources)


@functools.cache
def truth(name: str, kind: str) -> tuple[int, int]:
    """Return the number of results and the sum of their numbers, from the simulator."""
    test, stream, watermark = StreamTest(declared(name, "truth")), SOURCES[name], 0
    for value, at in records_of(name, kind):
        test.push(stream, value, at)
        watermark = max(watermark, at - DISORDER_MS[name])
        test.advance_watermark(watermark)
    test.close()
    numbers = [number_of(one.value) for out in OUTPUTS[name] for one in test.read(out)]
    return sum(number > 0 for number in numbers), sum(numbers)


def check(name: str, kind: str, numbers: Sequence[int]) -> None:
    """Compare results with the simulator's.

    Raises:
        WrongError: a result is missing, doubled or different.
    """
    actual = sum(number > 0 for number in numbers), sum(numbers)
    if actual != truth(name, kind):
        raise WrongError(f"{name}, {kind}: {actual} instead of {truth(name, kind)}")


def lags_ms(
    inputs: Sequence[tuple[float, float]], results: Sequence[tuple[int, float]]
) -> list[float]:
    """Return the milliseconds of each result since the input that completed it.

    This is the first input that moved the watermark to the time of the result. Results completed
    only by the end of the input are left out.

    Args:
        inputs: The watermark after each input, and the time of its arrival, in seconds, in order.
        results: The event time of each result, and the time it was available.
    """
    lags, reached, times = list[float](), list[float](), list[float]()
    for watermark, when in inputs:
        if not reached or watermark > reached[-1]:
            reached.append(watermark)
            times.append(when)
    for at, when in results:
        place = bisect.bisect_left(reached, at)
        if place < len(times):
            lags.append(1000 * (when - times[place]))
    return lags
