"""Common part of the loads of counters and sums.

A load is a rate (clicks or items a second) that writers make for some seconds. A writer is a chain
of tasks: each task is a step, and names the next one. Latencies are kept in a histogram, each
bucket 1.2 times as wide as the one before.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollforward.runtime import Clients

# A load that is overdue by this may be replaced: its writers are dead.
GIVEN_UP_AFTER_S = 60.0
GROWTH = 1.2
BUCKETS = 60


class LoadGoesOnError(Exception):
    """Another load is running."""


class TimedLoad:
    """Schedule of a load: its start, its planned duration, and the due times of its steps."""

    started_ms: int
    seconds: int

    def age_s(self, clients: Clients) -> float:
        return clients.clock.now().timestamp() - self.started_ms / 1000

    def is_given_up(self, clients: Clients) -> bool:
        return self.age_s(clients) > self.seconds + GIVEN_UP_AFTER_S

    def step_at(self, clients: Clients, after_s: float) -> datetime.datetime | None:
        """Return the due time of a step, `after_s` after the start; None: it is due already."""
        at = datetime.datetime.fromtimestamp(self.started_ms / 1000 + after_s, datetime.UTC)
        return at if at > clients.clock.now() else None


@dataclass
class StepWork:
    """Result of a step: the writer's new position, and measurements."""

    accepted: int
    repeats: int = 0
    latencies: Counter[int] = field(default_factory=Counter)
    error: Exception | None = None


def bucket(ms: float) -> int:
    """Return the bucket of a latency.

    >>> bucket(0.3), bucket(1.1), bucket(1.3), bucket(1e9)
    (0, 1, 2, 60)
    """
    return min(BUCKETS, max(0, math.ceil(math.log(max(ms, 0.001), GROWTH))))


def percentile(latencies: Mapping[str, int], share: float) -> float | None:
    """Return the latency that this share did not exceed, to a bucket's width.

    >>> percentile({"0": 50, "10": 49, "20": 1}, 0.95)
    6.2
    """
    remaining = share * sum(latencies.values())
    for index in sorted(map(int, latencies)):
        remaining -= latencies[str(index)]
        if remaining <= 0:
            return round(GROWTH**index, 1)
    return None


def together(*many: Mapping[Any, int]) -> dict[str, int]:
    """Add up several counts; the keys are strings, as in JSON.

    >>> together({1: 2}, {"1": 1, "5": 3})
    {'1': 3, '5': 3}
    """
    total: Counter[str] = Counter()
    for counts in many:
        total.update({str(key): count for key, count in counts.items()})
    return dict(total)
