"""Loads: what those of counters and of sums have in common.

A load is so many things a second, for some seconds, made by writers. A writer is a chain of tasks:
each is a step, and names the next one. What calls took is kept in buckets, each 1.2 times as wide
as the one before.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rollforward.runtime import Clients

# A load that has not ended so long after its time may be replaced: its writers are dead.
GIVEN_UP_AFTER_S = 60.0
GROWTH = 1.2
BUCKETS = 60


class LoadGoesOnError(Exception):
    """There is a load already."""


class TimedLoad:
    """The time of a load: when it began, how long it is meant to last, when its steps are due."""

    started_ms: int
    seconds: int

    def age_s(self, clients: Clients) -> float:
        return clients.clock.now().timestamp() - self.started_ms / 1000

    def is_given_up(self, clients: Clients) -> bool:
        return self.age_s(clients) > self.seconds + GIVEN_UP_AFTER_S

    def step_at(self, clients: Clients, after_s: float) -> datetime.datetime | None:
        """Return when a step is due, so long after the beginning; None: it is already."""
        at = datetime.datetime.fromtimestamp(self.started_ms / 1000 + after_s, datetime.UTC)
        return at if at > clients.clock.now() else None


def bucket(ms: float) -> int:
    """Return the bucket of a latency.

    >>> bucket(0.3), bucket(1.1), bucket(1.3), bucket(1e9)
    (0, 1, 2, 60)
    """
    return min(BUCKETS, max(0, math.ceil(math.log(max(ms, 0.001), GROWTH))))


def percentile(latencies: Mapping[str, int], share: float) -> float | None:
    """Return the latency that so many did not exceed, to a bucket's width.

    >>> percentile({"0": 50, "10": 49, "20": 1}, 0.95)
    6.2
    """
    left = share * sum(latencies.values())
    for each in sorted(map(int, latencies)):
        left -= latencies[str(each)]
        if left <= 0:
            return round(GROWTH**each, 1)
    return None


def together(*many: Mapping[Any, int]) -> dict[str, int]:
    """Return what is counted in several, by names as JSON has them.

    >>> together({1: 2}, {"1": 1, "5": 3})
    {'1': 3, '5': 3}
    """
    total: Counter[str] = Counter()
    for each in many:
        total.update({str(key): count for key, count in each.items()})
    return dict(total)
