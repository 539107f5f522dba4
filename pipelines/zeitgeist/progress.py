"""What can be seen of a playback: how far it is, what was counted, what was told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.zeitgeist.detector import DIP, SPIKE, Alert
from pipelines.zeitgeist.pipeline import ZEITGEIST, alert_of
from pipelines.zeitgeist.playbacks import Part, Playback
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS
from rollforward.runtime import Clients


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


# Of the days of queries that a process keeps: a look shows up to thirty. Each has up to 288 points.
MAX_KEPT_DAYS = 100


def board_of(clients: Clients, playback: Playback, seen: Any = None) -> Board:
    """Return what was told in a playback, the newest first.

    Args:
        seen: The pipeline's status, if it was just read.
    """
    queries = [part.query for part in playback.parts]
    states = ZEITGEIST.states_of(clients, "board", queries, snapshot=seen)
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


def taken_of(clients: Clients, query: str) -> tuple[int, int | None]:
    """Return how many complete buckets a query's detector has taken in, and the last of them."""
    state = ZEITGEIST.state(clients, "detector", query)
    found = state.get("detector") or state.get("named") or {}  # Of version 1, or 2.
    return found.get("taken", 0), found.get("last")


def points_of(
    clients: Clients, queries: Sequence[str], begin: int, end: int, seen: Any = None
) -> dict[str, list[Point]]:
    """Return the complete buckets of some queries from a time on, before another one.

    Args:
        seen: The pipeline's status, if it was just read: days that do not change any more are kept
            in memory, and not read again.
    """
    days = range(begin // DAY_MS, -(-end // DAY_MS))
    found = _days_of(clients, {f"{query}|{day}": day for query in queries for day in days}, seen)
    return {
        query: [
            point for day in days for point in found[f"{query}|{day}"] if begin <= point.start < end
        ]
        for query in queries
    }


def _days_of(
    clients: Clients, wanted: Mapping[str, int], seen: Any
) -> Mapping[str, Sequence[Point]]:
    """Return the complete buckets of some queries' days, by the keys that the pipeline has."""
    kept: dict[str, list[Point]] = clients.process_state.get_or_create("zeitgeist days", dict)
    final_before = 0 if seen is None else _final_before(seen)
    final = [key for key, day in wanted.items() if (day + 1) * DAY_MS < final_before]
    found = {key: points for key in final if (points := kept.get(key)) is not None}
    missing = [key for key in wanted if key not in found]
    states = ZEITGEIST.states_of(clients, "history", missing, snapshot=seen) if missing else {}
    found |= {key: [*_points(states.get(key, {}), wanted[key])] for key in missing}
    if len(kept) > MAX_KEPT_DAYS:
        kept.clear()
    kept.update((key, found[key]) for key in final)
    return found


def _final_before(status: Any) -> int:
    """Return the time before which all counts are final; 0: something dead may be replayed."""
    found = status.computations
    if any(each.dead for each in found.values()):
        return 0
    return int(found["history"].watermark)


def _points(history: Mapping[str, Any], day: int) -> Iterator[Point]:
    for number, *rest in history.get("buckets", ()):
        yield Point(day * DAY_MS + number * BUCKET_MS, *rest)


def open_counts(clients: Clients, query: str, seen: Any = None) -> list[Point]:
    """Return what was counted so far of buckets that are not complete.

    Args:
        seen: The pipeline's status, if it was just read.
    """
    state = ZEITGEIST.states_of(clients, "counter", [query], snapshot=seen).get(query, {})
    counts = {int(start): count for start, count in state.get("counts", {}).items()}
    return [Point(start, count) for start, count in sorted(counts.items())]
