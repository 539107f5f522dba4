"""Page tokens: what they hold for, and what they refuse."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.paging import (
    BadPageTokenError,
    Edge,
    KeyRange,
    Listing,
    Merged,
    PageTokens,
    QueryRange,
    Range,
)
from rollforward.paging.tokens import MAX_TOKEN_CHARS, PageStart
from tests.infra.memory_datastore import offline
from tests.rollforward.paging.model import KEY, TOKENS, Unread, filled

pytestmark = pytest.mark.fast

OTHER_KEY = "another-key-of-some-length-for-tests-9876543210"
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


def token_of(listing: Listing, tokens: PageTokens = TOKENS, **filters: str) -> str:
    page = listing.page(tokens, filled().rows(), page_size=2, filters=filters)
    assert page.next_page_token is not None
    return page.next_page_token


def changed(token: str, at: int) -> str:
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[at % len(raw)] ^= 1
    return base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()


def test_a_token_with_any_bit_changed_is_refused() -> None:
    """S14: at each byte of it, cut short or padded, and no row is read."""
    listing = Listing("books")
    token = token_of(listing)
    forged = [changed(token, at) for at in range(len(token))]
    forged += [token[:at] for at in range(1, len(token))]
    forged += [token + "A", token + "=", token + "\n", " " + token, token.replace("A", "é")]
    forged += ["x", "0", "é", "-", "A" * 22, "A" * 10**6, "../..", "\x00", "' or 1"]

    for each in set(forged) - {token}:
        with pytest.raises(BadPageTokenError):
            listing.page(TOKENS, Unread(), page_token=each)


def test_a_token_is_written_in_one_way() -> None:
    """S14: base64 ignores the last bits of a text, so others would be as good."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    listing = Listing("books")
    token = token_of(listing)
    assert len(token) % 4 == 3  # So two bits of its last letter are ignored.

    for last in set(alphabet) - {token[-1]}:
        with pytest.raises(BadPageTokenError):
            listing.page(TOKENS, Unread(), page_token=token[:-1] + last)


def test_a_token_holds_for_one_list_one_filter_and_one_reader() -> None:
    """S14: another list's, another filter's or another reader's token is refused."""
    books, films = Listing("books"), Listing("films")
    token = token_of(books, shelf="a", reader="ada")
    others: list[tuple[Listing, dict[str, str]]] = [
        (films, {"shelf": "a", "reader": "ada"}),
        (books, {"shelf": "b", "reader": "ada"}),
        (books, {"shelf": "a", "reader": "bob"}),
        (books, {"shelf": "ada", "reader": "a"}),
        (books, {"shelf": "a"}),
        (books, {"shelf": "a", "reader": "ada", "more": ""}),
        (books, {}),
    ]

    assert books.page(
        TOKENS, filled().rows(), page_token=token, filters={"reader": "ada", "shelf": "a"}
    ).items
    for listing, filters in others:
        with pytest.raises(BadPageTokenError):
            listing.page(TOKENS, Unread(), page_token=token, filters=filters)


class OrderedBook(ndb.Model):
    shelf = ndb.StringProperty()
    title = ndb.StringProperty()
    year = ndb.IntegerProperty()
    labels = ndb.StringProperty(repeated=True)


class OrderedFilm(ndb.Model):
    year = ndb.StringProperty()


class Ordered(Range[str]):
    """The rows of a store, in an order with a name."""

    def __init__(self, order: str) -> None:
        self._order = order

    @property
    def order(self) -> str:
        return self._order

    def start(self, *args: Any, **how: Any) -> Any:
        return filled().rows().start(*args, **how)


def test_a_token_holds_for_one_order() -> None:
    """S14: turned round, or read by another property, type or prefix, a list refuses old tokens."""
    with offline():
        query = OrderedBook.query()
        orders = [
            *(
                QueryRange(query, by).order
                for by in (OrderedBook.year, OrderedBook.shelf, OrderedBook.title)
            ),
            *(
                QueryRange(query, OrderedBook.labels, prefix=prefix).order
                for prefix in ("a|", "z|")
            ),
            QueryRange(OrderedFilm.query(), OrderedFilm.year).order,
            *(KeyRange(OrderedBook, prefix).order for prefix in ("a", "z")),
            KeyRange(OrderedFilm, "a").order,
        ]
    turned = Listing("books", descending=True)
    first = Listing("books").page(TOKENS, Ordered(orders[0]), page_size=2)
    token = first.next_page_token

    assert (
        len({*orders, Merged(Ordered("a"), Ordered("b")).order, Merged(Ordered("a")).order}) == 11
    )
    assert Listing("books").page(TOKENS, Ordered(orders[0]), page_token=token).items
    with pytest.raises(BadPageTokenError):
        turned.page(TOKENS, Ordered(orders[0]), page_token=token)
    for order in orders[1:]:
        with pytest.raises(BadPageTokenError):
            Listing("books").page(TOKENS, Ordered(order), page_token=token)


def test_no_filter_stands_for_an_order() -> None:
    """S14: whatever the filters of a list are called."""
    token = token_of(Listing("books"), order="ascending: ")

    with pytest.raises(BadPageTokenError):
        Listing("books").page(TOKENS, Unread(), page_token=token)


@pytest.mark.parametrize("letter", [*'a !"\\\x01é花', "\U0001f600"])
def test_each_token_that_is_signed_is_read(letter: str) -> None:
    """S14: of a position as long as Datastore takes, whatever stands in it; longer ones raise."""
    listing, row = Listing("books"), letter * (1500 // len(letter.encode()))
    token = listing.token_at(TOKENS, Ordered("o"), row)

    page = listing.page(TOKENS, Ordered("o"), page_token=token)

    # The rows of digits: they stand before this one, or behind it.
    assert len(page.items) == (9 if row < "0" else 0)
    assert len(token) < 2400
    for too_long in ("a" * 3000, "é" * 1500):
        with pytest.raises(ValueError, match="at most 1600 bytes, got 3000"):
            listing.token_at(TOKENS, Ordered("o"), too_long)


def test_the_longest_token_is_read_and_a_longer_text_is_none() -> None:
    """S14: of a position of 1,600 bytes, with which a range may have begun a value of Datastore."""
    longest = PageStart(Edge("a" * 1600), is_previous=True)
    token = TOKENS.sign("books", {}, longest)

    assert TOKENS.read("books", {}, token) == longest
    assert len(token) == MAX_TOKEN_CHARS
    with pytest.raises(BadPageTokenError):
        TOKENS.read("books", {}, f"{token}A")
    with pytest.raises(ValueError, match="at most 1600 bytes, got 1601"):
        TOKENS.sign("books", {}, PageStart(Edge("a" * 1601), is_previous=True))


@pytest.mark.parametrize("version", [1, 3, ord("[")])
def test_a_token_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """S14: its bytes would mean something else, although our key has signed them."""
    with monkeypatch.context() as other:
        other.setattr("rollforward.paging.tokens.VERSION", version)
        token = token_of(Listing("books"))

    with pytest.raises(BadPageTokenError, match="another version"):
        Listing("books").page(TOKENS, Unread(), page_token=token)


def test_half_a_character_is_no_position() -> None:
    """S14: Datastore holds none, so neither a token nor a prefix does."""
    with pytest.raises(ValueError, match="surrogates"):
        Listing("books").token_at(TOKENS, Ordered("o"), "\ud800")
    with offline(), pytest.raises(ValueError, match="surrogates"):
        KeyRange(OrderedBook, "a\udfff")


def test_a_token_holds_for_one_direction() -> None:
    """S14: nothing in the address says which way to read; the token does."""
    listing, store = Listing("books"), filled()
    first = listing.page(TOKENS, store.rows(), page_size=2)
    second = listing.page(TOKENS, store.rows(), page_size=2, page_token=first.next_page_token)

    assert (first.previous_page_token, second.items) == (None, ["02", "03"])
    back = listing.page(TOKENS, store.rows(), page_token=second.previous_page_token)
    assert back.items == ["00", "01"]
    # Nothing lies before it, and the rows that it was left for lie behind it.
    assert back.previous_page_token is None
    assert back.next_page_token is not None
    again = listing.page(TOKENS, store.rows(), page_size=2, page_token=back.next_page_token)
    assert again.items == ["02", "03"]


def test_a_key_is_replaced_while_its_tokens_are_in_use() -> None:
    """The old key's tokens are read, the new key signs, and a stranger's is refused."""
    listing = Listing("books")
    token = token_of(listing)

    both = PageTokens([OTHER_KEY, KEY])
    page = listing.page(both, filled().rows(), page_token=token, page_size=2)

    assert page.items == ["02", "03"]
    with pytest.raises(BadPageTokenError):
        listing.page(PageTokens([OTHER_KEY]), Unread(), page_token=token)
    with pytest.raises(BadPageTokenError):
        listing.page(TOKENS, Unread(), page_token=page.next_page_token)


class OwnClock:
    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> datetime.datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += datetime.timedelta(seconds=seconds)


def test_a_token_may_expire() -> None:
    """S14: it does where its list says so; one without a time is refused there."""
    clock, listing = OwnClock(), Listing("books")
    brief = PageTokens([KEY], max_age_s=60, clock=clock)
    token = token_of(listing, brief)

    clock.sleep(59)
    assert listing.page(brief, filled().rows(), page_token=token).items
    clock.sleep(1)
    for each in (token, token_of(listing)):
        with pytest.raises(BadPageTokenError, match="expired"):
            listing.page(brief, Unread(), page_token=each)


def test_keys_of_tokens_are_long() -> None:
    """S22: no key and a short one are refused at once."""
    for keys in ([], [""], ["short"], [KEY, "short"], ["k" * 31]):
        with pytest.raises(ValueError, match="at least 32"):
            PageTokens(keys)
    PageTokens(["k" * 32])
