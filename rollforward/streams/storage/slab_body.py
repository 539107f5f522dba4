"""Body of a slab: the states of many keys, which share a row.

A commit that changes a few of the keys writes all of them. So the size is not counted anew: it
follows from the changed keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rollforward.streams.model.key_state import KeyState
from rollforward.streams.model.state import TIMER_BYTES


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

    def with_changed(self, changed: Collection[str], successor: SlabBody) -> SlabBody:
        """Return a successor, in which only some keys have changed, with the size known."""
        size = self.size
        for key in changed:
            for body, sign in ((self, -1), (successor, 1)):
                if key in body.keys:
                    size += sign * size_of_state(key, body.keys[key])
        successor._size = size
        return successor


def size_of_state(key: str, state: KeyState) -> int:
    """Return the approximate size of a key with its state as text, in bytes."""
    return len(key) + len(state.text) + TIMER_BYTES * (1 + len(state.timers))
