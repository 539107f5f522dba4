"""Schedules as a pattern of the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.schedules.declaration import Schedule
from rollforward.schedules.sweep import STALE_S, late_s, sweep
from rollforward.schedules.ticks import TICK, DeclaredSchedule, advance
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern


class Schedules(Pattern[DeclaredSchedule]):
    """Schedules, in the code and in rows."""

    name = "schedules"
    takes = DeclaredSchedule
    has_unique_names = True

    def expand(self, part: DeclaredSchedule) -> Iterable[object]:
        """A schedule brings its work, and the lane in which that waits."""
        if isinstance(part, Schedule) and part.lane is not None:
            return [part.task, part.lane.lane]
        return [part.task]

    def tasks(self, parts: Sequence[DeclaredSchedule]) -> Iterable[Task[Any]]:
        by_name = {part.name: part for part in parts}
        return [replace(TICK, work=lambda clients, tick: advance(clients, by_name, tick))]

    def sweep(
        self, clients: Clients, parts: Sequence[DeclaredSchedule], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        by_name = {part.name: part for part in parts}
        return sweep(clients, by_name, stale_s=STALE_S if stale_s is None else stale_s)

    def gauges(self, clients: Clients, parts: Sequence[DeclaredSchedule]) -> Sequence[Gauge]:
        return [
            Gauge(
                "schedules_late_seconds",
                "Time for which a tick has been due and its work is not enqueued.",
                late_s(clients, {part.name: part for part in parts}),
            )
        ]
