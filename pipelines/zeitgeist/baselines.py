"""Two plain ways to tell spikes and dips, to compare the detector with.

They get what it gets: one bucket after the other, two days before they may speak, and after an
alert a day without another one of its kind. Neither looks ahead.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pipelines.zeitgeist.detector import DIP, MIN_DAYS, REFRACTORY_MS, SPIKE, Kind
from pipelines.zeitgeist.model import BUCKETS_A_DAY, HOURS_A_WEEK
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS

# Of the moving average.
AVERAGE_OF = BUCKETS_A_DAY
TIMES = 3.0
# The textbooks' three standard deviations.
SIGMAS = 3.0


@dataclass
class Refractory:
    """Who was told of something is not told of it again within a day."""

    told_at: dict[Kind, int] = field(default_factory=dict)
    first: int | None = None

    def of(self, start: int, found: list[Kind]) -> list[Kind]:
        """Return what is told of what was found in a bucket."""
        at = start + BUCKET_MS
        self.first = start if self.first is None else self.first
        if start < self.first + MIN_DAYS * DAY_MS:
            return []
        told = [kind for kind in found if at >= self.told_at.get(kind, -DAY_MS) + REFRACTORY_MS]
        self.told_at.update(dict.fromkeys(told, at))
        return told


class MovingAverage:
    """Alerts when a count is so many times the mean of the last day, or so many times below it."""

    def __init__(self, times: float = TIMES) -> None:
        self._times = times
        self._last: deque[float] = deque(maxlen=AVERAGE_OF)
        self._refractory = Refractory()

    def look(self, start: int, count: float) -> list[Kind]:
        """Return what this bucket is."""
        found: list[Kind] = []
        if self._last:
            mean = sum(self._last) / len(self._last)
            found += [SPIKE] * (count > self._times * mean) + [DIP] * (count < mean / self._times)
        self._last.append(count)
        return self._refractory.of(start, found)


class SeasonalMean:
    """Alerts when a count is so many standard deviations off the mean of its hour of the week."""

    def __init__(self, sigmas: float = SIGMAS) -> None:
        self._sigmas = sigmas
        self._sums: dict[int, list[float]] = {}
        self._refractory = Refractory()

    def look(self, start: int, count: float) -> list[Kind]:
        """Return what this bucket is; nothing is known of an hour in the first week."""
        week, hour = divmod(start // HOUR_MS, HOURS_A_WEEK)
        sums = self._sums.setdefault(hour, [0.0, 0.0, 0.0, week])
        found = self._found(sums, count) if week > sums[3] else []
        for power in range(3):
            sums[power] += count**power
        return self._refractory.of(start, found)

    def _found(self, sums: list[float], count: float) -> list[Kind]:
        mean = sums[1] / sums[0]
        allowed = self._sigmas * math.sqrt(max(0.0, sums[2] / sums[0] - mean**2))
        return [SPIKE] * (count > mean + allowed) + [DIP] * (count < mean - allowed)
