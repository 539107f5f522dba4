"""A run as pictures: a dot for each item, and a curve of the ended ones.

Only coordinates are computed here; the templates draw them as SVG, with classes for colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollforward.tasks.runs import OUTCOMES, RunDetails, RunPart

LETTERS = {letter: outcome for outcome, letter in OUTCOMES.items()}
ENDED = "dsf"
# A cell that stands for several items shows the one that a person must see first.
_URGENT = "fr.sd"
WIDTH = 1000.0
HEIGHT = 190.0
MAX_CELLS = 20_000
MAX_ITEMS = 10_000_000
CURVE_HEIGHT = 160.0
MIN_PARTS = 3


@dataclass(frozen=True)
class Dots:
    """Items in rows, a path for each outcome; each cell stands for `per_cell` items."""

    paths: dict[str, str]
    cell: float
    height: float
    per_cell: int

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


def dots_of(details: RunDetails) -> Dots | None:
    """Return a run's items, read or not; None: it has none."""
    letters = "".join(
        "".join(letter if letter in LETTERS else "." for letter in part.items)
        for part in details.parts
    )
    letters += "." * max(0, min(details.run.expected, MAX_ITEMS) - len(letters))
    if not letters:
        return None
    per_cell = max(1, math.ceil(len(letters) / MAX_CELLS))
    if per_cell > 1:
        chunks = (letters[i : i + per_cell] for i in range(0, len(letters), per_cell))
        letters = "".join(min(chunk, key=_URGENT.index) for chunk in chunks)
    columns = max(10, math.ceil(math.sqrt(len(letters) * WIDTH / HEIGHT)))
    cell = WIDTH / columns
    rows = [letters[i : i + columns] for i in range(0, len(letters), columns)]
    strokes: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        y = (number + 0.5) * cell
        for start, length, letter in _stretches(row):
            stroke = f"M{start * cell:.2f} {y:.2f}h{length * cell:.2f}"
            strokes.setdefault(LETTERS[letter], []).append(stroke)
    paths = {outcome: "".join(parts) for outcome, parts in strokes.items()}
    return Dots(paths, cell, len(rows) * cell, per_cell)


def curve_of(details: RunDetails, now_s: float) -> Curve | None:
    """Return how many items had ended when: a step for each part, when it last got on.

    None: the run has no start, or too few parts for a curve.
    """
    run = details.run
    if run.started is None or len(details.parts) < MIN_PARTS:
        return None
    begun = run.started.timestamp()
    steps = sorted((_progressed_s(part), part.items) for part in details.parts)
    end = now_s if run.state == "running" else (run.ended or run.started).timestamp()
    seconds = max(end, steps[-1][0], begun + 0.001) - begun
    total = max(run.expected, sum(len(items) for _, items in steps), 1)
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


def _stretches(row: str) -> list[tuple[int, int, str]]:
    """Return start, length and letter of each stretch of equal letters."""
    stretches: list[tuple[int, int, str]] = []
    for index, letter in enumerate(row):
        if stretches and stretches[-1][2] == letter:
            start, length, _ = stretches[-1]
            stretches[-1] = (start, length + 1, letter)
        else:
            stretches.append((index, 1, letter))
    return stretches
