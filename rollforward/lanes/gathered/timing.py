"""The times of windows: when the calls of a key run, by the times of the first and the last one."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Protocol

MAX_WAIT_S = 7 * 24 * 3600.0


class Timing(Protocol):
    """A rule for the ends of windows.

    Attributes:
        first_s: Seconds after which a window may end that begins with a call now.
        memory_s: Seconds for which the begin of a run matters to the next one.
        is_dropped_while_running: Whether a call during a run is dropped.
    """

    @property
    def first_s(self) -> float: ...

    @property
    def memory_s(self) -> float: ...

    @property
    def is_dropped_while_running(self) -> bool: ...

    def due(
        self,
        opened: datetime.datetime,
        called: datetime.datetime,
        began: datetime.datetime | None,
    ) -> datetime.datetime:
        """Return when a window ends, aware.

        Args:
            opened, called: The times of its first call, and of the last one so far.
            began: When the last run of the key began; None: long ago.
        """
        ...


@dataclass(frozen=True)
class Debounce:
    """A window ends when no call came for a while, and not later than `max_s` after the first."""

    wait_s: float
    max_s: float

    def __post_init__(self) -> None:
        _check("wait_s", self.wait_s)
        _check("max_s", self.max_s, self.wait_s)

    memory_s = 0.0
    is_dropped_while_running = False

    @property
    def first_s(self) -> float:
        return self.wait_s

    def due(
        self,
        opened: datetime.datetime,
        called: datetime.datetime,
        began: datetime.datetime | None,
    ) -> datetime.datetime:
        return min(called + _seconds(self.wait_s), opened + _seconds(self.max_s))


@dataclass(frozen=True)
class Throttle:
    """A window ends with its first call, `every_s` or more after the last run began."""

    every_s: float

    def __post_init__(self) -> None:
        _check("every_s", self.every_s)

    first_s = 0.0
    is_dropped_while_running = False

    @property
    def memory_s(self) -> float:
        return self.every_s

    def due(
        self,
        opened: datetime.datetime,
        called: datetime.datetime,
        began: datetime.datetime | None,
    ) -> datetime.datetime:
        return opened if began is None else max(opened, began + _seconds(self.every_s))


@dataclass(frozen=True)
class Unique:
    """A window ends with its first call, as soon as no run of the key is at work."""

    is_dropped_while_running: bool

    first_s = 0.0
    memory_s = 0.0

    def due(
        self,
        opened: datetime.datetime,
        called: datetime.datetime,
        began: datetime.datetime | None,
    ) -> datetime.datetime:
        return opened


def _check(name: str, seconds: float, wait_s: float = 0.0) -> None:
    if not 0 < seconds <= MAX_WAIT_S or seconds < wait_s:
        lower = f"at least wait_s, {wait_s:g}" if wait_s else "above 0"
        raise ValueError(f"{name} must be {lower}, and at most {MAX_WAIT_S:g}, got {seconds}")


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
