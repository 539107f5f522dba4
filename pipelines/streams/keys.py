"""What is kept of a key between two batches, and what a batch of its records leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.streams.records import NEVER


class SetTimer(NamedTuple):
    """A timer that waits.

    `hold` is the time at which it holds back the watermark of what its computation writes; a late
    one was set by a late record, holds nothing back, and what it writes is late.
    """

    at: int
    is_wall: bool
    hold: int
    is_late: bool

    def is_due(self, watermark: int, now: int) -> bool:
        return self.at <= (now if self.is_wall else watermark)


class KeyState(NamedTuple):
    """A key: its state as text, its timers by tag, and the watermark at which it is forgotten."""

    text: str = ""
    timers: dict[str, SetTimer] = {}  # noqa: RUF012 - Never changed in place.
    expires: int = NEVER

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.timers

    @property
    def hold(self) -> int:
        """Return the time at which the key holds back the watermark."""
        return min((each.hold for each in self.timers.values() if not each.is_late), default=NEVER)

    @property
    def due(self) -> int:
        """Return the watermark at which there is something to do."""
        ats = (each.at for each in self.timers.values() if not each.is_wall)
        return min(min(ats, default=NEVER), self.expires)

    @property
    def wall(self) -> int:
        """Return the time of day at which there is something to do."""
        return min((each.at for each in self.timers.values() if each.is_wall), default=NEVER)


NOTHING = KeyState()
# The stream of timers that were dead letters and fire again: [tag, time, is it of the clock].
DEAD_TIMERS = ""


class Input(NamedTuple):
    """A record on its way to a key; `id` is empty for what needs no deduplication."""

    key: str
    value: Any
    at: int
    stream: str
    is_late: bool = False
    id: str = ""


class Target(NamedTuple):
    """Where a production goes: to a computation, under a key; or nowhere, for it has no key."""

    computation: str
    key: str
    error: str = ""


class Production(NamedTuple):
    """A record that a hook has written: its value as text, and who gets it."""

    stream: str
    text: str
    at: int
    is_late: bool
    targets: tuple[Target, ...]


class Failure(NamedTuple):
    """A record or a timer whose hook has raised too often."""

    key: str
    what: Input | tuple[str, SetTimer]
    error: str


@dataclass
class Counts:
    """What a batch did, in numbers."""

    records: int = 0  # Worked on, late ones included unless they were dropped.
    late: int = 0  # Dropped.
    timers: int = 0
    dead: int = 0
    produced: int = 0


@dataclass
class Effects:
    """What a batch leads to.

    Attributes:
        keys: The keys that were touched, as they are now.
        taken: How many of the inputs were worked on, from the first one on.
        fired: The timers that fired, in order, each with its key.
    """

    keys: dict[str, KeyState] = field(default_factory=dict)
    productions: list[Production] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fired: list[tuple[str, SetTimer]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    taken: int = 0
