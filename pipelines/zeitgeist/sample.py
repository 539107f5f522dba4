"""Made-up queries, the same each time, with known spikes and dips.

Each feed counts the requests of its place, in local time. Nothing is stored: a count is a function
of the query, the feed and the bucket.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.zeitgeist.detector import DIP, SPIKE, Kind
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS, Series

SEED = 2013
DAYS = 10
# Days from Thursday, the beginning of 1970, to Monday, the beginning of the sample.
FIRST_DAY = 4
# By feed: its offset from UTC in hours, and its share of all requests.
PLACES = {"tokyo": (9, 0.4), "paris": (1, 0.35), "austin": (-6, 0.25)}
NOISE = 0.1


@dataclass(frozen=True)
class Query:
    """A made-up query: its mean count in a bucket, its peak hour, its swing and its weekend."""

    name: str
    mean: float
    hour: float
    swing: float
    weekend: float


QUERIES = (
    Query("weather", 180, 7.5, 0.9, 1.0),
    Query("cake recipe", 60, 16, 0.7, 1.3),
    Query("bus times", 90, 8, 1.1, 0.7),
    Query("桜 開花", 40, 12, 0.8, 1.2),
)


@dataclass(frozen=True)
class Event:
    """A known spike or dip: begin and end in hours since the beginning, and its factor."""

    query: str
    kind: Kind
    begin: float
    end: float
    times: float


EVENTS = (
    Event("桜 開花", SPIKE, 4 * 24 + 1, 4 * 24 + 5, 6.0),
    Event("bus times", DIP, 7 * 24 + 6, 7 * 24 + 9, 0.1),
    Event("weather", SPIKE, 6 * 24 + 20, 6 * 24 + 22, 5.0),
    # At night, with counts of a usual afternoon.
    Event("bus times", SPIKE, 8 * 24 + 21, 8 * 24 + 23, 3.0),
    Event("cake recipe", SPIKE, 8 * 24 + 10, 8 * 24 + 12, 7.0),
    Event("weather", DIP, 9 * 24 + 3, 9 * 24 + 5, 0.05),
)


def made_up_count(query: Query, feed: str, elapsed_ms: int, times: float = 1.0) -> int:
    """Return the requests of a query at a feed, in one bucket.

    Args:
        elapsed_ms: Begin of the bucket, since the beginning of the sample, a Monday 0:00 UTC.
        times: A further factor.
    """
    bucket = elapsed_ms // BUCKET_MS
    rng = random.Random(f"{SEED} {query.name} {feed} {bucket}")
    mean = _mean(query, feed, elapsed_ms) * times * rng.lognormvariate(0, NOISE)
    return max(0, round(rng.gauss(mean, math.sqrt(mean))))


def _mean(query: Query, feed: str, elapsed_ms: int) -> float:
    ahead, share = PLACES[feed]
    local = elapsed_ms + ahead * HOUR_MS
    hour = local % DAY_MS / HOUR_MS
    day = math.exp(query.swing * math.cos((hour - query.hour) / 24 * 2 * math.pi))
    week = query.weekend if local // DAY_MS % 7 >= 5 else 1.0
    factor = math.prod(
        event.times
        for event in EVENTS
        if event.query == query.name and event.begin * HOUR_MS <= elapsed_ms < event.end * HOUR_MS
    )
    return query.mean * share * day * week * factor


def sample_series() -> Iterator[Series]:
    """Yield the sample as series, one for each query."""
    begin = FIRST_DAY * DAY_MS
    for query in QUERIES:
        yield Series(
            query.name,
            [
                (begin + at, sum(made_up_count(query, feed, at) for feed in PLACES))
                for at in range(0, DAYS * DAY_MS, BUCKET_MS)
            ],
        )


def sample_events(shift: int = 0) -> list[tuple[Event, int, int]]:
    """Return the known spikes and dips with their begin and end, each an hour longer.

    Args:
        shift: The offset of a playback.
    """
    begin = FIRST_DAY * DAY_MS + shift
    return [
        (event, begin + int(event.begin * HOUR_MS), begin + int(event.end * HOUR_MS) + HOUR_MS)
        for event in EVENTS
    ]


def sample_labels() -> dict[str, list[tuple[int, int]]]:
    """Return the times of the known spikes and dips by the name of their series."""
    return {
        query.name: [
            (begin, end) for event, begin, end in sample_events() if event.query == query.name
        ]
        for query in QUERIES
    }
