"""Lists that are read in pages, forward and back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollforward.paging.ranges import Edge, Entry, Range
from rollforward.paging.tokens import PageStart, PageTokens

T = TypeVar("T")

MAX_DIGITS = 20


class BadPageSizeError(ValueError):
    """The size of a page is no whole number from 0 on."""


class DuplicatePositionError(Exception):
    """Two rows of a list have the same position: one of them could be skipped between pages."""


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some rows of a list, and the tokens of the pages around them.

    A token is None where no row was seen beyond. A token may lead to an empty page, when the rows
    there have been deleted; that page has a token that leads back.
    """

    items: Sequence[T]
    previous_page_token: str | None
    next_page_token: str | None


@dataclass(frozen=True)
class Listing:
    """A list by name, the sizes of its pages, and its direction."""

    name: str
    page_size: int = 20
    max_page_size: int = 100
    descending: bool = False

    def __post_init__(self) -> None:
        if not (self.page_size >= 1 and self.max_page_size >= 1):
            raise ValueError(
                "page_size and max_page_size must be at least 1, got "
                f"{self.page_size} and {self.max_page_size}"
            )

    def page(
        self,
        tokens: PageTokens,
        rows: Range[T],
        *,
        page_token: str | None = None,
        page_size: int | str | None = None,
        filters: Mapping[str, str] | None = None,
    ) -> Page[T]:
        """Return a page.

        Args:
            rows: The list, in ascending order.
            page_token: From the page before or after; None or "": the first page.
            page_size: As a caller gave it: clamped to `max_page_size`; None, "" or 0: the default.
            filters: All that `rows` depends on, its reader included. A token of other filters is
                refused.

        Raises:
            BadPageTokenError: the token is none of this list; no row was read.
            BadPageSizeError: the size is no number; no row was read.
            DuplicatePositionError: the order of `rows` does not tell two of them apart.
            UnplacedRowError: a row has no value of the property that orders the list.
        """
        size, scope = self.bounded(page_size), self._scope(rows, filters)
        place = tokens.read(self.name, scope, page_token) if page_token else None
        is_previous = place is not None and place.is_previous
        backward = is_previous != self.descending
        # One more than asked tells whether there is a further page.
        entries = rows.start(place.edge if place else None, size + 1, backward=backward)()
        _check_positions(entries)
        shown = list(entries[:size])
        if is_previous:
            shown.reverse()
        has_beyond = len(entries) > size

        def token(edge: Edge, *, is_previous: bool) -> str:
            return tokens.sign(self.name, scope, PageStart(edge, is_previous))

        # The rows that the token came from lie on that side: they need no reading.
        has_previous = has_beyond if is_previous else place is not None
        has_next = is_previous or has_beyond
        start, end = _edges(shown, place)
        return Page(
            [entry.item for entry in shown],
            token(start, is_previous=True) if start and has_previous else None,
            token(end, is_previous=False) if end and has_next else None,
        )

    def token_at(
        self,
        tokens: PageTokens,
        rows: Range[T],
        position: str,
        *,
        filters: Mapping[str, str] | None = None,
    ) -> str:
        """Return the token of the page that begins at a position: the address of a row."""
        place = PageStart(Edge(position, inclusive=True), is_previous=False)
        return tokens.sign(self.name, self._scope(rows, filters), place)

    def _scope(self, rows: Range[T], filters: Mapping[str, str] | None) -> dict[str, str]:
        """Return the scope of tokens, order included: a place has no meaning in another order."""
        direction = "descending" if self.descending else "ascending"
        named = {f"filter {name}": value for name, value in (filters or {}).items()}
        return {**named, "order": f"{direction}: {rows.order}"}

    def bounded(self, page_size: int | str | None) -> int:
        """Return the size of a page, as a caller gave it or by default.

        Raises:
            BadPageSizeError: it is no whole number from 0 on.

        >>> [Listing("l").bounded(size) for size in (None, "", "0", "7", "1000000000")]
        [20, 20, 20, 7, 100]
        """
        text = str(page_size or 0)
        if not (text.isascii() and text.isdecimal()):
            raise BadPageSizeError(f"page size must be a whole number from 0 on, got {text!r:.40}")
        size = int(text) if len(text) <= MAX_DIGITS else self.max_page_size
        return min(size or self.page_size, self.max_page_size)


def _edges(shown: Sequence[Entry[T]], place: PageStart | None) -> tuple[Edge | None, Edge | None]:
    """Return where the pages before and after some rows begin.

    An empty page has the place where it began on both sides. A row at that place belongs to the
    side opposite to the reading direction.
    """
    if shown:
        return Edge(shown[0].position), Edge(shown[-1].position)
    if place is None:
        return None, None
    return (Edge(place.edge.position, inclusive=not place.edge.inclusive),) * 2


def _check_positions(entries: Sequence[Entry[T]]) -> None:
    for one, other in itertools.pairwise(entries):
        if one.position == other.position:
            raise DuplicatePositionError(
                f"two rows share the position {one.position!r:.80}: order by a unique value, as "
                "order_key makes of several"
            )
