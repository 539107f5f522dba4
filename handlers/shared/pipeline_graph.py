"""The picture of a pipeline: its sources and computations as boxes, its streams as lines.

All lengths are in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from handlers.shared.formatting import lag_text, short
from rollforward.streams import Pipeline

BOX_WIDTH, BOX_HEIGHT = 164, 70
COLUMN, ROW = 200, 78
MARGIN = 9
# How far a line goes from a box before it turns.
TURN = 17

# A line of a box, and whether it reports a backlog.
Cell = tuple[str, bool]


def counts_of(
    records: int, lag_ms: int, waiting: int, late: int, dead: int, rate: float | None = None
) -> list[Cell]:
    """Return the lines of a computation's box, of at most 21 characters; the table has all digits.

    >>> counts_of(600, 0, 17, 0, 0, 39.2)
    [('600 in · lag 0 s', False), ('17 pending · 39/s', True), ('0 late · 0 dead', False)]
    """
    a_second = "" if rate is None else f" · {short(round(rate))}/s"
    return [
        (f"{short(records)} in · lag {lag_text(lag_ms)}", False),
        (f"{short(waiting)} pending{a_second}", waiting > 0),
        (f"{short(late)} late · {short(dead)} dead", False),
    ]


@dataclass(frozen=True)
class Box:
    """A source or a computation, by the place of its upper left corner."""

    name: str
    x: int
    y: int
    is_source: bool


@dataclass(frozen=True)
class Line:
    """A stream from one box to another: where it begins and ends, and the height at which it goes.

    `path` is what SVG draws.
    """

    stream: str
    x1: int
    y1: int
    x2: int
    y2: int
    lane: int

    @property
    def path(self) -> str:
        out, back = self.x1 + TURN, self.x2 - TURN
        return (
            f"M{self.x1} {self.y1}C{out - 8} {self.y1} {self.x1 + 8} {self.lane} {out} {self.lane}"
            f"H{back}C{self.x2 - 8} {self.lane} {back + 8} {self.y2} {self.x2} {self.y2}"
        )


@dataclass(frozen=True)
class Picture:
    """The boxes and lines of a pipeline, and the size of all."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: int
    height: int


def picture_of(pipeline: Pipeline) -> Picture:
    """Return the picture: each computation right of its senders, and about as high."""
    columns = _columns(pipeline)
    rows = _rows(pipeline, columns)
    boxes = {
        name: Box(name, MARGIN + x * COLUMN, MARGIN + rows[name] * ROW, name in pipeline.sources)
        for name, x in columns.items()
    }
    return Picture(
        tuple(boxes.values()),
        _lines(pipeline, boxes),
        2 * MARGIN + max(columns.values()) * COLUMN + BOX_WIDTH,
        2 * MARGIN + max(rows.values()) * ROW + BOX_HEIGHT,
    )


def _columns(pipeline: Pipeline) -> dict[str, int]:
    """Return the column of each source and computation."""
    graph = pipeline.graph
    columns = dict.fromkeys(pipeline.sources, 0)
    for name in graph.order:
        columns[name] = 1 + max((columns[writer] for writer in graph.upstream[name]), default=0)
    return columns


def _rows(pipeline: Pipeline, columns: Mapping[str, int]) -> dict[str, int]:
    """Return the row of each: as near as possible to the middle of its senders."""
    rows: dict[str, int] = {}
    for name, column in columns.items():
        above = [rows[writer] for writer in pipeline.graph.upstream.get(name, ())]
        middle = round(sum(above) / len(above)) if above else 0
        occupied = {row for placed, row in rows.items() if columns[placed] == column}
        rows[name] = min(set(range(len(columns))) - occupied, key=lambda row: abs(row - middle))
    return rows


def _lines(pipeline: Pipeline, boxes: Mapping[str, Box]) -> tuple[Line, ...]:
    return tuple(
        _line(stream, boxes[writer], boxes[reader], boxes)
        for stream, readers in pipeline.graph.readers.items()
        for writer in _writers(pipeline, stream)
        for reader, _ in readers
    )


def _writers(pipeline: Pipeline, stream: str) -> list[str]:
    """Return the writers of a stream; a source has the name of its stream."""
    computations = pipeline.computations.items()
    return [name for name, writer in computations if stream in writer.written] or [stream]


def _line(stream: str, start: Box, end: Box, boxes: Mapping[str, Box]) -> Line:
    """Return a line; it goes below the boxes in between."""
    y = start.y + BOX_HEIGHT // 2
    is_blocked = any(box.y == start.y and start.x < box.x < end.x for box in boxes.values())
    lane = start.y + (BOX_HEIGHT + ROW) // 2 if is_blocked else y
    return Line(stream, start.x + BOX_WIDTH, y, end.x, end.y + BOX_HEIGHT // 2, lane)
