"""Cut: all rows that one tick has read, and the watermarks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.layout import Inbox, RetiredInbox
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import Head, Interval
from rollforward.streams.watermarks.backpressure import Backlog, Place
from rollforward.streams.watermarks.idleness import Activity
from rollforward.streams.watermarks.retirement import Row


@dataclass
class Cut:
    """Rows and watermarks of one tick.

    Attributes:
        versions: Rows of intervals and sources, with their versions.
        filled: Inboxes that are not empty.
        pending: Intervals with records in an inbox.
        inputs: Watermarks of computations, which never fall.
        lower_bounds: The times that these follow from, which may.
        published: Watermarks of publications, which never fall.
        idle_puts: Writes that mark processes as idle.
        stored_head: The head before a change that is tried.
        rows: Rows of source processes.
        awaited: Rows of the processes that a stream's watermark waits for.
        idle: Processes that are idle.
    """

    head: StoredRow
    plan: ActivePipeline
    intervals: dict[tuple[str, int], Interval] = field(default_factory=dict)
    versions: dict[Any, Row] = field(default_factory=dict)
    filled: set[tuple[str, Inbox]] = field(default_factory=set)
    retired: dict[str, list[RetiredInbox]] = field(default_factory=dict)
    pending: set[tuple[str, int]] = field(default_factory=set)
    inputs: dict[str, int] = field(default_factory=dict)
    lower_bounds: dict[str, int] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)
    idle_puts: list[Any] = field(default_factory=list)
    stored_head: Head | None = None
    rows: dict[Place, Any] = field(default_factory=dict)
    backlogs: dict[str, Backlog] = field(default_factory=dict)
    paused: dict[str, str] = field(default_factory=dict)
    awaited: dict[str, list[Any]] = field(default_factory=dict)
    percentile_watermarks: dict[str, int] = field(default_factory=dict)
    idle: set[Place] = field(default_factory=set)
    activities: dict[str, Activity] = field(default_factory=dict)
    _reached: dict[str, int] = field(default_factory=dict)  # By all watermarks of a computation.

    @property
    def has_moved(self) -> bool:
        head = self.head.body
        return bool(
            self.idle_puts
            or {**head.percentile_watermarks, **self.percentile_watermarks}
            != head.percentile_watermarks
            or {**head.inputs, **self.inputs} != head.inputs
            or {**head.published, **self.published} != head.published
            or {**head.sources, **self.sources} != head.sources
        )

    def hold(self, name: str) -> int:
        """Return the time at which a computation's timers hold its output watermark."""
        places = [(name, lo) for lo in self.head.body.intervals.get(name, ())]
        holds = [self.intervals[place].hold for place in places if place in self.intervals]
        return min(holds, default=NEVER)

    def to_wake(self, environment: Environment, now_ms: int) -> list[tuple[str, int]]:
        """Return the intervals that have work and no worker."""
        return [
            (name, lo)
            for (name, lo), interval in self.intervals.items()
            if self.has_work(name, lo, now_ms) and not environment.is_worked_on(interval, now_ms)
        ]

    def has_work(self, name: str, lo: int, now_ms: int) -> bool:
        if (name, lo) in self.pending:
            return True
        interval, reached = self.intervals[name, lo], self._reached.get(name)
        if reached is None:
            percentile_watermark = self.percentile_watermarks.get(name, 0)
            stored = self.head.body.timer_watermark(name)
            reached = self._reached[name] = max(self.inputs[name], percentile_watermark, stored)
        return interval.due <= reached or interval.processing_due <= now_ms

    def idle_intervals(self, now_ms: int) -> dict[tuple[str, int], Interval]:
        """Return the intervals that have no worker and no work."""
        return {
            (name, lo): interval
            for (name, lo), interval in self.intervals.items()
            if not interval.is_leased(now_ms) and not self.has_work(name, lo, now_ms)
        }
