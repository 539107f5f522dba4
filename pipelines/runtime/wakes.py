"""Which of the rows that wait a sweep wakes again.

A row that has just become stale is woken by every sweep. One that stays is woken when it is 10, 20
and 40 minutes old, and then each hour: its task mostly exists and waits in its queue. What has
become due is counted from the last sweep that came to its end, so a pause of the sweep delays
nothing beyond the first sweep after it.

    round = Round.begin(clients, "outbox")
    due = [row for row in rows if round.is_due(row.created, stale_s=15)]
    ...
    round.end()

Lost on failure: nothing. A sweep that breaks off before `end` leaves its rows to the next one.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from models.sweeps import SweepMark, mark_key
from pipelines.runtime.clock import naive_utc

if TYPE_CHECKING:
    from pipelines.runtime.clients import Clients

# A row that is younger is woken by every sweep; older ones when they have doubled their age.
PATIENT_AFTER_S = 600.0
HOUR_S = 3600.0
# What lies further ahead is from a clock that was wrong, and counts as old.
CLOCK_SKEW_S = 60.0


@dataclass
class Round:
    """One round of a sweep: when it began, and when the one before did."""

    name: str
    now: datetime.datetime  # In UTC, without a zone, as Datastore's times are.
    _since: datetime.datetime | None = None
    _is_read: bool = field(default=False, repr=False)

    @classmethod
    def begin(cls, clients: Clients, name: str) -> Round:
        """Begin a round of the sweep of a name."""
        return cls(name, naive_utc(clients.clock.now()))

    @classmethod
    def of(cls, name: str, now: datetime.datetime, since: datetime.datetime | None) -> Round:
        """Return a part of a round that began elsewhere, in the task that handed it over."""
        return cls(name, now, since, _is_read=True)

    @property
    def since(self) -> datetime.datetime | None:
        """When the last round began that came to its end; None: there was none. Read once."""
        if not self._is_read:
            mark = mark_key(self.name).get()
            # A mark from a clock far ahead would hide what has become due since.
            is_sound = mark is not None and mark.at <= self.now
            self._since = mark.at if is_sound else None
            self._is_read = True
        return self._since

    def is_due(self, created: datetime.datetime, *, stale_s: float) -> bool:
        """Return whether a row that was made at a time is to be woken in this round.

        Args:
            created: In UTC, without a zone.
            stale_s: From which age on its own process should have cared for it.
        """
        age_s = (self.now - created).total_seconds()
        if age_s < -CLOCK_SKEW_S:
            return True
        if age_s < PATIENT_AFTER_S:
            return age_s >= stale_s
        if self.since is None:
            return True
        return steps(age_s) > steps((self.since - created).total_seconds())

    def end(self) -> None:
        """Note that everything that was due was woken, or handed to tasks that will.

        Costs nothing when no row was so old that it mattered.
        """
        if self._is_read and self.since != self.now:
            SweepMark(key=mark_key(self.name), at=self.now).put()


def steps(age_s: float) -> int:
    """Return how often a row of an age was due to be woken after its first ten minutes.

    >>> [steps(minutes * 60) for minutes in (9, 10, 19, 20, 40, 59, 60, 119, 120, 1440)]
    [0, 1, 1, 2, 3, 3, 4, 4, 5, 27]
    """
    if age_s < 0:
        return 0
    doublings = int(min(age_s, HOUR_S - 1) / PATIENT_AFTER_S).bit_length()
    return doublings + int(age_s / HOUR_S)
