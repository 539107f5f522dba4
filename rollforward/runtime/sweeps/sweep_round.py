"""A round of a sweep: which of the rows that wait it wakes.

How often a row is woken says `backoff`. What has become due is counted from the last round that
came to its end, so a pause of the sweep delays nothing beyond the first round after it.

    round = Round.begin(clients, "outbox")
    due = [row for row in rows if round.is_due(row.created, stale_s=15)]
    ...
    round.end()

Lost on failure: nothing. A sweep that breaks off before `end` leaves its rows to the next one.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sweeps.backoff import PATIENT_AFTER_S, Backoff
from rollforward.runtime.sweeps.entities import SweepMark, mark_key


@dataclass
class SweepRound:
    """One round of a sweep: when it began, and when the one before did."""

    name: str
    now: datetime.datetime  # In UTC, without a zone, as Datastore's times are.
    _since: datetime.datetime | None = None
    _is_read: bool = field(default=False, repr=False)

    @classmethod
    def begin(cls, clients: Clients, name: str) -> SweepRound:
        """Begin a round of the sweep of a name."""
        return cls(name, naive_utc(clients.clock.now()))

    @classmethod
    def of(cls, name: str, now: datetime.datetime, since: datetime.datetime | None) -> SweepRound:
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
        before_s: float | None = None
        if age_s >= PATIENT_AFTER_S and self.since is not None:  # Younger rows cost no read.
            before_s = (self.since - created).total_seconds()
        return Backoff(stale_s).is_due(age_s, before_s)

    def end(self) -> None:
        """Note that everything that was due was woken, or handed to tasks that will.

        Costs nothing when no row was so old that it mattered.
        """
        if self._is_read and self.since != self.now:
            SweepMark(key=mark_key(self.name), at=self.now).put()
