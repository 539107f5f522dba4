"""Reading views: tokens, freshness, and the order of rows."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.materialized_views import RowMarker
from pipelines.clients import Clients
from pipelines.clock import naive
from pipelines.view_rows import Row
from pipelines.view_travel import check_travelling, saved_at

MOST_LISTED = 1_000


@dataclass(frozen=True)
class Token:
    """What a save has set going. Give it to a reader who must see at least this."""

    held: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return "~".join(sorted(self.held))

    @classmethod
    def parse(cls, text: str) -> Token:
        """Return the token in a text.

        Raises:
            ValueError: it is none.
        """
        held = frozenset(text.split("~")) if text else frozenset()
        if len(held) > MOST_LISTED:
            raise ValueError("a token names at most 1,000 changes")
        for row in held:
            check_travelling(row)
        return cls(held)


@dataclass(frozen=True)
class Freshness:
    """How far behind its sources something is.

    `newest_s`: the age of the newest change it holds, None if it holds none. `oldest_s`: the age
    of the oldest change that it does not hold yet, 0 if it holds all. `waiting`: how many changes
    of rows wait; `is_more`: they were not counted to the end.
    """

    newest_s: float | None
    oldest_s: float
    waiting: int
    is_more: bool


@dataclass(frozen=True)
class Reading:
    """Rows, and how fresh they are. `is_met`: they hold what the token asked for."""

    rows: Sequence[Row]
    freshness: Freshness
    is_met: bool


def freshness_of(
    clients: Clients, waiting: Sequence[Any], applied: Sequence[datetime.datetime]
) -> Freshness:
    now = naive(clients.clock.now())
    ages = [(now - saved_at(key)).total_seconds() for key in waiting]
    return Freshness(
        newest_s=max(0.0, (now - max(applied)).total_seconds()) if applied else None,
        oldest_s=max([0.0, *ages]),
        waiting=min(len(waiting), MOST_LISTED),
        is_more=len(waiting) > MOST_LISTED,
    )


def row_order(row: Row) -> tuple[Any, ...]:
    """Sort names of all sorts: numbers first, then texts, then tuples."""
    parts = row.name if isinstance(row.name, tuple) else (row.name,)
    keys = [(isinstance(part, str), 0 if isinstance(part, str) else part, part) for part in parts]
    return (isinstance(row.name, tuple), *keys)


def count_distinct(prefix: str) -> int:
    """Return how many different ranks begin with a prefix, read in pages."""
    count, after = 0, prefix
    while True:
        page = _distinct_after(prefix, after)
        count += len(page)
        if len(page) < MOST_LISTED:
            return count
        after = page[-1]


def _distinct_after(prefix: str, after: str) -> list[str]:
    """Return the next different ranks of a row behind one of them."""
    query = RowMarker.query(RowMarker.ranks > after, RowMarker.ranks < prefix + "\U0010ffff")
    page = query.order(RowMarker.ranks).fetch(
        MOST_LISTED, projection=["ranks"], distinct_on=["ranks"]
    )
    return [marker.ranks[0] for marker in page]
