"""Graph of an access log: six computations over the stream of its requests, and the board.

    requests ─┬─ hits ──────────── top-by-shard ── top-paths ─┐
              ├─ errors-by-shard ─ error-rates ───────────────┼─ board
              └─ sessions ────────────────────────────────────┘

Hits are per path and minute, sessions per visitor until there was no request for 30 minutes, error
rates over 5 minutes, each minute, and top paths per hour. Totals of the whole site are computed in
parallel shards first, and then merged, so that no key receives every record. The board stores all
results for the pages, under many keys, too.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013, for its shape.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pipelines.weblog.board import Board
from pipelines.weblog.source import REQUESTS
from rollforward.streams import Pipeline, Record
from rollforward.streams.operators.aggregates import Combine, top
from rollforward.streams.operators.windows import (
    Bounds,
    Enclosing,
    Session,
    Sliding,
    Tumbling,
    Windowed,
)

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SESSION_GAP = timedelta(minutes=30)
RATE_SIZE = timedelta(minutes=5)
TOP_PATHS = 10
SHARDS = 8
FIRST_ERROR = 500  # A 4xx is an error of the browser.
SITE = "site"


def of_site(value: Any) -> str:
    """Return the single key of the merged totals."""
    return SITE


def shard_of(text: str) -> str:
    """Return the shard of a path or a visitor; it is deterministic."""
    return str(zlib.crc32(text.encode()) % SHARDS)


@dataclass(frozen=True)
class Around:
    """Sliding windows over the results of smaller windows.

    As with `Enclosing`, a result's bounds decide, since its time is in the next window already.
    """

    size: timedelta
    every: timedelta
    merges = False

    def assign(self, record: Record) -> Sequence[Bounds]:
        result = record.value
        delay = record.timestamp_ms - result["end"] + 1
        begun = record._replace(timestamp_ms=result["start"])
        windows = Sliding(self.size, self.every).assign(begun)
        return [Bounds(start, end, due + delay) for start, end, due in windows]


def rates(of: Callable[[Any], Sequence[int]]) -> Combine:
    """Add up requests, and the ones that failed on the server.

    Args:
        of: Returns both numbers for a record's value.
    """

    def merge(left: Sequence[int], right: Sequence[int]) -> list[int]:
        return [left[0] + right[0], left[1] + right[1]]

    return Combine(
        empty=lambda: [0, 0],
        add=lambda total, record: merge(total, of(record.value)),
        merge=merge,
        result=lambda total: {"requests": total[0], "errors": total[1]},
    )


def top_of_shards() -> Combine:
    """Merge the top lists of the shards. A path is in one shard, so no sum is split."""

    def merge(left: list[Any], right: list[Any]) -> list[Any]:
        return heapq.nsmallest(TOP_PATHS, [*left, *right], key=lambda item: (-item[1], item[0]))

    return Combine(list, lambda total, record: merge(total, record.value["value"]), merge)


HITS = Windowed(
    "hits",
    Tumbling(MINUTE),
    inputs={"requests": lambda request: request["path"]},
    output="hits-per-minute",
)
TOP_BY_SHARD = Windowed(
    "top-by-shard",
    Enclosing(HOUR),
    inputs={"hits-per-minute": lambda hits: shard_of(hits["key"])},
    output="tops-of-shards",
    combine=top(TOP_PATHS, of=lambda hits: hits["key"], amount=lambda hits: hits["value"]),
)
TOP = Windowed(
    "top-paths",
    Enclosing(),
    inputs={"tops-of-shards": of_site},
    output="tops",
    combine=top_of_shards(),
)
SESSIONS = Windowed(
    "sessions",
    Session(SESSION_GAP),
    inputs={"requests": lambda request: request["visitor"]},
    output="visits",
)
ERRORS_BY_SHARD = Windowed(
    "errors-by-shard",
    Tumbling(MINUTE),
    inputs={"requests": lambda request: shard_of(request["visitor"])},
    output="errors-of-shards",
    combine=rates(lambda request: [1, int(request["status"] >= FIRST_ERROR)]),
)
ERROR_RATES = Windowed(
    "error-rates",
    Around(RATE_SIZE, MINUTE),
    inputs={"errors-of-shards": of_site},
    output="rates",
    combine=rates(lambda part: [part["value"]["requests"], part["value"]["errors"]]),
)

WEBLOG = Pipeline(
    "weblog",
    HITS,
    ERRORS_BY_SHARD,
    SESSIONS,
    TOP_BY_SHARD,
    ERROR_RATES,
    TOP,
    Board(RATE_SIZE, shard_of),
    sources=[REQUESTS],
)
