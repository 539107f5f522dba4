"""State of a key between two bundles: text, timers, expiry; and a slab, in which keys share a row.

A commit that changes a few keys of a slab writes all of them. So the size of a slab is not counted
anew: it follows from the changed keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.model.state import TIMER_BYTES

T = TypeVar("T", bound=tuple[Any, ...])


def build_tuples(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Build named tuples from tuples that have all of their fields, without a call for each."""
    return map(tuple.__new__, repeat(kind), rows)


class SetTimer(NamedTuple):
    """A pending timer, or a hold of the watermark.

    `hold`: the event time at which it holds the watermark of its computation's outputs. A late
    timer was set by a late record: it holds nothing, and its outputs are late.

    A hold (`Context.hold`) is stored as a timer of the end of the inputs that calls no hook. So
    code that does not know holds keeps them, too.
    """

    at_ms: int
    is_processing_time: bool
    hold: int
    is_late: bool

    @property
    def is_hold(self) -> bool:
        """Whether this calls no hook; no timer can be set so late."""
        return self.at_ms == FOREVER

    def is_due(self, watermark: int, now_ms: int) -> bool:
        return self.at_ms <= (now_ms if self.is_processing_time else watermark)


class Times(NamedTuple):
    """Times of a key: its hold of the watermark, and when it is due by either clock.

    `timers`: the number of its timers, without its holds.
    """

    hold: int
    due: int
    processing_due: int
    timers: int


class _Stored(NamedTuple):
    text: str = ""
    timers: dict[str, SetTimer] = {}  # noqa: RUF012 - Never changed in place.
    expires: int = NEVER
    version: int = 1


class KeyState(_Stored):
    """A key: its state as text, its timers by tag, the watermark at which it expires, and the
    version of the computation that has written the text.

    A key shares its row with many others, and the row is written whenever one of them changes. So
    derived values are computed once. `stored`: the key's name, and its JSON in that row.
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
            times = self._times = self._compute_times()
        return times

    def _compute_times(self) -> Times:
        hold, due, processing_due, timers = NEVER, self.expires, NEVER, 0
        for at, is_processing_time, paused, is_late in self.timers.values():
            timers += at != FOREVER
            if is_processing_time:
                processing_due = min(processing_due, at)
            elif at < due:
                due = at
            if paused < hold and not is_late:
                hold = paused
        return Times(hold, due, processing_due, timers)


NOTHING = KeyState()


class _SlabFields(NamedTuple):
    keys: Mapping[str, KeyState]
    large: frozenset[str] = frozenset()


class SlabBody(_SlabFields):
    """Keys with their states; the states of `large` keys are in their own rows."""

    _size: int | None = None

    @property
    def size(self) -> int:
        """The approximate size as text, in bytes, computed once."""
        size = self._size
        if size is None:
            size = sum(size_of_state(key, state) for key, state in self.keys.items())
            self._size = size
        return size

    def with_changed(
        self, changed: Collection[str], keys: Mapping[str, KeyState], large: Collection[str] = ()
    ) -> SlabBody:
        """Return a slab of other keys, of which only some differ from this one's."""
        body = SlabBody(keys, frozenset(large))
        body._size = self.size + sum(
            sign * size_of_state(key, states[key])
            for states, sign in ((self.keys, -1), (keys, 1))
            for key in changed
            if key in states
        )
        return body


def size_of_state(key: str, state: KeyState) -> int:
    """Return the approximate size of a key with its state as text, in bytes."""
    return len(key) + len(state.text) + TIMER_BYTES * (1 + len(state.timers))
