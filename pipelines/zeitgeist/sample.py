"""Made-up queries, the same each time, with spikes and dips that are known.

Each feed counts what is asked for where it is, so its day has its own hours. Nothing is stored: a
count follows from the query, the feed and the bucket.
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
# Of the week: 1970 began on a Thursday, the sample begins on a Monday.
FIRST_DAY = 4
# By feed: how many hours before UTC it is there, and its share of all.
PLACES = {"tokyo": (9, 0.4), "paris": (1, 0.35), "austin": (-6, 0.25)}
NOISE = 0.1


@dataclass(frozen=True)
class Query:
    """A made-up query: its mean count in a bucket, the hour it is asked for most, its weekend."""

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
    """Something odd: from when to when, in hours since the beginning, and times how much."""

    query: str
    kind: Kind
    begin: float
    end: float
    times: float


EVENTS = (
    Event("桜 開花", SPIKE, 4 * 24 + 1, 4 * 24 + 5, 6.0),
    Event("bus times", DIP, 7 * 24 + 6, 7 * 24 + 9, 0.1),
    Event("weather", SPIKE, 6 * 24 + 20, 6 * 24 + 22, 5.0),
    # At night: no more than on any afternoon.
    Event("bus times", SPIKE, 8 * 24 + 21, 8 * 24 + 23, 3.0),
    Event("cake recipe", SPIKE, 8 * 24 + 10, 8 * 24 + 12, 7.0),
    Event("weather", DIP, 9 * 24 + 3, 9 * 24 + 5, 0.05),
)


def made_up_count(query: Query, feed: str, elapsed_ms: int, times: float = 1.0) -> int:
    """Return how often a query is asked for at a feed, in the bucket that begins then.

    Args:
        elapsed_ms: Since the beginning of the sample, a Monday 0:00 UTC.
        times: As much as would be asked for otherwise.
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
    event = math.prod(
        each.times
        for each in EVENTS
        if each.query == query.name and each.begin * HOUR_MS <= elapsed_ms < each.end * HOUR_MS
    )
    return query.mean * share * day * week * event


def sample_series() -> Iterator[Series]:
    """Yield the sample as series, one for each query."""
    first = FIRST_DAY * DAY_MS
    for query in QUERIES:
        yield Series(
            query.name,
            [
                (first + at, sum(made_up_count(query, feed, at) for feed in PLACES))
                for at in range(0, DAYS * DAY_MS, BUCKET_MS)
            ],
        )


def sample_labels() -> dict[str, list[tuple[int, int]]]:
    """Return the known spikes and dips, with an hour behind each, by the name of their series."""
    first = FIRST_DAY * DAY_MS
    return {
        query.name: [
            (first + int(each.begin * HOUR_MS), first + int(each.end * HOUR_MS) + HOUR_MS)
            for each in EVENTS
            if each.query == query.name
        ]
        for query in QUERIES
    }
