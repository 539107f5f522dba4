"""The chart of a query: its counts, the band of what is usual, alerts, and the watermark."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from demos.zeitgeist.detector import Alert
from demos.zeitgeist.progress import Point
from demos.zeitgeist.series import BUCKET_MS, HOUR_MS

# Of the lines; their picture is stretched to the width of the page.
WIDTH, HEIGHT = 1000, 200
TICK_HOURS = 12
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
        band: The area of what is usual.
        line: What was counted; complete buckets.
        open: What was counted so far of buckets that are not complete.
        watermark: None: it lies outside.
        front: Up to where the fastest feed is.
    """

    band: str
    line: str
    open: str
    flags: Sequence[Flag]
    ticks: Sequence[tuple[float, str]]
    top: float
    watermark: float | None
    front: float


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
        points, so_far: Complete buckets, and what was counted of others.
        span: From when to when.
        shift: By how much the times of the stream are ahead of those that are shown.
    """
    begin, end = span
    frame = _Frame(begin, end, _top(points, so_far))
    shown = [each for each in alerts if begin <= each.start < end]
    inside = begin <= watermark < end
    return Chart(
        band="".join(_band(frame, run) for run in _runs(points) if run[0].mean is not None),
        line="".join(_line(frame, run) for run in _runs(points)),
        open="".join(_line(frame, run) for run in _runs([*points[-1:], *so_far])),
        flags=[_flag(frame, each, shift) for each in shown],
        ticks=list(_ticks(frame, shift)),
        top=frame.top,
        watermark=frame.x(watermark, 100) if inside else None,
        front=frame.x(max(front, watermark), 100),
    )


def _top(points: Sequence[Point], so_far: Sequence[Point]) -> float:
    highest = max((each.count for each in [*points, *so_far]), default=0)
    usual = max((min(each.high or 0, BAND_CUT * (each.mean or 0)) for each in points), default=0)
    return max(1.0, highest * 1.1, usual)


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield points that follow each other; where something is not measured, a line ends."""
    run: list[Point] = []
    for point in points:
        is_next = not run or point.start == run[-1].start + BUCKET_MS
        if not is_next or (run and (run[-1].mean is None) != (point.mean is None)):
            yield run
            # What is not known of the band does not cut the line of counts.
            run = [run[-1]] if is_next and run[-1].mean is None else []
        run.append(point)
    if run:
        yield run


def _line(frame: _Frame, run: Sequence[Point]) -> str:
    return "M" + "L".join(frame.place(each, each.count) for each in run)


def _band(frame: _Frame, run: Sequence[Point]) -> str:
    there = [frame.place(each, each.high or 0) for each in run]
    back = [frame.place(each, each.low or 0) for each in reversed(run)]
    return "M" + "L".join([*there, *back]) + "Z"


def _flag(frame: _Frame, alert: Alert, shift: int) -> Flag:
    text = f"{alert.kind} at {clock(alert.at - shift)}: {alert.count:.0f}, usual {alert.usual:.0f}"
    y = 100 * frame.y(alert.count) / HEIGHT
    return Flag(alert.kind, frame.x(alert.start + BUCKET_MS // 2, 100), round(y, 1), text)


def _ticks(frame: _Frame, shift: int) -> Iterator[tuple[float, str]]:
    step = TICK_HOURS * HOUR_MS
    at = -(-(frame.begin - shift) // step) * step
    while at + shift < frame.end:
        yield frame.x(at + shift, 100), clock(at)
        at += step


def clock(at: int) -> str:
    """Return a time of a series.

    >>> clock(4 * 86_400_000 + 3_600_000)
    'Mon 5 Jan 01:00'
    """
    time = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return f"{time:%a} {time.day} {time:%b %H:%M}"
