"""Several ranges, read as one: a merge that reads little more than it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rollforward.paging.ranges import Edge, Entry, Range

T = TypeVar("T")

MAX_RANGES = 100
# Entries that are read of each range beyond its share: rows are not spread quite evenly.
SPARE = 2
_DIGITS = 2


class Merged(Range[T]):
    """Ranges whose positions can be compared, in one order.

    For a list whose writers would all write at the end of one index: about 500 writes a second
    are what neighbours in an index take. Each row goes to one of several ranges, by a hash of it.

    A position of the merged list is the number of its range and the position there, so rows of two
    ranges may have the same one.
    """

    def __init__(self, *ranges: Range[T]) -> None:
        """Merge some ranges, in an order that is the same for each page."""
        if not 0 < len(ranges) <= MAX_RANGES:
            raise ValueError(f"ranges must be 1 to {MAX_RANGES}, got {len(ranges)}")
        self._ranges = ranges

    @property
    def order(self) -> str:
        return "; ".join(range_.order for range_ in self._ranges)

    @staticmethod
    def position(number: int, position: str) -> str:
        """Return the position that a row of one of the ranges has in the merged list.

        Args:
            number: The range's number, from 0 on.
        """
        return f"{number:0{_DIGITS}d}{position}"

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[T]]]:
        share = min(limit, limit // len(self._ranges) + SPARE)
        readers = [
            _RangeReader(number, source, _edge_in(number, edge, backward=backward), share, backward)
            for number, source in enumerate(self._ranges)
        ]
        return lambda: _merge(readers, limit, backward=backward)


class _RangeReader(Generic[T]):
    """Reads one range, a share at a time; the first share is on its way when this is made."""

    def __init__(
        self, number: int, range_: Range[T], edge: Edge | None, share: int, backward: bool
    ) -> None:
        self.number = number
        self._range = range_
        self._share = share
        self._backward = backward
        self._has_ended = False
        self._read: deque[Entry[T]] = deque()
        self._last: Edge | None = None
        self._wait = range_.start(edge, share, backward=backward)

    def head(self) -> tuple[str, int] | None:
        """Return the sort key of the next entry; None: there is no further one."""
        if not self._read and not self._has_ended:
            self._take()
        return (self._read[0].position, self.number) if self._read else None

    def pop(self) -> Entry[T]:
        """Return the next entry, as one of the merged list."""
        entry = self._read.popleft()
        return Entry(Merged.position(self.number, entry.position), entry.item)

    def _take(self) -> None:
        if self._last is not None:
            self._wait = self._range.start(self._last, self._share, backward=self._backward)
        entries = self._wait()
        self._has_ended = len(entries) < self._share
        self._read.extend(entries)
        self._last = Edge(entries[-1].position) if entries else None


def _merge(readers: Sequence[_RangeReader[T]], limit: int, *, backward: bool) -> list[Entry[T]]:
    merged: list[Entry[T]] = []
    choose = max if backward else min
    while len(merged) < limit:
        heads = {reader: head for reader in readers if (head := reader.head()) is not None}
        if not heads:
            break
        merged.append(choose(heads, key=heads.__getitem__).pop())
    return merged


def _edge_in(number: int, edge: Edge | None, *, backward: bool) -> Edge | None:
    """Return where one of the ranges is read on, beyond an edge of the merged list."""
    if edge is None:
        return None
    at, position = int(edge.position[:_DIGITS]), edge.position[_DIGITS:]
    if number == at:
        return Edge(position, edge.inclusive)
    # Of rows with the same position the one in the lower range stands first.
    return Edge(position, inclusive=number < at if backward else number > at)
