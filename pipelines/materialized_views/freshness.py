"""Reading views: tokens, freshness, and the order of rows."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.materialized_views import RowMarker
from pipelines.materialized_views.rows import Row
from pipelines.materialized_views.transport import check_travelling, saved_at
from pipelines.materialized_views.updates import TABLE
from pipelines.runtime.clients import Clients
from pipelines.runtime.clock import naive_utc

MAX_LISTED = 1_000


class TooLargeTokenError(ValueError):
    """A token names at most 1,000 changes as text: wait for it where it was made."""


@dataclass(frozen=True)
class ConsistencyToken:
    """What there is to wait for after a save. Give it to a reader who must see at least this.

    `held`: the outbox rows that this save has set going. `earlier`: those of earlier changes of
    the same sources, which may be under way still. `missed`: tables that are read and do not take
    the change, since another definition built them; met when they have been replaced.
    """

    held: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()

    @classmethod
    def of_all(cls, tokens: Sequence[ConsistencyToken]) -> ConsistencyToken:
        """Return one for what several stand for."""
        every = [(token.held, token.earlier, token.missed) for token in tokens]
        return cls(*(frozenset().union(*parts) for parts in zip(*every, strict=True)))

    @property
    def rows(self) -> frozenset[str]:
        """The outbox rows that must be gone."""
        return self.held | self.earlier

    def __str__(self) -> str:
        """Return it as a text.

        Raises:
            TooLargeTokenError: it names too much for one.
        """
        if len(self.rows) > MAX_LISTED:
            words = f"this token names {len(self.rows):,} changes, its text at most {MAX_LISTED:,}"
            raise TooLargeTokenError(f"{words}: wait for it here, or save fewer sources at a time")
        return "~".join(sorted(self.rows | self.missed))

    @classmethod
    def parse(cls, text: str) -> ConsistencyToken:
        """Return the token in a text; which of its changes were earlier ones it does not tell.

        Raises:
            ValueError: it is none.
        """
        parts = text.split("~") if text else []
        missed = frozenset(part for part in parts if re.fullmatch(TABLE, part))
        held = frozenset(parts) - missed
        if len(held) > MAX_LISTED:
            raise TooLargeTokenError(f"a token names at most {MAX_LISTED:,} changes")
        for row in held:
            check_travelling(row)
        return cls(held, missed=missed)


@dataclass(frozen=True)
class Freshness:
    """How far behind its sources something is.

    `newest_s`: the age of the newest change it holds, None if it holds none. `oldest_s`: the age
    of the oldest change that it does not hold yet, 0 if it holds all. `waiting`: how many changes
    of rows wait; `is_truncated`: they were not counted to the end. `is_frozen`: another definition
    built the table, so what this code saves neither comes nor waits until a rebuild is swapped in.
    """

    newest_s: float | None
    oldest_s: float
    waiting: int
    is_truncated: bool
    is_frozen: bool = False


@dataclass(frozen=True)
class Reading:
    """Rows, and how fresh they are. `is_satisfied`: they hold what the token asked for."""

    rows: Sequence[Row]
    freshness: Freshness
    is_satisfied: bool


def freshness_of(
    clients: Clients, waiting: Sequence[Any], applied: Sequence[datetime.datetime]
) -> Freshness:
    now = naive_utc(clients.clock.now())
    ages = [(now - saved_at(key)).total_seconds() for key in waiting]
    return Freshness(
        newest_s=max(0.0, (now - max(applied)).total_seconds()) if applied else None,
        oldest_s=max([0.0, *ages]),
        waiting=min(len(waiting), MAX_LISTED),
        is_truncated=len(waiting) > MAX_LISTED,
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
        if len(page) < MAX_LISTED:
            return count
        after = page[-1]


def _distinct_after(prefix: str, after: str) -> list[str]:
    """Return the next different ranks of a row behind one of them."""
    query = RowMarker.query(RowMarker.ranks > after, RowMarker.ranks < prefix + "\U0010ffff")
    page = query.order(RowMarker.ranks).fetch(
        MAX_LISTED, projection=["ranks"], distinct_on=["ranks"]
    )
    return [marker.ranks[0] for marker in page]
