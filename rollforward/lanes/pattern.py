"""Lanes, as the registry knows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollforward.lanes import listing, sweep
from rollforward.lanes.declaration import Lane
from rollforward.lanes.reading import MAX_BACKLOG, MAX_RESTING, backlog_of
from rollforward.runtime.clients import Clients
from rollforward.tasks.declaration import Task
from rollforward.tasks.pattern import Gauge, Pattern
from rollforward.tasks.runs import RunDetails


class Lanes(Pattern[Lane]):
    """Lanes, whose keys have tasks that wait for their turn."""

    name = "lanes"
    takes = Lane
    has_unique_names = True

    def tasks(self, parts: Sequence[Lane]) -> Iterable[Task[Any]]:
        return [task for part in parts for task in part.tasks]

    def sweep(
        self, clients: Clients, parts: Sequence[Lane], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake keys whose tasks should have begun: their hint was lost, or their worker died."""
        return {"woken": sweep.wake_stale(clients, parts, stale_s=stale_s)}

    def delete_expired(self, clients: Clients) -> int:
        return sweep.remove_expired(clients)

    def gauges(self, clients: Clients, parts: Sequence[Lane]) -> Sequence[Gauge]:
        return [gauge for lane in parts for gauge in _gauges(clients, lane)]

    def part_names(self, parts: Sequence[Lane]) -> Iterable[str]:
        return [part.name for part in parts]

    def run(self, clients: Clients, parts: Sequence[Lane], run_id: str) -> RunDetails:
        return listing.details(clients, parts, run_id)


def _gauges(clients: Clients, lane: Lane) -> list[Gauge]:
    backlog, labels = backlog_of(clients, lane), {"lane": lane.name}
    return [
        Gauge(
            "lanes_waiting",
            f"Tasks that wait or run in a lane; at most {MAX_BACKLOG} are counted.",
            backlog.waiting,
            labels,
        ),
        Gauge(
            "lanes_oldest_seconds",
            "Age of the oldest first task of a key that is neither paused nor blocked.",
            backlog.oldest_s,
            labels,
        ),
        Gauge(
            "lanes_paused",
            f"Keys that are paused; at most {MAX_RESTING} that rest are counted.",
            backlog.paused,
            labels,
        ),
        Gauge(
            "lanes_blocked",
            f"Keys that a dead task blocks; at most {MAX_RESTING} that rest are counted.",
            backlog.blocked,
            labels,
        ),
    ]
