"""A list in memory, its readers, and what happens to it while they walk."""

from __future__ import annotations

import bisect
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollforward.paging import Edge, Entry, Listing, Merged, Page, PageTokens, Range, order_key

# Of which names begin: also a letter of each kind of UTF-16 and UTF-8, up to the last one.
NAMES = ("ada", "bob", "花子", "\ud7a3", "\ue000", "\uff21da", "\U0001f600", "\U0010ffff")
KEY = "a-key-of-some-length-for-these-tests-0123456789"
TOKENS = PageTokens([KEY])


class Store(Protocol):
    """Where rows are: a position each, in one of several ranges."""

    def insert(self, part: int, position: str) -> None: ...

    def delete(self, part: int, position: str) -> None: ...

    def rows(self) -> Range[Any]: ...


class SortedRange(Range[str]):
    """Positions in a sorted list; a row is its own position."""

    def __init__(self) -> None:
        self.positions: list[str] = []

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[str]]]:
        found = self.positions
        if edge is not None and not backward:
            cut = bisect.bisect_left if edge.inclusive else bisect.bisect_right
            found = found[cut(found, edge.position) :]
        if edge is not None and backward:
            cut = bisect.bisect_right if edge.inclusive else bisect.bisect_left
            found = found[: cut(found, edge.position)]
        found = found[: -limit - 1 : -1] if backward else found[:limit]
        return lambda: [Entry(each, each) for each in found]


class Unread(Range[str]):
    """A range that nobody may read."""

    def start(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("rows were read")


class MemoryStore:
    """Ranges in memory, read as one list."""

    def __init__(self, parts: int) -> None:
        self.parts = [SortedRange() for _ in range(parts)]

    def insert(self, part: int, position: str) -> None:
        bisect.insort(self.parts[part].positions, position)

    def delete(self, part: int, position: str) -> None:
        self.parts[part].positions.remove(position)

    def rows(self) -> Range[Any]:
        return self.parts[0] if len(self.parts) == 1 else Merged(*self.parts)


def filled(rows: int = 9) -> MemoryStore:
    store = MemoryStore(1)
    for number in range(rows):
        store.insert(0, f"{number:02d}")
    return store


@dataclass
class History:
    """A random history: a reader walks to the end and back, and rows come and go meanwhile."""

    seed: int
    make_store: Callable[[int], Store] = MemoryStore
    max_rows: int = 14
    names: Sequence[str] = NAMES

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.parts = self.chance.choice((1, 1, 2, 3, 5))
        self.store = self.make_store(self.parts)
        self.listing = Listing("rows", descending=self.chance.random() < 0.5)
        self.living: dict[str, int] = {}
        self.clock = 0

    def play(self) -> None:
        """Play it; raise AssertionError if a walk missed a row or saw one twice."""
        for _ in range(self.chance.randrange(self.max_rows + 1)):
            self._insert()
        last, seen = self._walk(self._page(None), set(self.living), is_back=False)
        if last.previous_page_token is None:
            return
        self._change()
        if last.items:  # The page was seen; back from it lies what stands before its first row.
            beyond = {row for row in self.living if self._is_before(row, last.items[0])}
        else:
            beyond = {row for row in self.living if not self._is_before(seen[-1], row)}
        self._walk(self._page(last.previous_page_token), beyond, is_back=True)

    def wander(self, steps: int = 12) -> None:
        """Turn round at any page; raise AssertionError if one is not what lies beyond the last."""
        for _ in range(self.chance.randrange(self.max_rows + 1)):
            self._insert()
        page, edge = self._page(None), Edge("")
        for _ in range(steps):
            is_back = page.next_page_token is None or self.chance.random() < 0.4
            token = page.previous_page_token if is_back else page.next_page_token
            if token is None:
                return
            if page.items:
                edge = Edge(page.items[0 if is_back else -1])
            self._change()
            size = self.chance.choice((1, 2, 3, 5))
            page = self.listing.page(TOKENS, self.store.rows(), page_token=token, page_size=size)
            beyond = self._beyond(edge, is_back=is_back)
            wanted = beyond[-size:] if is_back else beyond[:size]
            assert list(page.items) == wanted, f"beyond {edge}: {page.items}, not {wanted}"
            if not page.items:  # It is the way back that shows the row at the edge again.
                edge = Edge(edge.position, inclusive=not edge.inclusive)

    def _beyond(self, edge: Edge, *, is_back: bool) -> list[str]:
        """Return the rows on one side of an edge, in the order of the list."""
        rows = sorted(self.living, reverse=self.listing.descending)
        return [
            row
            for row in rows
            if (row == edge.position and edge.inclusive)
            or (
                self._is_before(row, edge.position)
                if is_back
                else self._is_before(edge.position, row)
            )
        ]

    def _walk(
        self, page: Page[str], there: set[str], *, is_back: bool
    ) -> tuple[Page[str], list[str]]:
        """Walk from a page to the end of the list; return the last page, and what was seen."""
        seen: list[str] = []
        while True:
            seen += reversed(page.items) if is_back else page.items
            token = page.previous_page_token if is_back else page.next_page_token
            if token is None:
                break
            there -= self._change()
            page = self._page(token)
        assert len(seen) == len(set(seen)), f"seen twice: {seen}"
        assert there <= set(seen), f"skipped: {sorted(there - set(seen))}"
        descends = self.listing.descending != is_back
        assert seen == sorted(seen, reverse=descends), f"out of order: {seen}"
        return page, seen

    def _page(self, token: str | None) -> Page[str]:
        size = self.chance.choice((1, 1, 2, 3, 5, 8, len(self.living) + 1))
        return self.listing.page(TOKENS, self.store.rows(), page_token=token, page_size=size)

    def _is_before(self, row: str, other: str) -> bool:
        return row > other if self.listing.descending else row < other

    def _change(self) -> set[str]:
        """Insert and delete some rows; return those that are gone."""
        gone = set()
        for _ in range(self.chance.choice((0, 0, 1, 2, 4))):
            if self.chance.random() < 0.45 and self.living:
                row = self.chance.choice(list(self.living))
                self.store.delete(self.living.pop(row), row)
                gone.add(row)
            else:
                self._insert()
        return gone

    def _insert(self) -> None:
        """Insert a row at a time that mostly moves on, and sometimes jumps back (I4)."""
        self.clock = max(0, self.clock + self.chance.choice((1, 1, 1, 2, 5, -7, -40)))
        row = order_key(self.clock, self.chance.choice(self.names), self.seed % 7)
        if row not in self.living:
            self.living[row] = zlib.crc32(row.encode()) % self.parts
            self.store.insert(self.living[row], row)
