"""Clocks: time as a dependency that is passed in."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import Protocol

# A time further ahead is from a wrong clock.
CLOCK_SKEW_S = 60.0
_SORTABLE_CHARS = 21


class Clock(Protocol):
    """Tells the time and waits; tests own theirs."""

    def now(self) -> datetime.datetime:
        """Return the time of day, aware, in UTC. It may jump: never a proof of order."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...


class SystemClock(Clock):
    """The machine's clock."""

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True)
class Timeout:
    """Some seconds from a time on, by a clock that may be put back: then they are over, too."""

    clock: Clock
    began: datetime.datetime
    seconds: float

    @classmethod
    def of(cls, clock: Clock, seconds: float) -> Timeout:
        """Return a time-out that begins now."""
        return cls(clock, clock.now(), seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return not 0 <= (self.clock.now() - self.began).total_seconds() < self.seconds


@dataclass(frozen=True)
class TimeRange:
    """A time range: from a time on, and before another; None: no bound."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

    def __bool__(self) -> bool:
        """Whether it has a bound."""
        return self.since is not None or self.until is not None

    def has(self, at: datetime.datetime) -> bool:
        """Return whether a time is in it."""
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


ANY_TIME = TimeRange()


def naive_utc(at: datetime.datetime) -> datetime.datetime:
    """Return a time as ndb stores it: in UTC, without its zone."""
    return at.astimezone(datetime.UTC).replace(tzinfo=None)


def utc_at(at_s: float) -> datetime.datetime:
    """Return an aware time of some seconds since 1970.

    >>> utc_at(1.5).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


def aware_utc(at: datetime.datetime | None) -> datetime.datetime | None:
    """Return a stored time with its zone."""
    return None if at is None else at.replace(tzinfo=datetime.UTC)


def age_s(clock: Clock, at: datetime.datetime) -> float:
    """Return the age of a stored time, at least 0: another machine's clock may be ahead."""
    return max(0.0, (naive_utc(clock.now()) - at).total_seconds())


def time_text(at: datetime.datetime) -> str:
    """Return a time as text that sorts in order of time.

    >>> time_text(datetime.datetime(2030, 5, 1, 12))
    '20300501T120000000000'
    """
    text = at.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.replace("-", "").replace(":", "").replace(".", "")


def parse_time(text: str) -> datetime.datetime:
    """Return the time that `time_text` was given, naive as ndb's are.

    Raises:
        ValueError: the text has another form.
    """
    digits = text[:8] + text[9:]
    if len(text) != _SORTABLE_CHARS or text[8] != "T" or not (text.isascii() and digits.isdigit()):
        raise ValueError(f"must be like 20300501T120000000000, got {text!r:.60}")
    # strptime takes five times as long, and a fold reads the time of each update.
    return datetime.datetime.fromisoformat(f"{text[:15]}.{text[15:]}")
