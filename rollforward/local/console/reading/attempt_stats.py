"""Latency and errors of attempts, over time and by task or queue.

Only numbers and coordinates, which a template draws as SVG and writes into tables.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

BUCKETS = 48
WIDTH, HEIGHT = 960.0, 160.0
_DEFERRED = (409, 429, 503)
_COPIES = ("duplicate", "overlap")
_LINES = 4


@dataclass(frozen=True)
class AttemptStats:
    """The attempts of a task, of a queue, or of a stretch of time.

    Attributes:
        deferred: Answered 409, 429 or 503: the app asks for a later attempt.
        durations_ms: Durations of ended attempts, in order.
    """

    attempts: int
    failed: int
    deferred: int
    durations_ms: Sequence[float]

    @classmethod
    def of(cls, rows: Sequence[Any]) -> "AttemptStats":
        """Return the figures of rows that the emulator keeps of attempts."""
        outcomes = [outcome_of(row) for row in rows]
        ended = sorted(row["duration_ms"] for row in rows if row["duration_ms"] is not None)
        return cls(len(rows), outcomes.count("failed"), outcomes.count("deferred"), ended)

    @property
    def error_rate(self) -> float:
        """The share of the ended attempts that failed."""
        return self.failed / len(self.durations_ms) if self.durations_ms else 0.0

    def percentile_ms(self, percent: int) -> float | None:
        """Return a percentile of the durations, by nearest rank.

        >>> AttemptStats(4, 0, 0, [1.0, 2.0, 3.0, 40.0]).percentile_ms(50)
        2.0
        >>> AttemptStats(0, 0, 0, []).percentile_ms(95) is None
        True
        """
        if not self.durations_ms:
            return None
        rank = math.ceil(percent / 100 * len(self.durations_ms))
        return self.durations_ms[max(rank, 1) - 1]


@dataclass(frozen=True)
class Bucket:
    """A stretch of time and its attempts."""

    begins: float
    figures: AttemptStats


@dataclass(frozen=True)
class Chart:
    """A picture over time: lines of latency, bars of errors, and the numbers of both axes.

    Attributes:
        times: Moments along the axis of time, the first and the last among them.
        top_ms: The latency at the upper edge.
        lines: Points of a polyline by percentile; where nothing ended, the line is cut.
        bars: x, y, width and height of the share of failed attempts.
    """

    buckets: Sequence[Bucket]
    times: Sequence[float]
    top_ms: float
    lines: dict[int, Sequence[str]]
    bars: Sequence[tuple[float, float, float, float]]

    def marks_ms(self) -> list[float]:
        """Return the latencies along the axis, from the upper edge down."""
        return [self.top_ms * line / _LINES for line in range(_LINES, -1, -1)]


def outcome_of(row: Any) -> str:
    """Return the outcome of an attempt: running, done, deferred or failed."""
    if row["duration_ms"] is None:
        return "running"
    if row["error"] is not None or row["status"] is None:
        return "failed"
    if 200 <= row["status"] <= 299:
        return "done"
    return "deferred" if row["status"] in _DEFERRED else "failed"


def own(rows: Iterable[Any]) -> list[Any]:
    """Return the attempts without copies, which say nothing of how a task fares."""
    return [row for row in rows if row["kind"] not in _COPIES]


def grouped(rows: Iterable[Any], key: Callable[[Any], str]) -> dict[str, AttemptStats]:
    """Return the figures of attempts by a key."""
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: AttemptStats.of(members) for name, members in groups.items()}


def chart_of(rows: Sequence[Any], since: float, until: float) -> Chart:
    """Return the picture of the attempts that began within a time."""
    span_s = max(until - since, 0.001)
    members: list[list[Any]] = [[] for _ in range(BUCKETS)]
    for row in rows:
        place = int((row["started_at"] - since) / span_s * BUCKETS)
        members[min(max(place, 0), BUCKETS - 1)].append(row)
    buckets = [
        Bucket(since + span_s * place / BUCKETS, AttemptStats.of(bucket))
        for place, bucket in enumerate(members)
    ]
    top_ms = _rounded_up(max((b.figures.percentile_ms(95) or 0.0 for b in buckets), default=0.0))
    return Chart(
        buckets=buckets,
        times=[since + span_s * part / _LINES for part in range(_LINES + 1)],
        top_ms=top_ms,
        lines={percent: _lines(buckets, percent, top_ms) for percent in (50, 95)},
        bars=_bars(buckets),
    )


def _lines(buckets: Sequence[Bucket], percent: int, top_ms: float) -> list[str]:
    """Return the pieces of a line; a bucket alone is as wide as itself."""
    width = WIDTH / BUCKETS
    pieces: list[list[str]] = [[]]
    for place, bucket in enumerate(buckets):
        value_ms = bucket.figures.percentile_ms(percent)
        if value_ms is None:
            pieces.append([])
            continue
        y = HEIGHT * (1 - value_ms / top_ms)
        pieces[-1] += [f"{place * width:.1f},{y:.1f}", f"{(place + 1) * width:.1f},{y:.1f}"]
    return [" ".join(piece) for piece in pieces if piece]


def _bars(buckets: Sequence[Bucket]) -> list[tuple[float, float, float, float]]:
    width = WIDTH / BUCKETS
    bars = []
    for place, bucket in enumerate(buckets):
        if share := bucket.figures.error_rate:
            height = HEIGHT * share
            bars.append((round(place * width, 1), HEIGHT - height, round(width - 2, 1), height))
    return bars


def _rounded_up(value_ms: float) -> float:
    """Return a round number that is not less: 1, 2 or 5 with zeros.

    >>> _rounded_up(0.0), _rounded_up(3.0), _rounded_up(180.0)
    (1.0, 5.0, 200.0)
    """
    scale = 10.0 ** math.floor(math.log10(max(value_ms, 1.0)))
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= max(value_ms, 1.0))
