"""Page sizes, order keys and ranges: what they hold, and what they refuse."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.paging import (
    BadPageSizeError,
    Edge,
    Entry,
    KeyRange,
    Listing,
    Merged,
    QueryRange,
    order_key,
)
from rollforward.paging.listing import DuplicatePositionError
from rollforward.paging.order_keys import number_key, number_of
from rollforward.paging.ranges import UnplacedRowError
from tests.infra.memory_datastore import offline
from tests.infra.world import World
from tests.rollforward.paging.model import TOKENS, MemoryStore, SortedRange, Unread, filled

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


# Sizes


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        *((None, 20), ("", 20), ("0", 20), (0, 20), ("1", 1), (7, 7), ("0" * 19 + "7", 7)),
        *(("100", 100), ("101", 100), ("1" + "0" * 9, 100), ("9" * 10**5, 100)),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_page_size_is_clamped(asked: Any, size: int) -> None:
    """S15: never more rows than the list allows, however large the number."""
    assert Listing("books").bounded(asked) == size


@pytest.mark.parametrize("asked", [None, "", 0, "0", "11"])
def test_a_default_above_the_limit_is_clamped_too(asked: Any) -> None:
    """S15: whoever asks for nothing gets no more rows than who asks for many."""
    assert Listing("books", page_size=50, max_page_size=10).bounded(asked) == 10


@pytest.mark.parametrize("sizes", [{"page_size": 0}, {"page_size": -5}, {"max_page_size": 0}])
def test_a_list_whose_pages_would_be_empty_is_refused(sizes: dict[str, int]) -> None:
    """S15: where it is declared, and not by a list without rows."""
    with pytest.raises(ValueError, match="page_size and max_page_size must be at least 1, got"):
        Listing("books", **sizes)


@pytest.mark.parametrize("asked", ["-1", "NaN", "1e9", "９", "' or 1", " 5", "5 ", "+5", "0x5", -1])
def test_what_is_no_page_size_is_refused(asked: Any) -> None:
    """S15: a sentence for the caller, and no row is read."""
    with pytest.raises(BadPageSizeError):
        Listing("books").page(TOKENS, Unread(), page_size=asked)


# Empty pages


def test_an_empty_page_leads_back() -> None:
    """The rows beyond are gone: the way back is there, and it begins with the last row seen."""
    listing, store = Listing("books"), filled(4)
    first = listing.page(TOKENS, store.rows(), page_size=2)
    for row in ("02", "03"):
        store.delete(0, row)

    empty = listing.page(TOKENS, store.rows(), page_token=first.next_page_token)
    back = listing.page(TOKENS, store.rows(), page_token=empty.previous_page_token)

    assert (empty.items, empty.next_page_token) == ([], None)
    assert back.items == ["00", "01"]
    assert listing.page(TOKENS, MemoryStore(1).rows()).next_page_token is None


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_row_that_comes_where_an_empty_page_began_is_on_one_side_of_it(turns: int) -> None:
    """That is the side that the page was looking at, however often a reader has turned there."""
    listing, store = Listing("books"), filled(0)
    tokens = [_at(listing, store, "05")]
    for turn in range(turns + 1):
        page = listing.page(TOKENS, store.rows(), page_token=tokens[-1])
        token = page.next_page_token if turn % 2 else page.previous_page_token
        assert page.items == []
        assert token is not None
        tokens.append(token)
    store.insert(0, "05")

    shown = [listing.page(TOKENS, store.rows(), page_token=token).items for token in tokens]

    assert shown == [[] if place % 2 else ["05"] for place in range(turns + 2)]


def _at(listing: Listing, store: MemoryStore, row: str) -> str:
    return listing.token_at(TOKENS, store.rows(), row)


# Order keys


def test_order_keys_sort_as_their_parts_do() -> None:
    """I1: by time, then user, then number, whatever a user is called and however long it is."""
    chance = random.Random(1)
    letters = '!"#/|~ aZ\x00\x1f0é花\U0001f600'
    parts = [
        (
            NOON + datetime.timedelta(microseconds=chance.choice((-1, 0, 1, 10**9))),
            "".join(chance.choice(letters) for _ in range(chance.randrange(4))),
            chance.choice((0, 1, 9, 10, 10**16 - 1)),
        )
        for _ in range(600)
    ]

    keys = {each: order_key(*each) for each in parts}

    assert sorted(keys, key=lambda each: keys[each].encode()) == sorted(keys)
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize("hours", [-11, 2, 14])
def test_the_zone_of_a_time_does_not_change_its_place_in_an_order_key(hours: int) -> None:
    """I1: times sort by when they are, whichever zone tells them; a naive one is in UTC."""
    zone = datetime.timezone(datetime.timedelta(hours=hours))
    naive = NOON.replace(tzinfo=None)

    assert order_key(NOON.astimezone(zone)) == order_key(NOON) == order_key(naive)


@pytest.mark.parametrize("part", [-1, 10**16, NOON.replace(year=1969), "\ud800"])
def test_what_has_no_place_in_an_order_key_is_refused(part: Any) -> None:
    """A key that would sort elsewhere is an error where it is made."""
    with pytest.raises(ValueError, match=r"must be 0 to|surrogates"):
        order_key(part)


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 1, 2**63 - 1])
def test_numbers_come_back(number: int) -> None:
    """A property's value is found again, and its text has a fixed width."""
    assert number_of(number_key(number)) == number
    assert len(number_key(number)) == 20


# Ranges


class PagedBook(ndb.Model):
    shelf = ndb.StringProperty()
    year = ndb.IntegerProperty()
    bought = ndb.DateTimeProperty()
    labels = ndb.StringProperty(repeated=True)
    note = ndb.JsonProperty()


def books(*years: int, shelf: str = "a") -> None:
    ndb.put_multi(
        PagedBook(
            id=f"{shelf}{year + 5000}",
            shelf=shelf,
            year=year,
            bought=datetime.datetime(1970, 1, 1) + datetime.timedelta(days=year),  # noqa: DTZ001
            labels=[f"{shelf}|{year + 5000}", f"z|{year + 5000}"],
        )
        for year in years
    )


@pytest.mark.parametrize("by", ["year", "bought"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_query_is_paged_by_a_number_or_a_time(world: World, by: str, descending: bool) -> None:
    """I2: negative numbers and times before 1970 as well, among rows that a filter leaves out."""
    years = [-300, -3, 0, 7, 12]
    listing = Listing("books", page_size=2, descending=descending)
    with world.context():
        books(*years)
        books(-5, 1, 8, shelf="b")
        rows = QueryRange(PagedBook.query(PagedBook.shelf == "a"), getattr(PagedBook, by))

        page = listing.page(TOKENS, rows)
        seen = [*page.items]
        while token := page.next_page_token:
            page = listing.page(TOKENS, rows, page_token=token)
            seen += page.items

    assert [each.year for each in seen] == sorted(years, reverse=descending)


def test_a_key_range_is_its_prefix_and_no_neighbour(world: World) -> None:
    """Kinds, names before it and behind it are others' rows; a filter narrows it."""
    with world.context():
        books(1, 2)
        books(3, shelf="b")
        ndb.put_multi([PagedBook(id="a"), PagedBook(id="`x"), PagedBook(id="a5001x", shelf="q")])
        keys = KeyRange(PagedBook, "a")
        filtered = KeyRange(PagedBook, "a", PagedBook.shelf == "a")

        def names(rows: Any, **how: Any) -> list[str]:
            found = rows.start(how.get("edge"), 9, backward=how.get("backward", False))()
            return [each.item.key.id() for each in found]

        assert names(keys) == ["a", "a5001", "a5001x", "a5002"]
        assert names(keys, backward=True) == ["a5002", "a5001x", "a5001", "a"]
        assert names(filtered) == ["a5001", "a5002"]
        assert names(keys, edge=Edge("5001")) == ["a5001x", "a5002"]
        assert names(keys, edge=Edge("5001", inclusive=True), backward=True) == ["a5001", "a"]


@pytest.mark.parametrize("by", ["shelf", "year", "bought"])
def test_a_row_without_a_value_is_an_error(world: World, by: str) -> None:
    """I1: a page that would begin beyond it would skip others; a filter leaves it out."""
    listing = Listing("books", page_size=1)
    with world.context():
        books(1)
        PagedBook(id="old").put()
        order = getattr(PagedBook, by)

        with pytest.raises(UnplacedRowError, match=f"'old'.* must have a value of '{by}'"):
            listing.page(TOKENS, QueryRange(PagedBook.query(), order))
        rest = listing.page(TOKENS, QueryRange(PagedBook.query(order > None), order))

    assert [book.key.id() for book in rest.items] == ["a5001"]


def test_a_row_below_another_is_no_part_of_a_range_of_keys(world: World) -> None:
    """I1: its name says nothing of where it stands, so it is refused."""
    with world.context():
        parent = PagedBook(id="a1").put()
        PagedBook(id="z", parent=parent).put()

        with pytest.raises(UnplacedRowError, match=r"'z'.* must be a root entity"):
            Listing("books").page(TOKENS, KeyRange(PagedBook, "a"))


def test_rows_that_share_a_place_are_an_error() -> None:
    """An order that cannot tell two rows apart would skip one between pages: it is refused."""
    store = filled(3)
    store.parts[0].positions = ["00", "01", "01"]
    listing = Listing("books")

    with pytest.raises(DuplicatePositionError, match="'01'"):
        listing.page(TOKENS, store.rows(), page_size=2)
    assert listing.page(TOKENS, store.rows(), page_size=1).items == ["00"]


@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_two_ranges_may_share_a_place(descending: bool) -> None:
    """Each is seen, on one page or on two."""
    listing = Listing("books", descending=descending)
    for size in range(1, 8):
        store = MemoryStore(3)
        for part, row in [(0, "1"), (1, "1"), (2, "1"), (0, "2"), (1, "2"), (2, "0")]:
            store.insert(part, row)
        page = listing.page(TOKENS, store.rows(), page_size=size)
        pages = [page.items]
        while token := page.next_page_token:
            page = listing.page(TOKENS, store.rows(), page_size=size, page_token=token)
            pages.append(page.items)
        back = [page.items]
        while token := page.previous_page_token:
            page = listing.page(TOKENS, store.rows(), page_size=size, page_token=token)
            back.append(page.items)

        seen = [row for rows in pages for row in rows]
        assert seen == sorted(["1", "1", "1", "2", "2", "0"], reverse=descending)
        assert back == pages[::-1]


def test_an_order_that_cannot_be_paged_is_refused_where_it_is_declared() -> None:
    """No prefix for a repeated property or for keys, no such type, no range or too many."""
    with offline():
        query = PagedBook.query()
        with pytest.raises(ValueError, match="a prefix says which"):
            QueryRange(query, PagedBook.labels)
        for column in (PagedBook.note, ndb.DateProperty("day"), ndb.TimeProperty("at")):
            with pytest.raises(TypeError, match="must be an indexed text"):
                QueryRange(query, column)
        with pytest.raises(ValueError, match="at least one letter"):
            KeyRange(PagedBook, "")
        for letter in ("\ud7ff", "\uffff", "\U0010ffff"):
            named = rf"must not end in U\+{ord(letter):04X}:"
            with pytest.raises(ValueError, match=named):
                KeyRange(PagedBook, f"a{letter}")
            with pytest.raises(ValueError, match=named):
                QueryRange(query, PagedBook.labels, prefix=letter)
    for count in (0, 101):
        with pytest.raises(ValueError, match="1 to 100"):
            Merged(*[MemoryStore(1).rows()] * count)
    Merged(*[MemoryStore(1).rows()] * 100)


# What a page costs


def test_the_last_page_costs_what_the_first_one_costs(world: World) -> None:
    """I2: one read more than it has rows, one call; of merged ranges a few more."""
    listing = Listing("books", page_size=5, descending=True)
    with world.context():
        books(*range(0, 120, 2))
        books(*range(1, 120, 2), shelf="b")
        one = QueryRange(PagedBook.query(), PagedBook.labels, prefix="a|")
        both = Merged(
            *(QueryRange(PagedBook.query(), PagedBook.labels, prefix=f"{s}|") for s in "ab")
        )

        for rows, pages, at_most in ((one, 12, 6), (both, 24, 12)):
            costs = cost_of_each(world, listing, rows)
            assert len(costs) == pages
            assert {reads for reads, _ in costs[:-1]} <= set(range(6, at_most + 1))
            assert all(reads <= at_most and trips <= 2 for reads, trips in costs)


class CountedRange(SortedRange):
    """A range that remembers how many entries it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def start(
        self, edge: Edge | None, limit: int, *, backward: bool
    ) -> Callable[[], Sequence[Entry[str]]]:
        self.asked.append(limit)
        return super().start(edge, limit, backward=backward)


@pytest.mark.parametrize(("ranges", "size", "share"), [(10, 20, 4), (10, 1, 2), (2, 1, 2)])
def test_a_page_of_merged_ranges_reads_its_share_of_each_and_two_more(
    ranges: int, size: int, share: int
) -> None:
    """I2: one time each where rows are spread evenly; and of none more than a page."""
    parts = [CountedRange() for _ in range(ranges)]
    for number in range(100):
        parts[number % ranges].positions.append(f"{number:02d}")

    page = Listing("books").page(TOKENS, Merged(*parts), page_size=size)

    assert page.items == [f"{number:02d}" for number in range(size)]
    assert [part.asked for part in parts] == [[share]] * ranges


def cost_of_each(world: World, listing: Listing, rows: Any) -> list[tuple[int, int]]:
    """Return entity reads and calls of each page."""
    costs, token = [], None
    while True:
        before = world.clients.meter.cost()
        page = listing.page(TOKENS, rows, page_token=token)
        spent = world.clients.meter.cost() - before
        costs.append((spent.reads, spent.round_trips))
        token = page.next_page_token
        if token is None:
            return costs
