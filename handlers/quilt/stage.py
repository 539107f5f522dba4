"""The stage of a quilt: its squares, and the incidents of their deliveries."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Hits, hits_of
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from pipelines.quilt.progress import QuiltProgress, Square

TASKS = "/tasks/batches/quilt"


@dataclass(frozen=True)
class QuiltStage(DemoStage):
    """A quilt that is painted; None: there is none."""

    quilt: QuiltProgress | None

    path = TASKS

    @property
    def text(self) -> str:
        return self.quilt.id if self.quilt else ""

    @property
    def began(self) -> datetime.datetime | None:
        return self.quilt.created if self.quilt else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.quilt is not None
        is_finished = self.quilt.is_finished
        return Timeline(
            started,
            self.quilt.elapsed_s,
            is_over=not self.quilt.is_moving,
            begin="started",
            end="finished" if is_finished else "unfinished",
            is_complete=is_finished,
        )

    def name(self, delivery: Delivery) -> str:
        if delivery.path.endswith("/completed"):
            return "the end"
        square = number_of(delivery)
        return "a piece" if square is None else f"square {square + 1}"

    def closing(self, stage: Stage) -> str:
        assert self.quilt is not None
        painted, count = self.quilt.painted, self.quilt.count
        parts = [f"{number(painted)} of {plural(count, 'square')} painted"]
        marks = marks_of(self.quilt, stage.hit, hits_of(stage.deliveries, number_of))
        for words in suffered(stage):
            is_faults = marks.faults and words.endswith(("fault", "faults"))
            parts.append(f"{words} ({marks.faults_in_words})" if is_faults else words)
        return ", ".join([*parts, *books_of(self.quilt).words])

    def balance(self) -> Balance | None:
        return books_of(self.quilt) if self.quilt else None

    def cost(self) -> list[Cell]:
        return _cost(self.quilt) if self.quilt else []


def books_of(quilt: QuiltProgress) -> Balance:
    """Return the books of a quilt: its members, and the squares that are painted."""
    # A batch that ended otherwise has members that can never work.
    refused = 0 if quilt.outcome in (None, "succeeded") else quilt.count - quilt.painted
    accepted = quilt.count - refused
    pending = 0 if quilt.is_finished else accepted - quilt.painted
    return Balance(
        is_moving=quilt.is_moving,
        asked=quilt.count,
        made_count=accepted,
        refused=refused,
        found_count=quilt.painted,
        in_flight=pending,
    )


@dataclass(frozen=True)
class Marks:
    """Faults of a quilt, and the squares that are marked in its picture.

    Attributes:
        faults: Deliveries that were hit; `on_squares` counts the deliveries of squares.
        squares: Squares that were hit.
        reran: Squares whose handler ran again without a fault on this square.
    """

    faults: int
    on_squares: int
    squares: int
    reran: int

    @property
    def marked(self) -> int:
        """Squares with a mark: hit by a fault, or only rerun."""
        return self.squares + self.reran

    @property
    def faults_in_words(self) -> str:
        """Both parts of the faults, which add up."""
        others = number(self.faults - self.on_squares)
        squares = plural(self.squares, "square")
        return f"{number(self.on_squares)} on {squares}, {others} on other tasks"


def marks_of(quilt: QuiltProgress, faults: int, hits: Mapping[int, Hits]) -> Marks:
    """Return the marks of a quilt's picture, from the hits of its squares."""
    reran = [s for s in quilt.squares if s.deliveries > 1 and s.number not in hits]
    return Marks(faults, sum(hit.count for hit in hits.values()), len(hits), len(reran))


def number_of(delivery: Delivery) -> int | None:
    """Return which square a delivery was to paint; None: none, or that is not known."""
    try:
        return int(json.loads((delivery.body or {})["args"])["number"])
    except (KeyError, TypeError, ValueError):
        return None


def picture_of(quilt: QuiltProgress, hits: Mapping[int, Hits]) -> str:
    """Return the picture for the script: the painting time and the hits of each square."""
    squares = [
        0 if square.painted_s is None else _painted(square, square.painted_s)
        for square in quilt.squares
    ]
    picture: dict[str, Any] = {
        "finished": quilt.is_finished,
        "squares": squares,
        "hits": {str(square): [hit.count, int(hit.is_open)] for square, hit in hits.items()},
    }
    return json.dumps(picture, separators=(",", ":"))


def _painted(square: Square, after_s: float) -> list[int | str]:
    after_ms = round(after_s * 1000)
    return [after_ms, square.took_ms, square.worker, square.deliveries, square.task]


def _cost(quilt: QuiltProgress) -> list[Cell]:
    took = sorted(square.took_ms for square in quilt.squares if square.painted_s is not None)
    by = f"by {plural(len(quilt.workers), 'worker')}" if quilt.workers else "so far"
    rate = quilt.painted / quilt.elapsed_s if quilt.elapsed_s else 0.0
    return [
        Cell("Squares", number(quilt.painted), by),
        Cell("A second", number(rate, 1), "from start to finish"),
        Cell("Reruns", number(quilt.again), "of handlers, before painting"),
        Cell("A square", _time(took, 0.5), f"median; p95 {_time(took, 0.95)}"),
        Cell("This page", plural(quilt.count, "read"), "one for each square"),
    ]


def _time(took_ms: list[int], share: float) -> str:
    if not took_ms:
        return duration(None)
    return duration(took_ms[min(len(took_ms) - 1, int(share * len(took_ms)))] / 1000)
