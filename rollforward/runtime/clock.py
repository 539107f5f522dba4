"""Clocks: time as a dependency that is passed in."""

from __future__ import annotations

import datetime
import time
from typing import Protocol

# A time further ahead is from a wrong clock.
CLOCK_SKEW_S = 60.0


class Clock(Protocol):
    """Tells the time and waits; tests own theirs."""

    def now(self) -> datetime.datetime:
        """Return the time of day, aware, in UTC. It may jump: never a proof of order."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def naive_utc(at: datetime.datetime) -> datetime.datetime:
    """Return a time as ndb stores it: in UTC, without its zone."""
    return at.astimezone(datetime.UTC).replace(tzinfo=None)
