"""A cut through a pipeline: all that one tick has read, and the watermarks that follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.layout import Inbox, RetiredInbox
from rollforward.streams.storage.remote_calls import (
    StoredRow,
)
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.watermarks.backpressure import (
    Place,
    Waiting,
)
from rollforward.streams.watermarks.idleness import (
    Activity,
)
from rollforward.streams.watermarks.retirement import Row


@dataclass
class Cut:
    """What a tick has read."""

    head: StoredRow
    plan: ActivePipeline
    intervals: dict[tuple[str, int], Interval] = field(default_factory=dict)
    versions: dict[Any, Row] = field(default_factory=dict)  # Of intervals and sources.
    filled: set[tuple[str, Inbox]] = field(default_factory=set)
    retired: dict[str, list[RetiredInbox]] = field(default_factory=dict)
    pending: set[tuple[str, int]] = field(default_factory=set)
    inputs: dict[str, int] = field(default_factory=dict)
    lower_bounds: dict[str, int] = field(
        default_factory=dict
    )  # What they follow from: never lower.
    sources: dict[str, int] = field(default_factory=dict)
    idle: list[Any] = field(default_factory=list)  # Commit puts that leave processes out.
    was: Head | None = None  # Before a change that is tried.
    rows: dict[Place, Any] = field(default_factory=dict)  # Of the processes of sources.
    waiting: dict[str, Waiting] = field(default_factory=dict)
    paused: dict[str, str] = field(default_factory=dict)
    last_heard: dict[str, list[Any]] = field(default_factory=dict)  # By stream, who is waited for.
    percentile_watermarks: dict[str, int] = field(default_factory=dict)
    quiet: set[Place] = field(default_factory=set)  # Processes that were not heard for long.
    activities: dict[str, Activity] = field(default_factory=dict)  # By stream.

    @property
    def has_moved(self) -> bool:
        head = self.head.body
        return bool(
            self.idle
            or {**head.percentile_watermarks, **self.percentile_watermarks}
            != head.percentile_watermarks
            or {**head.inputs, **self.inputs} != head.inputs
            or {**head.sources, **self.sources} != head.sources
        )

    def hold(self, name: str) -> int:
        """Return the time at which a computation's timers hold back what it writes."""
        holds = (interval.hold for (each, _), interval in self.intervals.items() if each == name)
        return min(holds, default=NEVER)

    def to_wake(self, environment: Environment, now_ms: int) -> list[tuple[str, int]]:
        """Return the intervals that have something to do and no worker."""
        return [
            (name, lo)
            for (name, lo), interval in self.intervals.items()
            if self.has_work(name, lo, now_ms) and not environment.is_worked_on(interval, now_ms)
        ]

    def has_work(self, name: str, lo: int, now_ms: int) -> bool:
        interval = self.intervals[name, lo]
        reached = max(
            self.inputs[name],
            self.percentile_watermarks.get(name, 0),
            self.head.body.timer_watermark(name),
        )
        is_due = interval.due <= reached or interval.processing_due <= now_ms
        return is_due or (name, lo) in self.pending

    def idle_intervals(self, now_ms: int) -> dict[tuple[str, int], Interval]:
        """Return the intervals that nobody works on, and that have no work."""
        return {
            (name, lo): interval
            for (name, lo), interval in self.intervals.items()
            if not interval.is_leased(now_ms) and not self.has_work(name, lo, now_ms)
        }
