"""What a worker keeps in memory of the rows of states: bounded in bytes, and evicted by next use.

It is valid as long as nobody else has committed with the interval, and for no longer: the owner of
an interval knows that by its version, also when it comes back to it (`CachedInterval`). So no row
is ever asked whether it has changed.

A row with a timer is used when that is due, if not sooner. So the rows whose timers are furthest
away go first, those without a timer before all, and among them those that were not used for
longest. A cache that asks for the last use only would drop what a window's end needs next.

Source: T. Akidau and others, "MillWheel", 2013, 8.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rollforward.streams.model.key_state import NOTHING
from rollforward.streams.storage.remote_calls import Key, StoredRow
from rollforward.streams.storage.schema import SlabBody

ROW_BYTES, TIMER_BYTES = 200, 50
# Evicted down to this part of what is allowed, so that it is not done for each row.
KEPT = 0.75


class RowCache(dict[Key, StoredRow]):
    """Rows of states that were read or written, with their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._sizes: dict[Key, int] = {}
        self._used: dict[Key, int] = {}
        self._round = 0

    def __setitem__(self, key: Key, found: StoredRow) -> None:
        super().__setitem__(key, found)
        size = ROW_BYTES + size_of(found.body)
        self.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def size(self, key: Key) -> int:
        """Return the size of a row that is known."""
        return self._sizes[key]

    def drop(self, key: Key) -> None:
        """Forget a row, if it is known."""
        self.pop(key, None)
        self.bytes -= self._sizes.pop(key, 0)
        self._used.pop(key, None)

    def clear(self) -> None:
        super().clear()
        self.bytes = 0
        self._sizes.clear()
        self._used.clear()

    def touch(self, keys: Iterable[Key]) -> None:
        """Note that rows are used."""
        self._round += 1
        self._used.update(dict.fromkeys(keys, self._round))

    def evict(self, max_bytes: int, next_use: Callable[[Key], int]) -> None:
        """Forget rows, if all of them are too large.

        Args:
            next_use: Returns the time at which a row has something to do.
        """
        if self.bytes <= max_bytes:
            return
        for key in sorted(self, key=lambda key: (-next_use(key), self._used.get(key, 0))):
            if self.bytes <= KEPT * max_bytes:
                return
            self.drop(key)


def size_of(body: Any) -> int:
    """Return about how many bytes a row has, as text."""
    if not isinstance(body, SlabBody):
        return len(body)
    texts, timers, *_ = zip(NOTHING, *body.keys.values(), strict=True)
    return (
        sum(map(len, body.keys))
        + sum(map(len, texts))
        + TIMER_BYTES * (len(body.keys) + sum(map(len, timers)))
    )
