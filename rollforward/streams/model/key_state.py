"""What is kept of a key between two batches, and what a batch of its records leads to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from rollforward.streams.model.records import NEVER

T = TypeVar("T", bound=tuple[Any, ...])


def build_tuples(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Make named tuples of tuples that have all of their fields, without a call for each."""
    return map(tuple.__new__, repeat(kind), rows)


class SetTimer(NamedTuple):
    """A timer that waits.

    `hold` is the time at which it holds back the watermark of what its computation writes; a late
    one was set by a late record, holds nothing back, and what it writes is late.
    """

    at_ms: int
    is_processing_time: bool
    hold: int
    is_late: bool

    def is_due(self, watermark: int, now: int) -> bool:
        return self.at_ms <= (now if self.is_processing_time else watermark)


class Times(NamedTuple):
    """When a key holds back the watermark, and at which watermark and time of day it has work."""

    hold: int
    due: int
    processing_due: int


class _Kept(NamedTuple):
    text: str = ""
    timers: dict[str, SetTimer] = {}  # noqa: RUF012 - Never changed in place.
    expires: int = NEVER
    version: int = 1


class KeyState(_Kept):
    """A key: its state as text, its timers by tag, the watermark at which it is forgotten, and the
    version of the computation that has written the text.

    A key stands in a row with many others, which is written whenever one of them changes. So what
    follows from a key is found once; `stored` is how it stands in its row, behind its name.
    """

    stored: tuple[str, str] | None = None
    _times: Times | None = None

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.timers

    @property
    def times(self) -> Times:
        times = self._times
        if times is None:
            times = self._times = self._found_times()
        return times

    def _found_times(self) -> Times:
        hold, due, processing_due = NEVER, self.expires, NEVER
        for at, is_processing_time, paused, is_late in self.timers.values():
            if is_processing_time:
                processing_due = min(processing_due, at)
            elif at < due:
                due = at
            if paused < hold and not is_late:
                hold = paused
        return Times(hold, due, processing_due)


NOTHING = KeyState()
