"""Results of a playback, for pages and checks: its buckets and its alerts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.zeitgeist.detector import DIP, SPIKE, Alert
from pipelines.zeitgeist.pipeline import ZEITGEIST, alert_of
from pipelines.zeitgeist.playbacks import Part, Playback
from pipelines.zeitgeist.sample import sample_events
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS
from rollforward.runtime import Clients

# An event of the sample, a change by a visitor, or neither of them.
Cause = Literal["planted", "caused here", "false alert"]


@dataclass(frozen=True)
class Point:
    """A bucket: its count, and the usual band; None: the model has no prediction yet."""

    start: int
    count: float
    low: float | None = None
    mean: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class QueryAlert:
    """An alert, and its query."""

    part: Part
    alert: Alert

    def cause_in(self, playback: Playback) -> Cause | None:
        """Return what the alert reports; None: nobody knows, its series is an upload."""
        if self.part.upload is not None:
            return None
        start, kind = self.alert.start, self.alert.kind
        if any(
            change.query == self.part.query
            and (SPIKE if change.times > 1 else DIP) == kind
            and change.begin <= start < change.end + HOUR_MS
            for change in playback.changes
        ):
            return "caused here"
        is_known = any(
            event.query == self.part.name and event.kind == kind and begin <= start < end
            for event, begin, end in sample_events(playback.shift)
        )
        return "planted" if is_known else "false alert"


@dataclass(frozen=True)
class Board:
    """Alerts of a playback: numbers of spikes and dips by query, and the last alerts of all."""

    spikes: Mapping[str, int]
    dips: Mapping[str, int]
    alerts: Sequence[QueryAlert]

    def of(self, query: str) -> list[Alert]:
        """Return the alerts of a query."""
        return [item.alert for item in self.alerts if item.part.query == query]


# Days of queries in a process's cache: a page shows up to thirty. Each has up to 288 points.
MAX_KEPT_DAYS = 100


def board_of(clients: Clients, playback: Playback, seen: Any = None) -> Board:
    """Return the alerts of a playback, the newest first.

    Args:
        seen: The pipeline's status, if it was just read.
    """
    queries = [part.query for part in playback.parts]
    states = ZEITGEIST.states_of(clients, "board", queries, snapshot=seen)
    alerts = [
        QueryAlert(part, alert_of(value))
        for part in playback.parts
        for value in states.get(part.query, {}).get("alerts", ())
    ]
    return Board(
        {query: states.get(query, {}).get(SPIKE, 0) for query in queries},
        {query: states.get(query, {}).get(DIP, 0) for query in queries},
        sorted(alerts, key=lambda item: item.alert.at, reverse=True),
    )


def processed_of(clients: Clients, query: str) -> tuple[int, int | None]:
    """Return the number of complete buckets that a query's detector processed, and the last one."""
    state = ZEITGEIST.state(clients, "detector", query)
    detector = state.get("detector") or state.get("named") or {}  # Version 1, or 2.
    return detector.get("taken", 0), detector.get("last")


def points_of(
    clients: Clients, queries: Sequence[str], begin: int, end: int, seen: Any = None
) -> dict[str, list[Point]]:
    """Return the complete buckets of some queries, begin <= start < end.

    Args:
        seen: The pipeline's status, if it was just read: final days then come from memory.
    """
    days = range(begin // DAY_MS, -(-end // DAY_MS))
    points_by_key = _days_of(
        clients, {f"{query}|{day}": day for query in queries for day in days}, seen
    )
    return {
        query: [
            point
            for day in days
            for point in points_by_key[f"{query}|{day}"]
            if begin <= point.start < end
        ]
        for query in queries
    }


def _days_of(clients: Clients, days: Mapping[str, int], seen: Any) -> Mapping[str, Sequence[Point]]:
    """Return the complete buckets of some queries' days, by the pipeline's keys."""
    cached: dict[str, list[Point]] = clients.process_state.get_or_create("zeitgeist days", dict)
    final_before = 0 if seen is None else _final_before(seen)
    final = [key for key, day in days.items() if (day + 1) * DAY_MS < final_before]
    points_by_key = {key: points for key in final if (points := cached.get(key)) is not None}
    uncached = [key for key in days if key not in points_by_key]
    states = ZEITGEIST.states_of(clients, "history", uncached, snapshot=seen) if uncached else {}
    points_by_key |= {key: [*_points(states.get(key, {}), days[key])] for key in uncached}
    if len(cached) > MAX_KEPT_DAYS:
        cached.clear()
    cached.update((key, points_by_key[key]) for key in final)
    return points_by_key


def _final_before(status: Any) -> int:
    """Return the time before which all counts are final; 0: dead letters may be replayed."""
    computations = status.computations
    if any(computation.dead for computation in computations.values()):
        return 0
    return int(computations["history"].watermark)


def _points(history: Mapping[str, Any], day: int) -> Iterator[Point]:
    for number, *usual in history.get("buckets", ()):
        yield Point(day * DAY_MS + number * BUCKET_MS, *usual)


def open_counts(clients: Clients, query: str, seen: Any = None) -> list[Point]:
    """Return the early counts of incomplete buckets.

    Args:
        seen: The pipeline's status, if it was just read.
    """
    state = ZEITGEIST.states_of(clients, "counter", [query], snapshot=seen).get(query, {})
    counts = {int(start): count for start, count in state.get("counts", {}).items()}
    return [Point(start, count) for start, count in sorted(counts.items())]
