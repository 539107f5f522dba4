"""What can be seen of a playback: how far it is, what was counted, what was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    states = {part.query: ZEITGEIST.state(clients, "board", part.query) for part in playback.parts}
    told = [
        Told(part, alert_of(value))
        for part in playback.parts
        for value in states[part.query].get("alerts", ())
    ]
    return Board(
        {query: state.get(SPIKE, 0) for query, state in states.items()},
        {query: state.get(DIP, 0) for query, state in states.items()},
        sorted(told, key=lambda each: each.alert.at, reverse=True),
    )


def points_of(clients: Clients, query: str, begin: int, end: int) -> list[Point]:
    """Return the complete buckets of a query from a time on, before another one."""
    points = []
    for day in range(begin // DAY_MS, -(-end // DAY_MS)):
        state = ZEITGEIST.state(clients, "history", f"{query}|{day}")
        points += [
            Point(day * DAY_MS + number * BUCKET_MS, *rest)
            for number, *rest in state.get("buckets", ())
        ]
    return [each for each in points if begin <= each.start < end]


def open_counts(clients: Clients, query: str) -> list[Point]:
    """Return what was counted so far of buckets that are not complete."""
    state = ZEITGEIST.state(clients, "counter", query)
    counts = {int(start): count for start, count in state.get("counts", {}).items()}
    return [Point(start, count) for start, count in sorted(counts.items())]
