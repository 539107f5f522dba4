"""Highest values of the last days: what a new value must surpass to be a record.

A series differs from the next by how far its days reach, and by nothing that one threshold for all
would know. So each has its own: the highest value of the last four weeks. One day raises it to the
triple at most. Else one huge event would hide the events of a month.

Source: K. Chandler, "The distribution and frequency of record values", 1952; the highest values of
days are the block maxima of E. Gumbel's "Statistics of extremes", 1958.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

DAYS = 28
# Limit of the rise by one day: one burst is no habit, here as in the model.
GROWTH = 3.0
# Days before the first record: the highest of one day says little.
MIN_DAYS = 3


@dataclass
class Highs:
    """Highest value of today, and of each of the last days."""

    today: float = 0.0
    days: list[float] = field(default_factory=list)

    @property
    def highest(self) -> float | None:
        """The highest value of the earlier days; None: too few days were seen."""
        return max(self.days) if len(self.days) >= MIN_DAYS else None

    def is_record(self, value: float, times: float, *, begins_day: bool) -> bool:
        """Return whether a value surpasses `times` the highest one of the days before its own."""
        highest = self.highest_before(begins_day=begins_day)
        return highest is not None and value > times * highest

    def take(self, value: float) -> None:
        self.today = max(self.today, value)

    def end_day(self) -> None:
        highest = max(self.days, default=0.0)
        limit = GROWTH * highest if highest else self.today
        self.days = [*self.days, min(self.today, limit)][-DAYS:]
        self.today = 0.0

    def highest_before(self, *, begins_day: bool) -> float | None:
        """Return the highest value of the days before a bucket; `begins_day`: today is over."""
        if not begins_day:
            return self.highest
        next_day = replace(self)
        next_day.end_day()
        return next_day.highest
