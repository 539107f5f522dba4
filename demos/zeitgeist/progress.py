"""What can be seen of a playback: how far it is, what was counted, what was told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demos.zeitgeist.detector import DIP, SPIKE, Alert
from demos.zeitgeist.pipeline import ZEITGEIST, alert_of
from demos.zeitgeist.playbacks import Part, Playback
from demos.zeitgeist.series import BUCKET_MS, DAY_MS
from pipelines.runtime import Clients


@dataclass(frozen=True)
class Point:
    """A bucket: its count, and what was usual; None while nothing is known of the query."""

    start: int
    count: float
    low: float | None = None
    mean: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Told:
    """An alert, and the query that it is about."""

    part: Part
    alert: Alert


@dataclass(frozen=True)
class Board:
    """What was told: how many spikes and dips of each query, and the last alerts of all."""

    spikes: Mapping[str, int]
    dips: Mapping[str, int]
    told: Sequence[Told]

    def of(self, query: str) -> list[Alert]:
        """Return the alerts of a query."""
        return [each.alert for each in self.told if each.part.query == query]


def board_of(clients: Clients, playback: Playback) -> Board:
    """Return what was told in a playback, the newest first."""
    queries = [part.query for part in playback.parts]
    states = ZEITGEIST.states_of(clients, "board", queries)
    told = [
        Told(part, alert_of(value))
        for part in playback.parts
        for value in states.get(part.query, {}).get("alerts", ())
    ]
    return Board(
        {query: states.get(query, {}).get(SPIKE, 0) for query in queries},
        {query: states.get(query, {}).get(DIP, 0) for query in queries},
        sorted(told, key=lambda each: each.alert.at, reverse=True),
    )


def points_of(
    clients: Clients, queries: Sequence[str], begin: int, end: int
) -> dict[str, list[Point]]:
    """Return the complete buckets of some queries from a time on, before another one."""
    days = range(begin // DAY_MS, -(-end // DAY_MS))
    keys = [f"{query}|{day}" for query in queries for day in days]
    states = ZEITGEIST.states_of(clients, "history", keys)
    return {
        query: [
            point
            for day in days
            for point in _points(states.get(f"{query}|{day}", {}), day)
            if begin <= point.start < end
        ]
        for query in queries
    }


def _points(history: Mapping[str, Any], day: int) -> Iterator[Point]:
    for number, *rest in history.get("buckets", ()):
        yield Point(day * DAY_MS + number * BUCKET_MS, *rest)


def open_counts(clients: Clients, query: str) -> list[Point]:
    """Return what was counted so far of buckets that are not complete."""
    state = ZEITGEIST.state(clients, "counter", query)
    counts = {int(start): count for start, count in state.get("counts", {}).items()}
    return [Point(start, count) for start, count in sorted(counts.items())]
