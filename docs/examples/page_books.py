"""Paging: a reader walks through a list and back while books come and go.

    .venv/bin/python -m docs.examples.page_books

A shelf of 50 books is read in pages of 10. After each page a book is added, and one that was read
is removed. The program starts its own Datastore: see raise_prices.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb

from rollforward.local.services.standalone import datastore_emulator
from rollforward.paging import Listing, PageTokens, QueryRange, order_key
from rollforward.runtime import Meter, open_datastore

KEYS = ("an-example-has-a-key-of-its-own-0123456789",)
NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)


# howto: from here
class ShelfBook(ndb.Model):
    title = ndb.TextProperty(required=True)
    # "<shelf>|<time, number>": unique among the books of a shelf, and never changed.
    place = ndb.StringProperty(required=True)


NEWEST = Listing("newest-books", page_size=10, max_page_size=50, descending=True)


def put_on_shelf(shelf: str, title: str, at: datetime.datetime, number: int) -> None:
    place = f"{shelf}|{order_key(at, number)}"
    ShelfBook(id=place, title=title, place=place).put()


def shelf_page(tokens: PageTokens, shelf: str, page_token: str | None) -> Any:
    rows = QueryRange(ShelfBook.query(), ShelfBook.place, prefix=f"{shelf}|")
    return NEWEST.page(tokens, rows, page_token=page_token, filters={"shelf": shelf})


# howto: to here


def play(client: Any, meter: Meter) -> Iterator[str]:
    """Walk to the end and back; yield the books read, and the cost."""
    tokens = PageTokens(KEYS)
    with client.context(cache_policy=False, global_cache=None, legacy_data=False):
        for number in range(50):
            put_on_shelf("a", f"Book {number}", NOON, number)
        seen, reads, token, extra = [], [], None, 50
        while True:
            before = meter.cost().reads
            page = shelf_page(tokens, "a", token)
            reads.append(meter.cost().reads - before)
            seen += [book.title for book in page.items]
            token = page.next_page_token
            if token is None:
                break
            put_on_shelf("a", f"Book {extra}", NOON, extra)
            page.items[0].key.delete()
            extra += 1
        first = {f"Book {number}" for number in range(50)}
        yield f"{len(seen)} books in {len(reads)} pages, each once: {sorted(first) == sorted(seen)}"
        yield f"reads of each page: {reads}"

        back = []
        while page.previous_page_token:
            page = shelf_page(tokens, "a", page.previous_page_token)
            back += [book.title for book in reversed(page.items)]
        yield f"back: {len(back)} books, among them {len(set(back) - first)} new ones"


def main() -> None:
    """Start Datastore, play, and print the result."""
    meter = Meter()
    with datastore_emulator() as datastore:
        client = open_datastore("demo-docs", emulator=datastore, interceptors=[meter])
        for line in play(client, meter):
            print(line)  # noqa: T201


if __name__ == "__main__":
    main()
