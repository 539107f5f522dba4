"""A run as pictures: a dot for each item and a curve of the ended ones, or a bar for each step.

Only coordinates are computed here; the templates draw them as SVG, with classes for colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollforward.tasks.runs import OUTCOMES, RunDetails, RunPart, RunSpan

LETTERS = {letter: outcome for outcome, letter in OUTCOMES.items()}
ENDED = "dsf"
# A cell that stands for several items shows the one that a person must see first.
_URGENT = "fr.sd"
WIDTH = 1000.0
HEIGHT = 190.0
MAX_CELLS = 20_000
CURVE_HEIGHT = 160.0
MIN_PARTS = 3
MIN_WIDTH = 6.0  # Of a bar, so that a step of a millisecond is seen beside one of a month.


@dataclass(frozen=True)
class Dots:
    """Items in rows, a path for each outcome.

    Attributes:
        per_cell: How many items each cell stands for.
        items: How many items are drawn: all of the run, or the first ones.
    """

    paths: dict[str, str]
    cell: float
    height: float
    per_cell: int
    items: int

    @property
    def gap(self) -> float:
        """The space between two cells."""
        return self.cell * 0.18


@dataclass(frozen=True)
class Curve:
    """The items that have ended, from the start of a run to its end, or to now."""

    seconds: float
    points: str  # Of a polyline.

    def mark(self, share: float) -> float:
        """Return the seconds at a part of the axis."""
        return self.seconds * share


@dataclass(frozen=True)
class Lane:
    """A step on the axis of its run: its bar, and how long it took or has been at work."""

    label: str
    outcome: str
    is_wait: bool
    seconds: float
    x: float
    width: float


@dataclass(frozen=True)
class Lanes:
    """Steps below each other, from the first one's begin to the last end, or to now."""

    seconds: float
    lanes: Sequence[Lane]

    def mark(self, share: float) -> float:
        """Return the seconds at a part of the axis."""
        return self.seconds * share


def lanes_of(details: RunDetails, now_s: float) -> Lanes | None:
    """Return the steps of a run as bars; None: it has none."""
    times = [(span.began.timestamp(), _ended_s(span, now_s)) for span in details.spans]
    if not times:
        return None
    begun = min(began for began, _ in times)
    seconds = max(0.001, max(ended for _, ended in times) - begun)
    lanes = []
    for span, (began, ended) in zip(details.spans, times, strict=True):
        width = max(MIN_WIDTH, (ended - began) / seconds * WIDTH)
        x = min((began - begun) / seconds * WIDTH, WIDTH - width)
        lanes.append(Lane(span.label, span.outcome, span.is_wait, ended - began, x, width))
    return Lanes(seconds, lanes)


def _ended_s(span: RunSpan, now_s: float) -> float:
    """Return the end of a step, or now; by clocks that differ it is not before its begin."""
    ended = span.ended.timestamp() if span.ended else now_s
    return max(ended, span.began.timestamp())


def dots_of(details: RunDetails) -> Dots | None:
    """Return a run's items; None: nothing is known of any, or steps show it better.

    Those of parts that have not begun wait. If parts are left out, theirs are not drawn: they may
    have ended long ago.
    """
    if details.spans:
        return None
    known = "".join(part.items for part in details.parts)
    items = max(len(known), details.run.expected) if details.has_all_parts else len(known)
    if not items:
        return None
    per_cell = max(1, math.ceil(items / MAX_CELLS))
    chunks = (known[i : i + per_cell] for i in range(0, len(known), per_cell))
    letters = "".join(next((x for x in _URGENT if x in chunk), ".") for chunk in chunks)
    letters = letters.ljust(math.ceil(items / per_cell), ".")
    columns = max(10, math.ceil(math.sqrt(len(letters) * WIDTH / HEIGHT)))
    cell = WIDTH / columns
    rows = [letters[i : i + columns] for i in range(0, len(letters), columns)]
    strokes: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        y = (number + 0.5) * cell
        for start, length, letter in _segments(row):
            stroke = f"M{start * cell:.2f} {y:.2f}h{length * cell:.2f}"
            strokes.setdefault(LETTERS[letter], []).append(stroke)
    paths = {outcome: "".join(parts) for outcome, parts in strokes.items()}
    return Dots(paths, cell, len(rows) * cell, per_cell, items)


def curve_of(details: RunDetails, now_s: float) -> Curve | None:
    """Return how many items had ended when: a step for each part, when it last got on.

    Of the parts alone that are there. None: the run has no start, or too few parts for a curve.
    """
    run = details.run
    if run.started is None or len(details.parts) < MIN_PARTS:
        return None
    begun = run.started.timestamp()
    steps = sorted((_progressed_s(part), part.items) for part in details.parts)
    end = now_s if run.state == "running" else (run.ended or run.started).timestamp()
    seconds = max(end, steps[-1][0], begun + 0.001) - begun
    known = sum(len(items) for _, items in steps)
    total = max(run.expected if details.has_all_parts else 0, known, 1)
    top = 0.96 * CURVE_HEIGHT  # The line is not cut in half where all have ended.
    points, ended, x = [(0.0, CURVE_HEIGHT)], 0, 0.0
    for progressed_s, items in steps:
        x = max(0.0, (progressed_s - begun) / seconds * WIDTH)
        points.append((x, CURVE_HEIGHT - top * ended / total))
        ended += sum(letter in ENDED for letter in items)
        points.append((x, CURVE_HEIGHT - top * ended / total))
    points.append((WIDTH if run.state == "running" else x, points[-1][1]))
    return Curve(seconds, " ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def _progressed_s(part: RunPart) -> float:
    return part.progressed.timestamp()


def _segments(row: str) -> list[tuple[int, int, str]]:
    """Return start, length and letter of each stretch of equal letters."""
    stretches: list[tuple[int, int, str]] = []
    for index, letter in enumerate(row):
        if stretches and stretches[-1][2] == letter:
            start, length, _ = stretches[-1]
            stretches[-1] = (start, length + 1, letter)
        else:
            stretches.append((index, 1, letter))
    return stretches
