"""Detector of spikes and dips: counts that leave the model's range over several buckets.

*Evidence* is the distance of a bucket from the mean, in spreads, plus half of the evidence of the
previous bucket. So one bucket far off is enough, and so are several somewhat off to the same side.

The threshold depends on the series, since some burst every day. This *bar* is the level that the
highest evidence of a day stayed below on nine of ten days, over the last four weeks; it is at least
`MIN_BAR`. So a series of any kind gets about one alert in ten days by chance.

A spike is reported at once, in the first incomplete bucket, since further records only add to it.
A dip is reported for complete buckets only, since missing records may still arrive.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013; the sum that fades is S. Roberts's
"Control chart tests based on geometric moving averages", 1959; highest values of days are the block
maxima of E. Gumbel's "Statistics of extremes", 1958.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pipelines.zeitgeist.model import Expected
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS

Kind = Literal["spike", "dip"]
SPIKE: Kind = "spike"
DIP: Kind = "dip"
SIGNS: dict[Kind, int] = {SPIKE: 1, DIP: -1}
# Decay of the evidence, from one bucket to the next.
FADING = 0.5
# Five standard deviations of the evidence, 1 / sqrt(1 - 0.25) each, if counts vary normally.
MIN_BAR = 6.0
BAR_SHARE = 0.9
BAR_DAYS = 28
# Limit of the rise of the bar by one day: one burst is no habit, here as in the model.
BAR_GROWTH = 1.5
# Days before the first alert, to have a basis for comparison.
MIN_DAYS = 2
# Time after an alert without another one of its kind: it is the same event.
REFRACTORY_MS = DAY_MS


@dataclass(frozen=True)
class Alert:
    """A spike or dip of a series.

    Attributes:
        start: The beginning of the bucket that led to it.
        at: The time of the alert, in the time of the stream.
        usual: The count that the model expected.
        version: The version of the detector that raised it.
    """

    kind: Kind
    start: int
    at: int
    count: float
    usual: float
    evidence: float
    bar: float
    version: int = 1


@dataclass
class Side:
    """Evidence to one side: spikes, or dips."""

    evidence: float = 0.0
    highest: float = 0.0  # Highest evidence of the day.
    days: list[float] = field(default_factory=list)  # Highest evidence of each earlier day.
    told_at: int | None = None

    @property
    def bar(self) -> float | None:
        """The threshold of the evidence; None: too few days were seen."""
        if len(self.days) < MIN_DAYS:
            return None
        return max(MIN_BAR, sorted(self.days)[math.ceil(BAR_SHARE * len(self.days)) - 1])

    def with_(self, distance: float, buckets: int) -> float:
        """Return the evidence with one more bucket, `buckets` after the last one."""
        return max(0.0, FADING**buckets * self.evidence + distance)

    def take(self, evidence: float) -> None:
        self.evidence = round(evidence, 3)
        self.highest = max(self.highest, self.evidence)

    def is_quiet(self, at: int) -> bool:
        return self.told_at is not None and at < self.told_at + REFRACTORY_MS

    def end_day(self) -> None:
        bar = self.bar
        highest = self.highest if bar is None else min(self.highest, BAR_GROWTH * bar)
        self.days = [*self.days, highest][-BAR_DAYS:]
        self.highest = 0.0

    def bar_of_next_day(self) -> float | None:
        """Return the bar after the end of the day."""
        next_day = replace(self)
        next_day.end_day()
        return next_day.bar


@dataclass
class Detector:
    """State of one series, of constant size: 2 x 28 numbers and a few more."""

    sides: dict[Kind, Side] = field(default_factory=lambda: {SPIKE: Side(), DIP: Side()})
    last: int | None = None  # The beginning of the last bucket.
    taken: int = 0  # Number of complete buckets, so that a lost or duplicate one shows.

    def partial(self, start: int, at: int, count: float, expected: Expected) -> list[Alert]:
        """Check an incomplete bucket for a spike, without learning.

        It must follow the last complete bucket directly: a bucket between could be the spike, and
        an alert here would suppress it for a day.

        Args:
            at: The time of the last record.
        """
        if self.last is None or start != self.last + BUCKET_MS:
            return []
        side = self.sides[SPIKE]
        # The bar of the complete bucket: the previous day has ended then.
        bar = side.bar_of_next_day() if self._begins_day(start) else side.bar
        return self._tell(SPIKE, start, at, count, expected, bar)

    def complete(self, start: int, count: float, expected: Expected) -> list[Alert]:
        """Process a complete bucket; the buckets are in order."""
        if self._begins_day(start):
            for side in self.sides.values():
                side.end_day()
        at, alerts = start + BUCKET_MS, list[Alert]()
        for kind, side in self.sides.items():
            alerts += self._tell(kind, start, at, count, expected, side.bar)
        for kind, side in self.sides.items():
            side.take(self._evidence(kind, start, count, expected))
        self.last, self.taken = start, self.taken + 1
        return alerts

    def _begins_day(self, start: int) -> bool:
        return self.last is not None and start // DAY_MS > self.last // DAY_MS

    def _tell(
        self, kind: Kind, start: int, at: int, count: float, expected: Expected, bar: float | None
    ) -> list[Alert]:
        side, evidence = self.sides[kind], self._evidence(kind, start, count, expected)
        if bar is None or evidence <= bar or side.is_quiet(at):
            return []
        side.told_at = at
        return [Alert(kind, start, at, count, expected.count(0), evidence, bar)]

    def _evidence(self, kind: Kind, start: int, count: float, expected: Expected) -> float:
        last_start = start if self.last is None else self.last
        buckets = max(1, (start - last_start) // BUCKET_MS)
        return self.sides[kind].with_(SIGNS[kind] * expected.distance(count), buckets)

    # As a state

    def kept(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "last": self.last,
            "taken": self.taken,
            **{
                kind: [side.evidence, side.highest, side.days, side.told_at]
                for kind, side in self.sides.items()
            },
        }

    @classmethod
    def of(cls, stored: dict[str, Any] | None) -> Detector:
        """Return the detector of a stored state; a new one if there is none."""
        if not stored:
            return cls()
        sides = {kind: Side(*stored[kind]) for kind in SIGNS}
        return cls(sides, stored["last"], stored.get("taken", 0))

    # As a state of version 2

    def named(self) -> dict[str, Any]:
        """Return the state as JSON, each number by its name."""
        return {
            "last": self.last,
            "taken": self.taken,
            "sides": {kind: asdict(side) for kind, side in self.sides.items()},
        }

    @classmethod
    def of_named(cls, stored: dict[str, Any] | None) -> Detector:
        """Return the detector of a stored state by names; a new one if there is none."""
        if not stored:
            return cls()
        sides = {kind: Side(**stored["sides"][kind]) for kind in SIGNS}
        return cls(sides, stored["last"], stored.get("taken", 0))
