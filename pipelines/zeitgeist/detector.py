"""Detector of spikes and dips: counts that leave the model's range as they had not for weeks.

*Evidence* is the distance of a bucket from the mean, in spreads, plus half of the evidence of the
previous bucket. So one bucket far off is enough, and so are several somewhat off to the same side.

Evidence alone calls every odd hour news, and some series have one each day. So a spike must break
a record of its own series as well (`highs.py`): its count, or the mean count of the hour, is a
quarter above the highest one of the last four weeks, or its evidence is half above the highest
evidence. The hour finds events that last, whose buckets are below the highest bucket. A dip has no
such count, since most series fall near zero each night: its evidence must be a record, and twice a
spike's.

A spike is reported at once, in the first incomplete bucket, since further records only add to it.
A dip is reported for complete buckets only, since missing records may still arrive.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013; the sum and the mean that fade are
S. Roberts's "Control chart tests based on geometric moving averages", 1959.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pipelines.zeitgeist.highs import Highs
from pipelines.zeitgeist.model import BUCKETS_AN_HOUR, Expected
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS

Kind = Literal["spike", "dip"]
SPIKE: Kind = "spike"
DIP: Kind = "dip"
SIGNS: dict[Kind, int] = {SPIKE: 1, DIP: -1}
# Decay of the evidence, from one bucket to the next.
FADING = 0.5
# Time after an alert without another one of its kind: it is the same event.
REFRACTORY_MS = DAY_MS


@dataclass(frozen=True)
class Rules:
    """Thresholds of all series.

    Attributes:
        spike, dip: The least evidence; its standard deviation is 1 / sqrt(1 - 0.25).
        count: How far a count, or the mean count of an hour, surpasses the highest one of the last
            weeks when it is a record, as a factor.
        evidence: The same for the evidence.
    """

    spike: float = 5.0
    dip: float = 10.0
    count: float = 1.25
    evidence: float = 1.5

    def least(self, kind: Kind) -> float:
        return self.spike if kind == SPIKE else self.dip


RULES = Rules()


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
    """Evidence to one side, spikes or dips, and the highest values of its days."""

    kind: Kind
    evidence: float = 0.0
    told_at: int | None = None
    evidences: Highs = field(default_factory=Highs)
    counts: Highs = field(default_factory=Highs)  # Of spikes only.

    def with_(self, distance: float, buckets: int) -> float:
        """Return the evidence with one more bucket, `buckets` after the last one."""
        return max(0.0, FADING**buckets * self.evidence + SIGNS[self.kind] * distance)

    def bar(self, rules: Rules, *, begins_day: bool, has_record_count: bool) -> float | None:
        """Return the evidence that an alert needs; None: too few days were seen."""
        highest = self.evidences.highest_before(begins_day=begins_day)
        if highest is None:
            return None
        least = rules.least(self.kind)
        return least if has_record_count else max(least, rules.evidence * highest)

    def is_quiet(self, at: int) -> bool:
        return self.told_at is not None and at < self.told_at + REFRACTORY_MS

    def take(self, evidence: float, count: float) -> None:
        self.evidence = round(evidence, 3)
        self.evidences.take(self.evidence)
        if self.kind == SPIKE:
            self.counts.take(count)

    def end_day(self) -> None:
        self.evidences.end_day()
        if self.kind == SPIKE:
            self.counts.end_day()

    def kept(self) -> list[Any]:
        """Return the state as JSON."""
        highs = [[highs.today, highs.days] for highs in (self.evidences, self.counts)]
        return [self.evidence, self.told_at, *highs]

    @classmethod
    def of(cls, kind: Kind, stored: list[Any]) -> Side:
        """Return the side of a stored state."""
        evidence, told_at, evidences, counts = stored
        return cls(kind, evidence, told_at, Highs(*evidences), Highs(*counts))

    @classmethod
    def of_named(cls, stored: dict[str, Any]) -> Side:
        """Return the side of a stored state by names."""
        highs = {name: Highs(**stored[name]) for name in ("evidences", "counts")}
        return cls(**(stored | highs))


@dataclass
class Hour:
    """Mean count of about the last hour, in which older buckets fade, and its highest values."""

    mean: float = 0.0
    means: Highs = field(default_factory=Highs)

    def with_(self, count: float) -> float:
        """Return the mean with one more bucket."""
        return self.mean + (count - self.mean) / BUCKETS_AN_HOUR

    def take(self, count: float) -> None:
        self.mean = round(self.with_(count), 3)
        self.means.take(self.mean)

    def kept(self) -> list[Any]:
        """Return the state as JSON."""
        return [self.mean, self.means.today, self.means.days]

    @classmethod
    def of(cls, stored: list[Any] | None) -> Hour:
        """Return the hour of a stored state; a new one if there is none."""
        return cls(stored[0], Highs(*stored[1:])) if stored else cls()

    @classmethod
    def of_named(cls, stored: dict[str, Any] | None) -> Hour:
        """Return the hour of a stored state by names; a new one if there is none."""
        return cls(stored["mean"], Highs(**stored["means"])) if stored else cls()


@dataclass
class Detector:
    """State of one series, of constant size: 4 x 28 numbers and a few more."""

    sides: dict[Kind, Side] = field(default_factory=lambda: {kind: Side(kind) for kind in SIGNS})
    last: int | None = None  # The beginning of the last bucket.
    taken: int = 0  # Number of complete buckets, so that a lost or duplicate one shows.
    hour: Hour = field(default_factory=Hour)
    rules: Rules = RULES

    def partial(self, start: int, at: int, count: float, expected: Expected) -> list[Alert]:
        """Check an incomplete bucket for a spike, without learning.

        It must follow the last complete bucket directly: a bucket between could be the spike, and
        an alert here would suppress it for a day.

        Args:
            at: The time of the last record.
        """
        if self.last is None or start != self.last + BUCKET_MS:
            return []
        _, alerts = self._check(self.sides[SPIKE], start, at, count, expected)
        return alerts

    def complete(self, start: int, count: float, expected: Expected) -> list[Alert]:
        """Process a complete bucket; the buckets are in order."""
        alerts, begins_day = list[Alert](), self._begins_day(start)
        for side in self.sides.values():
            evidence, told = self._check(side, start, start + BUCKET_MS, count, expected)
            alerts += told
            if begins_day:
                side.end_day()
            side.take(evidence, count)
        if begins_day:
            self.hour.means.end_day()
        self.hour.take(count)
        self.last, self.taken = start, self.taken + 1
        return alerts

    def _begins_day(self, start: int) -> bool:
        return self.last is not None and start // DAY_MS > self.last // DAY_MS

    def _check(
        self, side: Side, start: int, at: int, count: float, expected: Expected
    ) -> tuple[float, list[Alert]]:
        """Return the evidence of a bucket, and the alert that it leads to."""
        evidence = self._evidence(side, start, count, expected)
        if evidence <= self.rules.least(side.kind) or side.is_quiet(at):
            return evidence, []
        has_record_count = side.kind == SPIKE and self._has_record_count(start, count)
        begins_day = self._begins_day(start)
        bar = side.bar(self.rules, begins_day=begins_day, has_record_count=has_record_count)
        if bar is None or evidence <= bar:
            return evidence, []
        side.told_at = at
        return evidence, [Alert(side.kind, start, at, count, expected.count(0), evidence, bar)]

    def _has_record_count(self, start: int, count: float) -> bool:
        """Return whether a bucket, or the hour that it ends, surpasses those of the last weeks."""
        begins_day = self._begins_day(start)
        both = (self.sides[SPIKE].counts, count), (self.hour.means, self.hour.with_(count))
        return any(
            highs.is_record(value, self.rules.count, begins_day=begins_day) for highs, value in both
        )

    def _evidence(self, side: Side, start: int, count: float, expected: Expected) -> float:
        last_start = start if self.last is None else self.last
        buckets = max(1, (start - last_start) // BUCKET_MS)
        return side.with_(expected.distance(count), buckets)

    # As a state

    def kept(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {
            "last": self.last,
            "taken": self.taken,
            "sides": {kind: side.kept() for kind, side in self.sides.items()},
            "hour": self.hour.kept(),
        }

    @classmethod
    def of(cls, stored: dict[str, Any] | None) -> Detector:
        """Return the detector of a stored state; a new one if there is none of this form."""
        if not stored or "sides" not in stored:
            return cls()
        sides = {kind: Side.of(kind, stored["sides"][kind]) for kind in SIGNS}
        return cls(sides, stored["last"], stored["taken"], Hour.of(stored.get("hour")))

    # As a state of version 2

    def named(self) -> dict[str, Any]:
        """Return the state as JSON, each number by its name."""
        return {
            "last": self.last,
            "taken": self.taken,
            "sides": {kind: asdict(side) for kind, side in self.sides.items()},
            "hour": asdict(self.hour),
        }

    @classmethod
    def of_named(cls, stored: dict[str, Any] | None) -> Detector:
        """Return the detector of a stored state by names; a new one if there is none so."""
        if not stored or "evidences" not in stored["sides"][SPIKE]:
            return cls()
        sides = {kind: Side.of_named(stored["sides"][kind]) for kind in SIGNS}
        return cls(sides, stored["last"], stored["taken"], Hour.of_named(stored.get("hour")))
