"""The chart of a query: its counts, the band of usual counts, alerts, and the watermark."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipelines.zeitgeist.detector import Alert
from pipelines.zeitgeist.progress import Point
from pipelines.zeitgeist.series import BUCKET_MS, HOUR_MS

# Of the lines; their picture is stretched to the width of the page.
WIDTH, HEIGHT = 1000, 200
TICK_HOURS = 12
# Of the axis of counts, as shares of the highest one: by the root, at its top, half and a quarter.
LEVELS = (1.0, 0.25, 0.0625)
# A small chart has a point for so many buckets, which is their mean.
SPARK_BUCKETS = 6
# What is usual may be wider than what was counted: it is cut at so many times the mean.
BAND_CUT = 3.0


@dataclass(frozen=True)
class Flag:
    """An alert, by its place in percent."""

    kind: str
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart; paths are in units of the lines, all else in percent.

    Attributes:
        band: The area of usual counts.
        line: Counts of complete buckets.
        open: Counts so far of incomplete buckets.
        levels: Labelled counts of the vertical axis, by their place in units of the lines.
        watermark: None: it lies outside.
        front: Up to where the fastest feed is.
    """

    band: str
    line: str
    open: str
    flags: Sequence[Flag]
    ticks: Sequence[tuple[float, str]]
    levels: Sequence[tuple[float, float]]
    watermark: float | None
    front: float


@dataclass(frozen=True)
class Spark:
    """The chart of a query in small, in the same units.

    Attributes:
        last: The count of the last complete bucket that is shown; None: there is none.
    """

    band: str
    line: str
    flags: Sequence[Flag]
    watermark: float | None
    latest: float | None


@dataclass(frozen=True)
class _Frame:
    """From when to when, and up to which count."""

    begin: int
    end: int
    top: float

    def x(self, at: int, width: float) -> float:
        share = (at - self.begin) / (self.end - self.begin)
        return round(width * min(1.0, max(0.0, share)), 1)

    def y(self, count: float) -> float:
        # By the root: a burst of ten times leaves room for what is usual.
        return round(HEIGHT * (1 - math.sqrt(min(1.0, count / self.top))), 1)

    def place(self, point: Point, count: float) -> str:
        return f"{self.x(point.start + BUCKET_MS // 2, WIDTH)} {self.y(count)}"


def chart_of(
    points: Sequence[Point],
    so_far: Sequence[Point],
    alerts: Sequence[Alert],
    *,
    span: tuple[int, int],
    watermark: int,
    front: int,
    shift: int,
) -> Chart:
    """Return the chart of a query.

    Args:
        points, so_far: Complete buckets, and counts so far of others.
        span: From when to when.
        shift: The lead of the stream's times over the times on the page.
    """
    begin, end = span
    frame = _Frame(begin, end, _top(points, so_far))
    shown = [alert for alert in alerts if begin <= alert.start < end]
    expected = [point for point in points if point.mean is not None]
    inside = begin <= watermark < end
    return Chart(
        band="".join(_band(frame, run) for run in _runs(expected)),
        line="".join(_line(frame, run) for run in _runs(points)),
        open="".join(_line(frame, run) for run in _runs([*points[-1:], *so_far])),
        flags=[_flag(frame, alert, shift) for alert in shown],
        ticks=list(_ticks(frame, shift)),
        levels=[(frame.y(share * frame.top), share * frame.top) for share in LEVELS],
        watermark=frame.x(watermark, 100) if inside else None,
        front=frame.x(max(front, watermark), 100),
    )


def spark_of(
    points: Sequence[Point],
    alerts: Sequence[Alert],
    *,
    span: tuple[int, int],
    watermark: int,
    shift: int,
) -> Spark:
    """Return the small chart of a query; `chart_of` describes the arguments."""
    begin, end = span
    latest = points[-1].count if points else None
    frame, means = _Frame(begin, end, _top(points, [])), list(_means(points))
    expected = [point for point in means if point.mean is not None]
    step = SPARK_BUCKETS * BUCKET_MS
    return Spark(
        band="".join(_band(frame, run) for run in _runs(expected, step)),
        line="".join(_line(frame, run) for run in _runs(means, step)),
        flags=[_flag(frame, alert, shift) for alert in alerts if begin <= alert.start < end],
        watermark=frame.x(watermark, 100) if begin <= watermark < end else None,
        latest=latest,
    )


def _means(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the means of some buckets each; what is usual, if it is known of all of them."""
    step = SPARK_BUCKETS * BUCKET_MS
    for start, group in groupby(points, key=lambda point: point.start // step * step):
        members = list(group)
        usual = [
            (point.low, point.mean, point.high)
            for point in members
            if point.low is not None and point.mean is not None and point.high is not None
        ]
        mean = [_mean(column) for column in zip(*usual, strict=True)]
        is_known = len(usual) == len(members)
        yield Point(start, _mean([point.count for point in members]), *(mean if is_known else ()))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _top(points: Sequence[Point], so_far: Sequence[Point]) -> float:
    highest = max((point.count for point in [*points, *so_far]), default=0)
    usual = max((min(point.high or 0, BAND_CUT * (point.mean or 0)) for point in points), default=0)
    return max(1.0, highest * 1.1, usual)


def _runs(points: Sequence[Point], step: int = BUCKET_MS) -> Iterator[list[Point]]:
    """Yield points that follow each other; where something was not measured, a line ends."""
    run: list[Point] = []
    for point in points:
        if run and point.start > run[-1].start + step:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _line(frame: _Frame, run: Sequence[Point]) -> str:
    return "M" + "L".join(frame.place(point, point.count) for point in run)


def _band(frame: _Frame, run: Sequence[Point]) -> str:
    upper = [frame.place(point, point.high or 0) for point in run]
    lower = [frame.place(point, point.low or 0) for point in reversed(run)]
    return "M" + "L".join([*upper, *lower]) + "Z"


def _flag(frame: _Frame, alert: Alert, shift: int) -> Flag:
    text = f"{alert.kind} at {clock(alert.at - shift)}: {alert.count:.0f}, usual {alert.usual:.0f}"
    y = 100 * frame.y(alert.count) / HEIGHT
    return Flag(alert.kind, frame.x(alert.start + BUCKET_MS // 2, 100), round(y, 1), text)


def _ticks(frame: _Frame, shift: int) -> Iterator[tuple[float, str]]:
    step = TICK_HOURS * HOUR_MS
    at = -(-(frame.begin - shift) // step) * step
    while at + shift < frame.end:
        yield frame.x(at + shift, 100), _tick(at)
        at += step


def _tick(at: int) -> str:
    """Return the labels below a chart: a day at its beginning, and the time within it.

    >>> _tick(4 * 86_400_000), _tick(4 * 86_400_000 + 43_200_000)
    ('Mon 5 Jan', '12:00')
    """
    time = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return f"{time:%H:%M}" if time.hour else f"{time:%a} {time.day} {time:%b}"


def clock(at: int) -> str:
    """Return a time of a series.

    >>> clock(4 * 86_400_000 + 3_600_000)
    'Mon 5 Jan 01:00'
    """
    time = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return f"{time:%a} {time.day} {time:%b %H:%M}"
