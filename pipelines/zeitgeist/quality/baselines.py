"""Baselines: two plain methods to detect spikes and dips, for comparison with the detector.

They run under the same conditions: one bucket after the other, no alert in the first two days, and
no second alert of its kind within a day. Neither looks ahead.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pipelines.zeitgeist.detector import DIP, REFRACTORY_MS, SPIKE, Kind
from pipelines.zeitgeist.highs import MIN_DAYS
from pipelines.zeitgeist.model import BUCKETS_A_DAY, HOURS_A_WEEK
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS

# Window and threshold of the moving average.
AVERAGE_OF = BUCKETS_A_DAY
TIMES = 3.0
# The textbooks' three standard deviations.
SIGMAS = 3.0


@dataclass
class Refractory:
    """Suppresses a second alert of its kind within a day."""

    told_at: dict[Kind, int] = field(default_factory=dict)
    first_start: int | None = None

    def of(self, start: int, detected: list[Kind]) -> list[Kind]:
        """Return the detected kinds of a bucket that are not suppressed."""
        at = start + BUCKET_MS
        self.first_start = start if self.first_start is None else self.first_start
        if start < self.first_start + MIN_DAYS * DAY_MS:
            return []
        alerts = [
            kind for kind in detected if at >= self.told_at.get(kind, -DAY_MS) + REFRACTORY_MS
        ]
        self.told_at.update(dict.fromkeys(alerts, at))
        return alerts


class MovingAverage:
    """Alerts when a count is `times` times the mean of the last day, or `times` times below it."""

    def __init__(self, times: float = TIMES) -> None:
        self._times = times
        self._last: deque[float] = deque(maxlen=AVERAGE_OF)
        self._refractory = Refractory()

    def look(self, start: int, count: float) -> list[Kind]:
        """Return the kinds of this bucket."""
        kinds: list[Kind] = []
        if self._last:
            mean = sum(self._last) / len(self._last)
            kinds += [SPIKE] * (count > self._times * mean) + [DIP] * (count < mean / self._times)
        self._last.append(count)
        return self._refractory.of(start, kinds)


class SeasonalMean:
    """Alerts when a count is `sigmas` standard deviations off the mean of its hour of the week."""

    def __init__(self, sigmas: float = SIGMAS) -> None:
        self._sigmas = sigmas
        self._sums: dict[int, list[float]] = {}
        self._refractory = Refractory()

    def look(self, start: int, count: float) -> list[Kind]:
        """Return the kinds of this bucket; none in the first week of an hour."""
        week, hour = divmod(start // HOUR_MS, HOURS_A_WEEK)
        sums = self._sums.setdefault(hour, [0.0, 0.0, 0.0, week])
        kinds = self._kinds(sums, count) if week > sums[3] else []
        for power in range(3):
            sums[power] += count**power
        return self._refractory.of(start, kinds)

    def _kinds(self, sums: list[float], count: float) -> list[Kind]:
        mean = sums[1] / sums[0]
        allowed = self._sigmas * math.sqrt(max(0.0, sums[2] / sums[0] - mean**2))
        return [SPIKE] * (count > mean + allowed) + [DIP] * (count < mean - allowed)
