"""Pictures of the web log: the log over its own time, and results over the run's time.

Lengths across are in percent of the picture, heights in pixels.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.weblog.progress import Progress
from pipelines.weblog.results import Results

BARS_HIGH, SECONDS_HIGH = 54, 20
MAX_BARS = 96
# Steps between the dates below a chart, in minutes, and how many there may be.
TICK_MINUTES = (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10_080, 20_160)
MAX_TICKS = 8
WINDOW_MS = 300_000
# The computation whose results are bars.
DRAWN = "error-rates"
# A bar of anything can be seen.
MIN_HIGH = 1.5


# The log over its own time


@dataclass(frozen=True)
class Bar:
    """Requests of a stretch of the log, those with errors below; `y` from above."""

    x: float
    width: float
    high: float
    errors_high: float
    requests: int
    errors: int
    begin: datetime.datetime


@dataclass(frozen=True)
class LogChart:
    """A log by its own time.

    Attributes:
        watermark: Its place in percent: right of it nothing is final. None: the whole log is.
        minutes: Length of a bar.
        peak: The most requests in one.
    """

    bars: Sequence[Bar]
    ticks: Sequence[tuple[float, str]]
    watermark: float | None
    begin: datetime.datetime
    end: datetime.datetime
    minutes: int
    peak: int
    height: int = BARS_HIGH


def log_chart(progress: Progress) -> LogChart | None:
    """Draw the log that is being read, or was read last; None: there is none."""
    if progress.log is None:
        return None
    begin, end = _bounds(progress)
    length_ms = (end - begin).total_seconds() * 1000
    bar_ms = WINDOW_MS * max(1, round(length_ms / WINDOW_MS / MAX_BARS + 0.499))
    sums: dict[int, tuple[int, int]] = {}
    for start, (requests, errors) in progress.results.series.items():
        at = progress.dates.of(start)
        if at is not None and begin <= at < end:
            i = int((at - begin).total_seconds() * 1000 // bar_ms)
            earlier = sums.get(i, (0, 0))
            sums[i] = (earlier[0] + requests, earlier[1] + errors)
    peak = max((requests for requests, _ in sums.values()), default=0)

    def bar(i: int) -> Bar:
        requests, errors = sums[i]
        pitch = 100 * bar_ms / length_ms
        x, at = pitch * i, begin + datetime.timedelta(milliseconds=bar_ms * i)
        width = round(min(pitch * 0.86, 100 - x), 2)
        return Bar(round(x, 2), width, _high(requests, peak), _high(errors, peak), *sums[i], at)

    bars = [bar(i) for i in sorted(sums)]
    return LogChart(
        bars,
        _ticks(begin, end),
        _watermark(progress, begin, end, bars),
        begin,
        end,
        bar_ms // 60_000,
        peak,
    )


def _watermark(
    progress: Progress, begin: datetime.datetime, end: datetime.datetime, bars: Sequence[Bar]
) -> float | None:
    """Return where the watermark is of those results that are drawn; None: behind them all.

    It is read a moment before them: what is drawn was final when it was written.
    """
    [drawn] = [part for part in progress.parts if part.name == DRAWN]
    reached = progress.dates.of(drawn.watermark)
    if not progress.is_moving or reached is None or reached >= end:
        return None
    return max([_percent(reached, begin, end), *(bar.x + bar.width for bar in bars[-1:])])


def _bounds(progress: Progress) -> tuple[datetime.datetime, datetime.datetime]:
    """Return between which times a log is drawn: from its first line to its last one."""
    assert progress.log is not None
    size_s = WINDOW_MS / 1000
    begin_s = progress.log["begin"] / 1000 // size_s * size_s
    latest = progress.dates.of(progress.latest)
    end_s = max(progress.log["end"] / 1000, latest.timestamp() if latest else 0.0)
    end_s = max(begin_s + size_s, (end_s // size_s + 1) * size_s)
    return _utc(begin_s), _utc(end_s)


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _percent(at: datetime.datetime, begin: datetime.datetime, end: datetime.datetime) -> float:
    return round(min(100.0, max(0.0, 100 * ((at - begin) / (end - begin)))), 2)


def _high(count: int, peak: int) -> float:
    return round(max(MIN_HIGH, BARS_HIGH * count / peak), 1) if count else 0.0


def _ticks(begin: datetime.datetime, end: datetime.datetime) -> list[tuple[float, str]]:
    """Return the dates below a chart; the first one of each day is its date."""
    minutes = (end - begin).total_seconds() / 60
    step = next((pitch for pitch in TICK_MINUTES if minutes / pitch <= MAX_TICKS), TICK_MINUTES[-1])
    step_s = step * 60
    at, day, ticks = _utc(-(-begin.timestamp() // step_s) * step_s), None, []
    while at < end:
        is_day = step >= 1440 or at.date() != day
        day = at.date()
        ticks.append((_percent(at, begin, end), f"{at.day} {at:%b}" if is_day else f"{at:%H:%M}"))
        at += datetime.timedelta(seconds=step_s)
    return ticks


# Results over the time of the run


@dataclass(frozen=True)
class Second:
    """Number of results written in a second of a run."""

    x: float
    width: float
    high: float
    count: int


def by_second(results: Results, length_s: float) -> list[Second]:
    """Draw the results by second, on the axis of the stage."""
    peak, pitch = max(results.seconds.values(), default=1), 100 / length_s
    return [
        Second(
            round(min(100.0, pitch * second), 2),
            round(max(0.0, min(100 - pitch * second, pitch * 0.86)), 2),
            round(max(MIN_HIGH, SECONDS_HIGH * count / peak), 1),
            count,
        )
        for second, count in sorted(results.seconds.items())
        if pitch * second < 100
    ]
