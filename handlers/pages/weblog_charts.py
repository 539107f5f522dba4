"""The picture of a pipeline: its source and computations as boxes, its streams as lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.streams import Pipeline

BOX_WIDTH, BOX_HEIGHT = 168, 62
COLUMN, ROW = 224, 82
MARGIN = 6


@dataclass(frozen=True)
class Box:
    """A source or a computation, by the place of its upper left corner."""

    name: str
    x: int
    y: int
    is_source: bool


@dataclass(frozen=True)
class Line:
    """A stream from one box to another."""

    stream: str
    x1: int
    y1: int
    x2: int
    y2: int


@dataclass(frozen=True)
class Picture:
    """The boxes and lines of a pipeline, and the size of all."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: int
    height: int


def picture_of(pipeline: Pipeline) -> Picture:
    """Return the picture: each computation right of those that write for it."""
    columns = _columns(pipeline)
    rows: dict[int, int] = {}
    boxes = {}
    for name, column in columns.items():
        row = rows[column] = rows.get(column, -1) + 1
        x, y = MARGIN + column * COLUMN, MARGIN + row * ROW
        boxes[name] = Box(name, x, y, name in pipeline.sources)
    return Picture(
        tuple(boxes.values()),
        _lines(pipeline, boxes),
        2 * MARGIN + max(columns.values()) * COLUMN + BOX_WIDTH,
        2 * MARGIN + max(rows.values()) * ROW + BOX_HEIGHT,
    )


def _columns(pipeline: Pipeline) -> dict[str, int]:
    """Return for each source and computation how far to the right it stands."""
    graph = pipeline.graph
    columns = dict.fromkeys(pipeline.sources, 0)
    for name in graph.order:
        columns[name] = 1 + max((columns[each] for each in graph.upstream[name]), default=0)
    return columns


def _lines(pipeline: Pipeline, boxes: Mapping[str, Box]) -> tuple[Line, ...]:
    lines = []
    for stream, readers in pipeline.graph.readers.items():
        writers = [each.name for each in pipeline.computations.values() if stream in each.written]
        for writer in writers or [stream]:
            for reader, _ in readers:
                start, end, half = boxes[writer], boxes[reader], BOX_HEIGHT // 2
                line = Line(stream, start.x + BOX_WIDTH, start.y + half, end.x, end.y + half)
                lines.append(line)
    return tuple(lines)
