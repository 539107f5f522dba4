"""How much of a pipeline may wait, and how far apart its sources may run.

Also `SLOTS`: to so many numbers keys are hashed, of which an interval has a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rollforward.streams.model.slots import SLOTS

__all__ = ["MAX_INTERVALS", "SLOTS", "Limits"]

MAX_INTERVALS = 64


@dataclass(frozen=True)
class Limits:
    """The limits of a pipeline.

    When a computation has more waiting than this, the sources that it follows from have to wait:
    a push is refused until it has caught up to a half, a pull stops. Each tick looks, four times a
    second: so a source may be over by what it brings in that time.

    Attributes:
        waiting_rows: Chunks that wait for one computation: of up to 500 records, that come from one
            commit.
        waiting_bytes: What these chunks have, as they were sent.
        max_drift: How far the watermark of one source may run ahead of the slowest one. Beyond
            that the source is paused until it is ahead by half of it. None: no limit.
        intervals: Up to how many intervals a computation may be split while its workers do not keep
            up; what was split is merged when there is less to do. None: nothing is split but by
            `Pipeline.split`.
    """

    waiting_rows: int = 5_000
    waiting_bytes: int = 100_000_000
    max_drift: timedelta | None = None
    intervals: int | None = None

    def __post_init__(self) -> None:
        if min(self.waiting_rows, self.waiting_bytes) < 1:
            raise TypeError("waiting_rows and waiting_bytes must be at least 1")
        if self.max_drift is not None and self.max_drift <= timedelta(0):
            raise TypeError(f"max_drift must be positive, got {self.max_drift}")
        if self.intervals is not None and not 1 <= self.intervals <= MAX_INTERVALS:
            raise TypeError(f"intervals must be 1 to {MAX_INTERVALS}, got {self.intervals}")
