"""Paging: lists in pages, forward and back, while rows come and go.

    NEWEST = Listing("newest-books", page_size=20, descending=True)

    rows = QueryRange(Book.query(Book.shelf == "b"), Book.place)
    page = NEWEST.page(tokens, rows, page_token=request.args.get("page_token"),
                       page_size=request.args.get("page_size"), filters={"shelf": "b"})
    page.items, page.previous_page_token, page.next_page_token

A page begins beyond a row and not after a number of rows (keyset pagination). So page 500 costs
what page 1 costs, and rows that are inserted or deleted elsewhere do not move it: a row that was
there throughout a walk is seen exactly once, in either direction, under any concurrent writes.
A row that comes or goes during the walk is seen at most once.

That takes an order in which every row has a place of its own, and keeps it. A time alone is not
enough, because two rows may share it. `order_key` makes one key of several parts, fixed width or
escaped, so that the order of bytes is the order of the parts.

A list may be spread over several ranges, so that its writers do not all write at the same end of
one index: `Merged` reads them as one, with about as many reads as the page has rows.

Page tokens are signed and versioned. Each holds for one list, one set of filters, one order and one
direction (S14); the list of another reader has that reader in its filters. The size of a page is
clamped (S15).

Lost on failure: nothing; a page writes nothing. Cost of a page: one entity read more than it has
rows; one round trip. `Merged`: a query for each range, side by side, and two reads more for each.

No task, no sweep, no gauge: so there is nothing to register.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Paging" and
"Comments". Why not its code: an index and a name that are joined without a width sort 10 before 9,
and its list takes the first rows of all blogs.
"""

from rollforward.paging.listing import BadPageSizeError, Listing, Page
from rollforward.paging.merged import Merged
from rollforward.paging.order_keys import order_key
from rollforward.paging.ranges import Edge, Entry, KeyRange, QueryRange, Range
from rollforward.paging.tokens import BadPageTokenError, PageTokens

__all__ = [
    "BadPageSizeError",
    "BadPageTokenError",
    "Edge",
    "Entry",
    "KeyRange",
    "Listing",
    "Merged",
    "Page",
    "PageTokens",
    "QueryRange",
    "Range",
    "order_key",
]
