"""A reader walks through a list and back while rows come and go: in memory, and in Datastore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.paging import Edge, Entry, KeyRange, Listing, Merged, QueryRange, Range
from rollforward.paging import listing as listings
from tests.infra.runs import sampling
from tests.infra.runs.soak import IS_SOAK
from tests.infra.world import World
from tests.rollforward.paging.model import NAMES, TOKENS, History, MemoryStore, SortedRange

pytestmark = pytest.mark.fast

HISTORIES = 10_000
STORED_HISTORIES = 2_000 if IS_SOAK else 60


@sampling.long
def test_a_row_is_seen_exactly_once_in_10_000_random_histories() -> None:
    """I3: forward and back, any page sizes, one range or several, clocks that jump back."""
    play_all(range(HISTORIES))


@sampling.long
def test_a_reader_turns_round_at_any_page_of_10_000_random_histories() -> None:
    """I3: each page is the rows that lie beyond the last one there and then, and no others."""
    for seed in range(HISTORIES):
        History(seed).wander()


def play_all(seeds: Iterable[int], **how: Any) -> None:
    for seed in seeds:
        play(seed, **how)


def play(seed: int, **how: Any) -> None:
    try:
        History(seed, **how).play()
    except AssertionError as error:
        raise AssertionError(f"history {seed}: {error}") from error


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_list_that_stands_still_is_walked_through(
    size: int, descending: bool, parts: int
) -> None:
    """I2: each page size from 1 to n + 1, in both directions: the same pages there and back."""
    store, rows = MemoryStore(parts), [f"{number:02d}" for number in range(7)]
    for number, row in enumerate(rows):
        store.insert(number % parts, row)
    listing = Listing("rows", descending=descending)

    pages = [listing.page(TOKENS, store.rows(), page_size=size)]
    while token := pages[-1].next_page_token:
        pages.append(listing.page(TOKENS, store.rows(), page_size=size, page_token=token))
    back = [pages[-1]]
    while token := back[-1].previous_page_token:
        back.append(listing.page(TOKENS, store.rows(), page_size=size, page_token=token))

    assert [row for page in pages for row in page.items] == sorted(rows, reverse=descending)
    assert [page.items for page in back] == [page.items for page in reversed(pages)]
    assert [len(page.items) for page in pages[:-1]] == [size] * (len(pages) - 1)


# What must not pass


class OffsetRange(SortedRange):
    """Pages by number of rows: what the rows before a page do moves it."""

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[str]]]:
        found = self.positions[::-1] if backward else self.positions
        skipped = getattr(self, "skipped", 0) if edge else 0
        self.skipped = skipped + limit - 1
        return lambda: [Entry(each, each) for each in found[skipped:][:limit]]


class ShyMerged(Merged[str]):
    """Reads each range once, and no further when one of them has been used up."""

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[str]]]:
        found = super().start(edge, limit, backward=backward)()
        return lambda: found[: max(2, limit // 2)]


@dataclass
class Broken:
    """A store whose ranges are broken."""

    kind: type[SortedRange] = SortedRange
    merged: Any = Merged

    def __call__(self, parts: int) -> MemoryStore:
        store = MemoryStore(parts)
        store.parts = [self.kind() for _ in range(parts)]
        single = store.rows

        def rows() -> Range[str]:
            return self.merged(*store.parts) if parts > 1 else single()

        store.rows = rows  # type: ignore[method-assign]
        return store


@pytest.mark.parametrize(
    "how", [{"kind": OffsetRange}, {"merged": ShyMerged}], ids=["offset", "shy"]
)
def test_a_broken_range_is_found(how: dict[str, Any]) -> None:
    """Pages by offset skip and repeat rows, and a merge that stops early ends its list early."""
    with pytest.raises(AssertionError, match="history"):
        play_all(range(500), make_store=Broken(**how))


def test_a_page_that_begins_at_the_row_it_should_begin_beyond_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row at the border of two pages would be on both."""
    edges = listings._edges
    monkeypatch.setattr(
        listings,
        "_edges",
        lambda *given: tuple(each and Edge(each.position, True) for each in edges(*given)),
    )
    with pytest.raises(AssertionError, match="history"):
        play_all(range(100))


# In Datastore


class PagedRow(ndb.Model):
    """A row of a list: its place is its key's name, and the value of two properties."""

    place = ndb.StringProperty()
    places = ndb.StringProperty(repeated=True)


class PagedShelf(ndb.Model):
    """What has rows of the same kind and name below it."""


@dataclass
class Stored:
    """Rows in Datastore, each range under a prefix of its own.

    Beside each stand rows of other lists: with the same name below a parent and in another
    namespace, with the same position under another prefix, and without any place.
    """

    tag: str
    by: str
    parts: int = 1

    def insert(self, part: int, position: str) -> None:
        place = f"{self._prefix(part)}{position}"
        places = [f"other|{position}", place]
        ndb.put_multi(
            [
                PagedRow(id=place, place=place, places=places),
                PagedRow(id=place, parent=ndb.Key(PagedShelf, "a")),
                PagedRow(id=place, namespace=f"{self.tag}-other", place=place, places=places),
                PagedRow(id=f"{place[:-1]}~", place=None),
                PagedRow(id=f"{self.tag}|{part}{position}", place=f"{self.tag}|{part}{position}"),
            ][: 5 if self.by != "key" else 3]
        )

    def delete(self, part: int, position: str) -> None:
        ndb.Key(PagedRow, f"{self._prefix(part)}{position}").delete()

    def rows(self) -> Range[Any]:
        ranges = [Rows(self._range(self._prefix(part))) for part in range(self.parts)]
        return ranges[0] if self.parts == 1 else Merged(*ranges)

    def _prefix(self, part: int) -> str:
        return f"{self.tag}|{part}|"

    def _range(self, prefix: str) -> Range[Any]:
        if self.by == "key":
            return KeyRange(PagedRow, prefix)
        by = PagedRow.place if self.by == "property" else PagedRow.places
        return QueryRange(PagedRow.query(), by, prefix=prefix)


@dataclass
class Rows(Range[str]):
    """A range of entities, as their positions."""

    range: Range[Any]

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[str]]]:
        wait = self.range.start(edge, limit, backward=backward)
        return lambda: [Entry(each.position, each.position) for each in wait()]


@pytest.mark.parametrize("by", ["key", "property", "repeated"])
def test_a_row_is_seen_exactly_once_in_datastore(world: World, by: str) -> None:
    """I3: the same histories over ranges of keys, of a property, and of one of its values."""
    # By key the Datastore emulator sorts by UTF-16: see KeyRange.
    names = NAMES[:-2] if by == "key" else NAMES
    with world.context():
        for seed in range(STORED_HISTORIES // 3):
            store = partial(Stored, f"{by}{seed:05d}", by)
            play(seed, make_store=store, names=names)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("by", ["key", "prefix", "property"])
def test_letters_of_all_planes_stand_in_a_list(world: World, by: str, descending: bool) -> None:
    """I3: each row once, there and back, whatever letters it begins with, and behind a prefix."""
    texts = [*NAMES, "a", "z", "\xe9", "\u5ead", "\uff76\uff85", "\uffff", "\U0010fffe"]
    listing = Listing("rows", page_size=2, descending=descending)
    with world.context():
        for text in texts:
            Stored("t", by).insert(0, text)
        rows = Rows(
            {
                "key": KeyRange(PagedRow, "t|0|"),
                "prefix": QueryRange(PagedRow.query(), PagedRow.place, prefix="t|0|"),
                "property": QueryRange(PagedRow.query(PagedRow.place > ""), PagedRow.place),
            }[by]
        )

        pages = [listing.page(TOKENS, rows)]
        while token := pages[-1].next_page_token:
            pages.append(listing.page(TOKENS, rows, page_token=token))
        back = [pages[-1]]
        while token := back[-1].previous_page_token:
            back.append(listing.page(TOKENS, rows, page_token=token))

    seen = [row for page in pages for row in page.items]
    assert Counter(
        row.removeprefix("t|0|") for row in seen if "t|0|" in row or by != "property"
    ) == Counter(texts)
    assert [page.items for page in back] == [page.items for page in reversed(pages)]
