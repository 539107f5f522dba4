"""Progress of a quilt: its painted squares, its pieces, and its completion."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from google.cloud import ndb

from models.quilt import Quilt, QuiltSquare, piece_key, square_key
from pipelines.quilt.design import Colour, Design
from pipelines.quilt.quilts import PIECES, design_of
from rollforward.batches import UnknownBatchError
from rollforward.runtime import Clients, naive_utc

# A sweep wakes a batch that has not moved for half an hour, and then once an hour and less often.
# So the page of a quilt that is older than this need not poll every second.
MOVES_FOR = datetime.timedelta(minutes=45)


@dataclass(frozen=True)
class Square:
    """A square, painted or not; `painted_s` counts from when the quilt was made."""

    number: int
    row: int
    column: int
    colour: Colour
    painted_s: float | None = None
    worker: int = 0
    took_ms: int = 0
    deliveries: int = 0
    task: str = ""


@dataclass(frozen=True)
class PieceProgress:
    """Progress of a nested batch."""

    number: int
    members: int
    done: int
    failed: int
    is_complete: bool


@dataclass(frozen=True)
class QuiltProgress:
    """Progress of a quilt. `elapsed_s` ends with the completion of its batch."""

    id: str
    design: Design
    created: datetime.datetime
    elapsed_s: float
    outcome: str | None
    squares: Sequence[Square]
    pieces: Sequence[PieceProgress]
    is_moving: bool

    @property
    def count(self) -> int:
        return len(self.squares)

    @property
    def painted(self) -> int:
        return sum(square.painted_s is not None for square in self.squares)

    @property
    def is_finished(self) -> bool:
        return self.outcome is not None

    @property
    def again(self) -> int:
        """Deliveries beyond the first of each square."""
        return sum(max(0, square.deliveries - 1) for square in self.squares)

    @property
    def workers(self) -> Mapping[int, int]:
        """Painted squares by worker."""
        painted = [square.worker for square in self.squares if square.painted_s is not None]
        return dict(sorted(Counter(painted).items()))

    @property
    def left_s(self) -> float | None:
        """Estimated time to completion; None: too early to estimate."""
        if self.is_finished or self.painted < min(8, self.count):
            return None
        return self.elapsed_s / self.painted * (self.count - self.painted)


def progress(clients: Clients, quilt: Quilt) -> QuiltProgress:
    """Return the progress of a quilt; it costs one read for each square."""
    id_, design = quilt.key.id(), design_of(quilt)
    read_at = naive_utc(clients.clock.now())
    until = quilt.finished or read_at
    return QuiltProgress(
        id_,
        design,
        quilt.created,
        max(0.0, (until - quilt.created).total_seconds()),
        quilt.outcome,
        _squares(quilt, design),
        _pieces(quilt),
        is_moving=quilt.finished is None and read_at - quilt.created < MOVES_FOR,
    )


def _squares(quilt: Quilt, design: Design) -> list[Square]:
    keys = [square_key(quilt.key.id(), number) for number in range(design.count)]
    return [
        _square(quilt, Square(number, *design.place(number), design.colour(number)), row)
        for number, row in enumerate(ndb.get_multi(keys))
    ]


def _square(quilt: Quilt, square: Square, row: QuiltSquare | None) -> Square:
    if row is None:
        return square
    return replace(
        square,
        painted_s=max(0.0, (row.painted - quilt.created).total_seconds()),
        worker=row.worker,
        took_ms=row.took_ms,
        deliveries=row.deliveries,
        task=row.task or "",
    )


def _pieces(quilt: Quilt) -> list[PieceProgress]:
    if quilt.pieces == 1:
        return []
    id_, design = quilt.key.id(), design_of(quilt)
    rows = ndb.get_multi([piece_key(id_, number) for number in range(quilt.pieces)])
    batches = [row.batch if row is not None else None for row in rows]
    size = design.edge * design.edge
    return [_piece(number, batch, size) for number, batch in enumerate(batches)]


def _piece(number: int, batch: str | None, size: int) -> PieceProgress:
    try:
        status = PIECES.progress(batch) if batch is not None else None
    except UnknownBatchError:  # It completed long ago and is removed.
        return PieceProgress(number, size, size, 0, is_complete=True)
    if status is None:
        return PieceProgress(number, size, 0, 0, is_complete=False)
    return PieceProgress(
        number, status.members, status.done, status.failed, is_complete=status.is_complete
    )
