"""A round of a sweep, and the pending rows that it wakes.

`backoff` has the intervals between two wakes of a row. A row is due if it became so since the last
completed round began. So a pause of the sweep delays no row beyond the first round after it.

    round = SweepRound.begin(clients, "outbox")
    due = [row for row in rows if round.is_due(row.created, stale_s=15)]
    ...
    round.end()

Lost on failure: nothing. A sweep that stops before `end` leaves its rows to the next one.
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
    """One round of a sweep: the times at which it and the last completed round began."""

    name: str
    began: datetime.datetime  # In UTC, without a zone, as Datastore's times are.
    _since: datetime.datetime | None = None
    _is_read: bool = field(default=False, repr=False)

    @classmethod
    def begin(cls, clients: Clients, name: str) -> SweepRound:
        """Begin a round of the sweep of a name."""
        return cls(name, naive_utc(clients.clock.now()))

    @classmethod
    def of(cls, name: str, began: datetime.datetime, since: datetime.datetime | None) -> SweepRound:
        """Return a part of a round that began in another task."""
        return cls(name, began, since, _is_read=True)

    @property
    def since(self) -> datetime.datetime | None:
        """The begin of the last completed round; None: there was none. Read once."""
        if not self._is_read:
            mark = mark_key(self.name).get()
            # A mark from a clock far ahead would hide rows that have become due since.
            is_sound = mark is not None and mark.at <= self.began
            self._since = mark.at if is_sound else None
            self._is_read = True
        return self._since

    def is_due(self, created: datetime.datetime, *, stale_s: float) -> bool:
        """Return whether this round must wake a row.

        Args:
            created: In UTC, without a zone.
            stale_s: The age at which its own process should have handled it.
        """
        age_s = (self.began - created).total_seconds()
        before_s: float | None = None
        if age_s >= PATIENT_AFTER_S and self.since is not None:  # Younger rows cost no read.
            before_s = (self.since - created).total_seconds()
        return Backoff(stale_s).is_due(age_s, before_s)

    def end(self) -> None:
        """Record that all due rows were woken, or handed to tasks that will wake them.

        Costs nothing if no row was old enough to need the mark.
        """
        if self._is_read and self.since != self.began:
            SweepMark(key=mark_key(self.name), at=self.began).put()
