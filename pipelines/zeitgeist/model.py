"""What is usual of a series: the mean and the spread of its counts at this hour of the week.

It is kept on a scale of logarithms: counts grow and vary by factors, so that a burst in the morning
and one at night are alike there. What is learned is a mean for the hour of the week. While that has
seen little, the mean of the hour of the day stands in for it, and for that the mean of all. A level
follows the series within a day, so that a change that stays is not told each hour for weeks.

A count far off teaches only as much as one at the border of what was usual: one burst is no habit.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013 (bounded counts against a model by
time); P. Huber, "Robust estimation of a location parameter", 1964, for the border.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, HOUR_MS

HOURS_A_WEEK = 168
HOURS_A_DAY = 24
BUCKETS_A_DAY = DAY_MS // BUCKET_MS
BUCKETS_AN_HOUR = HOUR_MS // BUCKET_MS
# Nothing is expected of a series before that: who has not seen a night knows nothing of nights.
MIN_SEEN = BUCKETS_A_DAY
# A mean is of so many buckets at most: of four weeks, for an hour of the week.
MEMORY = 4 * BUCKETS_AN_HOUR
# So many buckets of its own make a mean as good as the one that stands in for it.
PRIOR = BUCKETS_AN_HOUR
# A spread needs more of them: else the burst of a new hour would widen what is usual for itself.
SPREAD_PRIOR = MEMORY
LEVEL_MEMORY = BUCKETS_A_DAY
# What is learned from one count: at most so many spreads.
BORDER = 3.0
# Of the mean deviation: the standard deviation, if they were normal.
DEVIATIONS = math.sqrt(math.pi / 2)
# No series is taken for steadier than that: counts that vary by less than 10 % are odd themselves.
MIN_SPREAD = 0.1
# That are kept of each number: a state is short then.
DIGITS = 6


@dataclass(frozen=True)
class Expected:
    """What is usual for a bucket; `mean` and `spread` are of log(1 + count)."""

    mean: float
    spread: float

    def distance(self, count: float) -> float:
        """Return how many spreads a count is above the mean; below zero, if it is under it."""
        return (scaled(count) - self.mean) / self.spread

    def count(self, distance: float) -> float:
        """Return the count that lies so many spreads above the mean.

        >>> round(Expected(scaled(10), 0.5).count(0), 6), Expected(0.0, 1.0).count(-3)
        (10.0, 0.0)
        """
        return max(0.0, math.expm1(self.mean + distance * self.spread))


def scaled(count: float) -> float:
    """Return a count on the scale of the model."""
    return math.log1p(count)


@dataclass
class Cell:
    """A mean and a mean deviation, and of how many buckets."""

    seen: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def learn(self, value: float, distance: float, memory: int) -> None:
        self.seen += 1
        share = 1 / min(self.seen, memory)
        self.mean = round(self.mean + share * (value - self.mean), DIGITS)
        self.deviation = round(self.deviation + share * (abs(distance) - self.deviation), DIGITS)

    def among(self, rest: tuple[float, float]) -> tuple[float, float]:
        """Return mean and deviation, mixed with those of a rest by how much was seen."""
        own, steady = self.seen / (self.seen + PRIOR), self.seen / (self.seen + SPREAD_PRIOR)
        return (
            rest[0] + own * (self.mean - rest[0]),
            rest[1] + steady * (self.deviation - rest[1]),
        )


@dataclass
class Model:
    """What was learned of one series: 193 cells, whatever its length."""

    all: Cell = field(default_factory=Cell)
    hours: dict[int, Cell] = field(default_factory=dict)  # Of the day.
    week: dict[int, Cell] = field(default_factory=dict)  # Hours of the week, from Thursday 0:00.
    level: float = 0.0

    def expected(self, start: int) -> Expected | None:
        """Return what is usual for the bucket that begins then; None: too little was seen."""
        if self.all.seen < MIN_SEEN:
            return None
        mean, deviation = self._usual(start)
        mean += self.level
        # A count of rare events varies by its root, even if it has not yet.
        least = 1 / math.sqrt(1 + max(0.0, math.expm1(mean)))
        return Expected(mean, max(DEVIATIONS * deviation, least, MIN_SPREAD))

    def learn(self, start: int, count: float) -> None:
        """Take a bucket's count in, when it is complete."""
        value, known = scaled(count), self.expected(start)
        if known is not None:
            border = BORDER * known.spread
            value = known.mean + min(border, max(-border, value - known.mean))
        distance = value - self._usual(start)[0] - self.level if self.all.seen else 0.0
        value -= self.level
        self.all.learn(value, distance, MEMORY * HOURS_A_DAY)
        self.hours.setdefault(_of_day(start), Cell()).learn(value, distance, MEMORY)
        self.week.setdefault(_of_week(start), Cell()).learn(value, distance, MEMORY)
        if known is not None:
            self.level = round(self.level + distance / LEVEL_MEMORY, DIGITS)

    def _usual(self, start: int) -> tuple[float, float]:
        """Return mean and deviation of a bucket, without the level."""
        usual = self.all.mean, self.all.deviation
        usual = self.hours.get(_of_day(start), Cell()).among(usual)
        return self.week.get(_of_week(start), Cell()).among(usual)

    # As a state

    def kept(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "all": _numbers(self.all),
            "hours": {str(hour): _numbers(cell) for hour, cell in self.hours.items()},
            "week": {str(hour): _numbers(cell) for hour, cell in self.week.items()},
            "level": self.level,
        }

    @classmethod
    def of(cls, kept: dict[str, Any] | None) -> Model:
        """Return the model that was kept; a new one if there is none."""
        if not kept:
            return cls()
        return cls(Cell(*kept["all"]), _cells(kept["hours"]), _cells(kept["week"]), kept["level"])


def _numbers(cell: Cell) -> Iterable[float]:
    return [cell.seen, cell.mean, cell.deviation]


def _cells(kept: dict[str, list[Any]]) -> dict[int, Cell]:
    return {int(hour): Cell(*numbers) for hour, numbers in kept.items()}


def _of_day(start: int) -> int:
    return start // HOUR_MS % HOURS_A_DAY


def _of_week(start: int) -> int:
    return start // HOUR_MS % HOURS_A_WEEK
