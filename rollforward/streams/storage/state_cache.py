"""Cache of an interval's state rows: bounded in bytes, evicted by next use.

It is valid until another worker commits with the interval. The version of the interval's row shows
that, even when a worker returns to the interval (`CachedInterval`). So no cached row is ever
revalidated.

A row with a timer is needed at the latest when that is due. So rows without timers are evicted
first, then rows with the latest timers; the least recently used row breaks ties. Plain LRU would
evict rows that the end of a window needs next.

Source: T. Akidau and others, "MillWheel", 2013, 8.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rollforward.streams.model.key_state import SlabBody
from rollforward.streams.storage.remote_calls import Key, StoredRow

ROW_BYTES = 200
# Eviction goes down to this share of the limit, so that it does not run for each row.
TARGET_SHARE = 0.75


class RowCache(dict[Key, StoredRow]):
    """Rows of states, with their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._evicted: set[Key] = set()
        self._reread = 0
        self._sizes: dict[Key, int] = {}
        self._used: dict[Key, int] = {}
        self._round = 0

    def __setitem__(self, key: Key, row: StoredRow) -> None:
        super().__setitem__(key, row)
        if key in self._evicted:
            self._evicted.discard(key)
            self._reread += 1
        size = ROW_BYTES + size_of(row.body)
        self.bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def size(self, key: Key) -> int:
        """Return the size of a cached row."""
        return self._sizes[key]

    def drop(self, key: Key) -> None:
        """Evict a row, if it is cached."""
        self.pop(key, None)
        self.bytes -= self._sizes.pop(key, 0)
        self._used.pop(key, None)

    def clear(self) -> None:
        super().clear()
        self.bytes = 0
        self._sizes.clear()
        self._used.clear()
        self._evicted.clear()

    def take_reread(self) -> int:
        """Return how many rows were read again after their eviction, since the last call."""
        reread, self._reread = self._reread, 0
        return reread

    def touch(self, keys: Iterable[Key]) -> None:
        """Note that rows are used."""
        self._round += 1
        self._used.update(dict.fromkeys(keys, self._round))

    def evict(self, max_bytes: int, next_use: Callable[[Key], int]) -> None:
        """Evict rows, if all of them together are too large.

        Args:
            next_use: Returns the time at which a row is due.
        """
        if self.bytes <= max_bytes:
            return
        for key in sorted(self, key=lambda key: (-next_use(key), self._used.get(key, 0))):
            if self.bytes <= TARGET_SHARE * max_bytes:
                return
            self.drop(key)
            self._evicted.add(key)


def size_of(body: Any) -> int:
    """Return the approximate size of a row as text, in bytes."""
    return body.size if isinstance(body, SlabBody) else len(body)
