"""Model of a series: the mean and the spread of its counts at this hour of the week.

The scale is logarithmic: counts grow and vary by factors, so that a burst in the morning equals one
at night. The model learns a mean for each hour of the week. An hour with few buckets falls back to
the mean of the hour of the day, and that one to the mean of all buckets. A level follows the series
within a day, so that a permanent change does not raise alerts each hour for weeks.

An outlier teaches only as much as a count at the border of the usual range: one burst is no habit.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013 (bounded counts against a model by
time); P. Huber, "Robust estimation of a location parameter", 1964, for the border.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS

HOURS_A_WEEK = 168
HOURS_A_DAY = 24
BUCKETS_A_DAY = DAY_MS // BUCKET_MS
BUCKETS_AN_HOUR = HOUR_MS // BUCKET_MS
# Buckets before the first prediction: it takes a whole day to include a night.
MIN_SEEN = BUCKETS_A_DAY
# Buckets of a mean, at most: four weeks, for an hour of the week.
MEMORY = 4 * BUCKETS_AN_HOUR
# Buckets that give a mean the same weight as its fallback.
PRIOR = BUCKETS_AN_HOUR
# A spread needs more buckets: else the burst of a new hour would widen its own range.
SPREAD_PRIOR = MEMORY
LEVEL_MEMORY = BUCKETS_A_DAY
# Limit of the distance that one count teaches, in spreads.
BORDER = 3.0
# Factor from the mean deviation to the standard deviation of a normal distribution.
DEVIATIONS = math.sqrt(math.pi / 2)
# Lower limit of a spread: counts that vary by less than 10 % are odd themselves.
MIN_SPREAD = 0.1
# Added to the mean count of rare events (Jeffreys): where none was seen, one is no wonder.
UNSEEN = 0.5
# Decimals of stored numbers, for a short state.
DIGITS = 6


@dataclass(frozen=True)
class Expected:
    """Prediction for a bucket; `mean` and `spread` are of log(1 + count)."""

    mean: float
    spread: float

    def distance(self, count: float) -> float:
        """Return the distance of a count from the mean, in spreads; negative below the mean."""
        return (scaled(count) - self.mean) / self.spread

    def count(self, distance: float) -> float:
        """Return the count at this distance above the mean, in spreads.

        >>> round(Expected(scaled(10), 0.5).count(0), 6), Expected(0.0, 1.0).count(-3)
        (10.0, 0.0)
        """
        return max(0.0, math.expm1(self.mean + distance * self.spread))


def scaled(count: float) -> float:
    """Return a count on the scale of the model."""
    return math.log1p(count)


@dataclass
class Cell:
    """A mean, a mean deviation, and the number of their buckets."""

    seen: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def learn(self, value: float, distance: float, memory: int) -> None:
        self.seen += 1
        share = 1 / min(self.seen, memory)
        self.mean = round(self.mean + share * (value - self.mean), DIGITS)
        self.deviation = round(self.deviation + share * (abs(distance) - self.deviation), DIGITS)

    def among(self, fallback: tuple[float, float]) -> tuple[float, float]:
        """Return mean and deviation, mixed with a fallback by the number of buckets."""
        weight, steady = self.seen / (self.seen + PRIOR), self.seen / (self.seen + SPREAD_PRIOR)
        return (
            fallback[0] + weight * (self.mean - fallback[0]),
            fallback[1] + steady * (self.deviation - fallback[1]),
        )


@dataclass
class Cells:
    """Cells by hour, in their stored form, since a record reads and writes one of them."""

    stored: dict[str, list[Any]] = field(default_factory=dict)

    def __getitem__(self, hour: int) -> Cell:
        return Cell(*self.stored.get(str(hour), ()))

    def __setitem__(self, hour: int, cell: Cell) -> None:
        self.stored[str(hour)] = _numbers(cell)

    def kept(self) -> dict[str, list[Any]]:
        """Return the state as JSON."""
        return dict(self.stored)


@dataclass
class Model:
    """Model of one series, of constant size: 193 cells."""

    all: Cell = field(default_factory=Cell)
    hours: Cells = field(default_factory=Cells)  # Hours of the day.
    week: Cells = field(default_factory=Cells)  # Hours of the week, from Thursday 0:00.
    level: float = 0.0

    def expected(self, start: int) -> Expected | None:
        """Return the prediction for the bucket at `start`; None: too few buckets were seen."""
        if self.all.seen < MIN_SEEN:
            return None
        mean, deviation = self._usual(start)
        mean += self.level
        # A count of rare events varies by its square root, even if it has not yet; on the scale of
        # the model that is the root over 1 + count.
        count = max(0.0, math.expm1(mean)) + UNSEEN
        min_spread = math.sqrt(count) / (1 + count)
        return Expected(mean, max(DEVIATIONS * deviation, min_spread, MIN_SPREAD))

    def learn(self, start: int, count: float) -> None:
        """Learn from the count of a complete bucket."""
        value, expected = scaled(count), self.expected(start)
        if expected is not None:
            border = BORDER * expected.spread
            value = expected.mean + min(border, max(-border, value - expected.mean))
        distance = value - self._usual(start)[0] - self.level if self.all.seen else 0.0
        value -= self.level
        self.all.learn(value, distance, MEMORY * HOURS_A_DAY)
        for cells, hour in ((self.hours, _of_day(start)), (self.week, _of_week(start))):
            cell = cells[hour]
            cell.learn(value, distance, MEMORY)
            cells[hour] = cell
        if expected is not None:
            self.level = round(self.level + distance / LEVEL_MEMORY, DIGITS)

    def _usual(self, start: int) -> tuple[float, float]:
        """Return mean and deviation of a bucket, without the level."""
        usual = self.all.mean, self.all.deviation
        usual = self.hours[_of_day(start)].among(usual)
        return self.week[_of_week(start)].among(usual)

    # As a state

    def kept(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "all": _numbers(self.all),
            "hours": self.hours.kept(),
            "week": self.week.kept(),
            "level": self.level,
        }

    @classmethod
    def of(cls, stored: dict[str, Any] | None) -> Model:
        """Return the model of a stored state; a new one if there is none."""
        if not stored:
            return cls()
        hours, week = (Cells(dict(stored[name])) for name in ("hours", "week"))
        return cls(Cell(*stored["all"]), hours, week, stored["level"])


def _numbers(cell: Cell) -> list[Any]:
    return [cell.seen, cell.mean, cell.deviation]


def _of_day(start: int) -> int:
    return start // HOUR_MS % HOURS_A_DAY


def _of_week(start: int) -> int:
    return start // HOUR_MS % HOURS_A_WEEK
