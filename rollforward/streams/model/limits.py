"""Limits of a pipeline: backlog, drift between sources, number of intervals (shards).

Also `SLOTS`: the number of slots that keys are hashed to. An interval covers a range of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rollforward.streams.model.slots import SLOTS

__all__ = ["MAX_INTERVALS", "SLOTS", "Limits"]

MAX_INTERVALS = 64
# Pending chunks of a computation. Workers of many intervals need more, or they wait for sources.
WAITING_ROWS = 5_000
WAITING_ROWS_OF_AN_INTERVAL = 320


@dataclass(frozen=True)
class Limits:
    """The limits of a pipeline.

    A computation with a larger backlog pauses the sources it depends on (backpressure). Pushes are
    refused and pulls stop until half of the limit is reached. A tick checks this four times a
    second, so a source may exceed the limit by the records of that time.

    Attributes:
        waiting_rows: The maximum of pending chunks of one computation. A chunk holds up to 500
            records of one commit. None: 5,000, or 320 for each interval if that is more.
        waiting_bytes: The maximum size of these chunks, as they were sent.
        max_drift: How far the watermark of one source may run ahead of the slowest one. Beyond
            that the source is paused until it is ahead by half of it. None: no limit.
        intervals: The maximum number of intervals of a computation under autoscaling. Intervals
            are split while workers cannot keep up, and merged again when the load falls. None:
            only `Pipeline.split` splits.
    """

    waiting_rows: int | None = None
    waiting_bytes: int = 100_000_000
    max_drift: timedelta | None = None
    intervals: int | None = None

    def __post_init__(self) -> None:
        if min(self.max_waiting_rows(1), self.waiting_bytes) < 1:
            raise TypeError("waiting_rows and waiting_bytes must be at least 1")
        if self.max_drift is not None and self.max_drift <= timedelta(0):
            raise TypeError(f"max_drift must be positive, got {self.max_drift}")
        if self.intervals is not None and not 1 <= self.intervals <= MAX_INTERVALS:
            raise TypeError(f"intervals must be 1 to {MAX_INTERVALS}, got {self.intervals}")

    def max_waiting_rows(self, intervals: int) -> int:
        """Return the maximum of pending chunks of a computation that has so many intervals."""
        if self.waiting_rows is not None:
            return self.waiting_rows
        return max(WAITING_ROWS, WAITING_ROWS_OF_AN_INTERVAL * intervals)
