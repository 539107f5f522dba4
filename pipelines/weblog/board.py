"""The board: a computation that stores each result for the pages, exactly once.

Hits and visits are spread over the keys "hits.<shard>" and "visits.<shard>", and error rates over
"rates.<day>", so no single key receives all records. A day's key is reused after 100 days. That is
longer than a log, and bounds the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pipelines.times import DAY_MS
from rollforward.streams import Computation, Context, Record
from rollforward.streams.operators.windows import milliseconds

DAYS_KEPT = 100
# Per key.
LAST_KEPT = 24
SECONDS_KEPT = 300


class Board(Computation):
    """Per key: the last results, their number and records, and a count per second."""

    def __init__(self, rate_size: timedelta, shard_of: Callable[[str], str]) -> None:
        """Set up the keys.

        Args:
            rate_size: The size of the windows of error rates. Windows that begin at a multiple of
                it do not overlap, and form the series of the chart.
            shard_of: Maps paths and visitors to shards.
        """
        self.rate_ms = milliseconds(rate_size)
        self.inputs: Mapping[str, Callable[[Any], str]] = {
            "hits-per-minute": lambda result: f"hits.{shard_of(result['key'])}",
            "visits": lambda result: f"visits.{shard_of(result['key'])}",
            "rates": lambda result: rates_key(result["start"]),
            "tops": lambda result: "tops",
        }

    def record(self, ctx: Context, record: Record) -> None:
        result = record.value
        if record.stream == "rates":
            self._draw(ctx, result)
        ctx.state.counter("results").add(1)
        ctx.state.counter("records").add(result["records"])
        ctx.state["at_ms"] = ctx.now_ms
        _count_second(ctx)
        last_results = ctx.state.list("last")
        last_results.set([*last_results.get()[1 - LAST_KEPT :], result])

    def _draw(self, ctx: Context, result: Any) -> None:
        day, start = result["start"] // DAY_MS, result["start"]
        if ctx.state.get("day") != day:
            ctx.state.clear()
            ctx.state["day"] = day
        if start % self.rate_ms == 0:
            value = result["value"]
            ctx.state.map("series").set(str(start), [value["requests"], value["errors"]])


def rates_key(at: int) -> str:
    """Return the key of the error rates of a time's day."""
    return f"rates.{at // DAY_MS % DAYS_KEPT}"


def _count_second(ctx: Context) -> None:
    """Count a result in the second of its commit."""
    seconds, now_s = ctx.state.map("seconds"), ctx.now_ms // 1000
    is_new = str(now_s) not in seconds
    seconds.add(str(now_s), 1)
    if is_new:
        for expired in [key for key, _ in seconds.items() if int(key) <= now_s - SECONDS_KEPT]:
            seconds.pop(expired)
