"""Cost of a page of posts, by place and by offset, measured on request.

By place a page begins at a row's number; by offset Datastore reads every row that it skips. The
numbers are entity reads and round trips as the meter counts them, so noise does not change them.

By offset, a measurement reads every skipped row too. So it goes no further back than MAX_PAGE, and
its result is cached for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from models.blog import Post, all_posts, index_key
from rollforward.paging import Edge, QueryRange
from rollforward.query_cache import cached
from rollforward.runtime import Clients

PAGE_SIZE = 20
MAX_PAGE = 100
KEPT_S = 60


@dataclass(frozen=True)
class Measured:
    """Cost of one way to read a page."""

    reads: int
    round_trips: int
    took_s: float
    posts: int


@dataclass(frozen=True)
class PageCost:
    """A page, by its number from 1 on, and its cost in both ways."""

    page: int
    by_place: Measured
    by_offset: Measured


@cached("blog-page-costs", ttl_s=KEPT_S)
def costs(clients: Clients, blog: str) -> list[PageCost]:
    """Measure the first page, one in the middle and the last one; none of an empty blog."""
    index = index_key(blog).get()
    last_number = index.last_number if index else 0
    pages = min(MAX_PAGE, -(-last_number // PAGE_SIZE))
    return [
        PageCost(
            page,
            _measure(clients, partial(_by_place, blog, last_number, page)),
            _measure(clients, partial(_by_offset, blog, page)),
        )
        for page in sorted({1, -(-pages // 2), pages})
        if pages
    ]


def _by_place(blog: str, last_number: int, page: int) -> list[Any]:
    rows = QueryRange(Post.query(), Post.places, prefix=all_posts(blog))
    newest_number = last_number - (page - 1) * PAGE_SIZE
    edge = Edge(f"{newest_number:010d}", inclusive=True)
    return list(rows.start(edge, PAGE_SIZE + 1, backward=True)())


def _by_offset(blog: str, page: int) -> list[Any]:
    prefix = all_posts(blog)
    query = Post.query(Post.places >= prefix, Post.places < prefix + "\U0010ffff")
    posts: list[Any] = query.order(-Post.places).fetch(PAGE_SIZE + 1, offset=(page - 1) * PAGE_SIZE)
    return posts


def _measure(clients: Clients, read: Callable[[], list[Any]]) -> Measured:
    cost_before, started = clients.meter.cost(), time.perf_counter()
    posts = read()
    took_s, spent = time.perf_counter() - started, clients.meter.cost() - cost_before
    return Measured(spent.reads, spent.round_trips, took_s, min(len(posts), PAGE_SIZE))
