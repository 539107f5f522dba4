"""A run as pictures: a dot for each item, and its time axis with attempts below a curve.

Only coordinates are computed here; the templates draw them as SVG, with classes for colours.
"""

import collections
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.local.console.reading.runs import RunDetails

LETTERS = {"d": "done", "s": "skipped", "f": "failed", "r": "retrying", ".": "waiting"}
# A cell that stands for several items shows the one that a person must see first.
_URGENT = "fr.sd"
WIDTH = 1000.0
HEIGHT = 190.0
MAX_CELLS = 20_000
MAX_LANES = 12
MAX_BARS = 600
AXIS_HEIGHT = 160.0
LANE_HEIGHT = 14.0


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
class Bar:
    """One attempt on the time axis."""

    x: float
    y: float
    width: float
    kind: str  # done, failed, retrying (put off), running, copy
    is_struck: bool  # By a fault.
    title: str


@dataclass(frozen=True)
class TimeAxis:
    """From the start of a run to its end, or to now."""

    begins: float
    seconds: float
    curve: str  # The points of a polyline: items that have ended.
    bars: list[Bar]
    height: float
    counts: dict[str, int]  # Attempts by kind.
    faults: dict[str, int]  # How often each fault struck.
    is_cut: bool

    def mark(self, share: float) -> float:
        """Return the seconds at a part of the axis."""
        return self.seconds * share


def dots_of(details: RunDetails) -> Dots:
    """Return a run's items, those that no task has read yet included."""
    letters = "".join(
        "".join(letter if letter in LETTERS else "." for letter in part.items)
        for part in details.parts
    )
    letters += "." * max(0, min(details.run.expected, 10_000_000) - len(letters))
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


def time_axis(details: RunDetails, attempts: Sequence[Any], now_s: float) -> TimeAxis | None:
    """Return a run's time axis, None if nothing is known of its time.

    Args:
        attempts: Rows of the emulator's attempts: kind, started_at, duration_ms, status, error,
            faults.
    """
    run = details.run
    if run.started is None:
        return None
    progressed = [part.progressed for part in details.parts if part.progressed is not None]
    ends = [run.started + 0.001, *progressed]
    ends += [now_s] if run.state == "running" else [run.ended or run.started]
    ends += [row["started_at"] + (row["duration_ms"] or 0) / 1000 for row in attempts]
    seconds = max(ends) - run.started
    shown = [*attempts[-MAX_BARS:]]
    bars, lanes = _bars(shown, run.started, seconds, now_s)
    counts = collections.Counter(_kind(row) for row in attempts)
    faults = collections.Counter(kind for row in attempts for kind in json.loads(row["faults"]))
    return TimeAxis(
        begins=run.started,
        seconds=seconds,
        curve=_curve(details, seconds),
        bars=bars,
        height=AXIS_HEIGHT + lanes * LANE_HEIGHT,
        counts=dict(counts),
        faults=dict(faults),
        is_cut=len(attempts) > len(shown),
    )


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


def _curve(details: RunDetails, seconds: float) -> str:
    """Return how many items had ended when: a step for each part, when it last got on."""
    run, done, x = details.run, 0, 0.0
    total = max(run.expected, 1)
    points = [(0.0, AXIS_HEIGHT)]
    top = 0.96 * AXIS_HEIGHT  # The line is not cut in half where all have ended.
    timed = [part for part in details.parts if part.progressed is not None]
    for part in sorted(timed, key=lambda part: part.progressed or 0.0):
        x = ((part.progressed or 0.0) - (run.started or 0.0)) / seconds * WIDTH
        points.append((x, AXIS_HEIGHT - top * min(done / total, 1.0)))
        done += sum(letter in "dsf" for letter in part.items)
        points.append((x, AXIS_HEIGHT - top * min(done / total, 1.0)))
    points.append((WIDTH if run.state == "running" else x, points[-1][1]))
    return " ".join(f"{max(0.0, x):.1f},{y:.1f}" for x, y in points)


def _bars(
    attempts: Sequence[Any], begins: float, seconds: float, now_s: float
) -> tuple[list[Bar], int]:
    """Return attempts in as few lanes as they need; what finds none shares the last one."""
    free_at: list[float] = []
    bars: list[Bar] = []
    for row in sorted(attempts, key=lambda row: row["started_at"]):
        start = row["started_at"]
        running_ms = max(0.0, now_s - start) * 1000
        took_ms = running_ms if row["duration_ms"] is None else row["duration_ms"]
        lane = next((i for i, free in enumerate(free_at) if free <= start), len(free_at))
        if lane == len(free_at) and lane < MAX_LANES:
            free_at.append(0.0)
        lane = min(lane, MAX_LANES - 1)
        free_at[lane] = start + took_ms / 1000
        x = max(0.0, (start - begins) / seconds * WIDTH)
        kind, faults = _kind(row), json.loads(row["faults"])
        bars.append(
            Bar(
                x=round(x, 1),
                y=AXIS_HEIGHT + lane * LANE_HEIGHT + 2,
                width=round(max(2.0, took_ms / 1000 / seconds * WIDTH), 1),
                kind=kind,
                is_struck=bool(faults),
                title=", ".join(
                    [str(row["status"] or row["error"] or "runs"), f"{took_ms:.0f} ms", *faults]
                ),
            )
        )
    return bars, len(free_at)


def _kind(row: Any) -> str:
    if row["kind"] in ("duplicate", "overlap"):
        return "copy"
    if row["duration_ms"] is None:
        return "running"
    if row["error"] is None and row["status"] is not None and 200 <= row["status"] <= 299:
        return "done"
    return "retrying" if row["status"] in (409, 429, 503) and row["error"] is None else "failed"
