"""Spikes and dips: when counts leave what the model allows, over several buckets.

*Evidence* is how many spreads a bucket lies off the mean, and half of the evidence of the bucket
before. So one bucket far off is enough, and so are several that are somewhat off, each to the same
side.

How much is enough depends on the series: some burst every day. The *bar* is what the highest
evidence of a day has not exceeded on nine of ten days, of the last four weeks; and never less than
`MIN_BAR`. So a series of any kind gets about one alert in ten days by chance.

A spike is told at once, in the bucket behind the complete ones: what is still to come of it only
adds to it. A dip is told of complete buckets only, for what is missing may be on its way.

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
# Of the evidence, from one bucket to the next.
FADING = 0.5
# Five standard deviations of the evidence, 1 / sqrt(1 - 0.25) each, if counts vary normally.
MIN_BAR = 6.0
BAR_SHARE = 0.9
BAR_DAYS = 28
# One day raises the bar by no more than that: once is no habit, here as in the model.
BAR_GROWTH = 1.5
# Before that there is nothing to compare a day with.
MIN_DAYS = 2
# After an alert none of its kind is told for so long: it is the same event.
REFRACTORY_MS = DAY_MS


@dataclass(frozen=True)
class Alert:
    """Something to tell.

    Attributes:
        start: The beginning of the bucket that led to it.
        at: When it was told, by the time of the stream.
        usual: What the model had expected.
        version: Of the detector that told it.
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
    """What is known of the evidence to one side: spikes, or dips."""

    evidence: float = 0.0
    highest: float = 0.0  # Of the day.
    days: list[float] = field(default_factory=list)  # The highest of each day before it.
    told_at: int | None = None

    @property
    def bar(self) -> float | None:
        """How much evidence is enough; None: too few days were seen."""
        if len(self.days) < MIN_DAYS:
            return None
        return max(MIN_BAR, sorted(self.days)[math.ceil(BAR_SHARE * len(self.days)) - 1])

    def with_(self, distance: float, buckets: int) -> float:
        """Return the evidence with one more bucket, so many behind the last one."""
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
        """Return how much evidence is enough once the day has ended."""
        after = replace(self)
        after.end_day()
        return after.bar


@dataclass
class Detector:
    """What it has to remember of one series, whatever its length: 2 x 28 numbers and a few more."""

    sides: dict[Kind, Side] = field(default_factory=lambda: {SPIKE: Side(), DIP: Side()})
    last: int | None = None  # The beginning of the last bucket.
    taken: int = 0  # Complete buckets: one that is lost or comes twice shows, whatever it does.

    def partial(self, start: int, at: int, count: float, expected: Expected) -> list[Alert]:
        """Look at a bucket that is not complete; it can only tell a spike, and nothing is learned.

        Only the next one behind those that are complete: what lies between could be the spike, and
        this one would silence it for a day.

        Args:
            at: The time of the record that came last.
        """
        if self.last is None or start != self.last + BUCKET_MS:
            return []
        side = self.sides[SPIKE]
        # As when the bucket is complete: then the day before has ended.
        bar = side.bar_of_next_day() if self._begins_day(start) else side.bar
        return self._tell(SPIKE, start, at, count, expected, bar)

    def complete(self, start: int, count: float, expected: Expected) -> list[Alert]:
        """Take a complete bucket in; they come in order."""
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
        last = start if self.last is None else self.last
        buckets = max(1, (start - last) // BUCKET_MS)
        return self.sides[kind].with_(SIGNS[kind] * expected.distance(count), buckets)

    # As a state

    def kept(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "last": self.last,
            "taken": self.taken,
            **{
                kind: [side.evidence, side.highest, side.days, side.told_at]
                for kind, side in self.sides.items()
            },
        }

    @classmethod
    def of(cls, kept: dict[str, Any] | None) -> Detector:
        """Return the detector that was kept; a new one if there is none."""
        if not kept:
            return cls()
        sides = {kind: Side(*kept[kind]) for kind in SIGNS}
        return cls(sides, kept["last"], kept.get("taken", 0))

    # As a state of version 2

    def named(self) -> dict[str, Any]:
        """Return it as JSON knows it, each number by its name."""
        return {
            "last": self.last,
            "taken": self.taken,
            "sides": {kind: asdict(side) for kind, side in self.sides.items()},
        }

    @classmethod
    def of_named(cls, kept: dict[str, Any] | None) -> Detector:
        """Return the detector that was kept by names; a new one if there is none."""
        if not kept:
            return cls()
        sides = {kind: Side(**kept["sides"][kind]) for kind in SIGNS}
        return cls(sides, kept["last"], kept.get("taken", 0))
