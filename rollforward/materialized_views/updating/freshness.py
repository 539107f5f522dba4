"""Consistency tokens, the freshness of rows, and their order."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.datastore.contexts import client_namespace
from rollforward.materialized_views.entities import RowMarker
from rollforward.materialized_views.rows import Row
from rollforward.materialized_views.updates import TABLE
from rollforward.materialized_views.updating.transport import check_update_key, saved_at
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc

MAX_LISTED = 1_000


class TooLargeTokenError(ValueError):
    """A token names at most 1,000 changes as text: wait for it where it was made."""


@dataclass(frozen=True)
class ConsistencyToken:
    """The updates to wait for after a save. Give it to a reader who must see at least this save.

    `updates`: the keys of updates that this save has sent. `earlier`: the keys of updates of
    earlier changes of the same sources, which may still be in flight. `frozen_tables`: tables that
    readers see and that do not take the change until they are replaced, since another version of
    their view built them.
    """

    updates: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()
    frozen_tables: frozenset[str] = frozenset()

    @classmethod
    def of_all(cls, tokens: Sequence[ConsistencyToken]) -> ConsistencyToken:
        """Return one token for the changes of several."""
        every = [(token.updates, token.earlier, token.frozen_tables) for token in tokens]
        return cls(*(frozenset().union(*parts) for parts in zip(*every, strict=True)))

    @property
    def rows(self) -> frozenset[str]:
        """The outbox rows and work items that must be gone."""
        return self.updates | self.earlier

    def __str__(self) -> str:
        """Return it as a text.

        Raises:
            TooLargeTokenError: it names too much for one.
        """
        if len(self.rows) > MAX_LISTED:
            size = f"this token names {len(self.rows):,} changes, its text at most {MAX_LISTED:,}"
            raise TooLargeTokenError(f"{size}: wait for it here, or save fewer sources at a time")
        return "~".join(sorted(self.rows | self.frozen_tables))

    @classmethod
    def parse(cls, text: str) -> ConsistencyToken:
        """Return the token in a text; which of its changes were earlier ones it does not tell.

        Raises:
            ValueError: it is none.
        """
        parts = text.split("~") if text else []
        frozen = frozenset(part for part in parts if re.fullmatch(TABLE, part))
        updates = frozenset(parts) - frozen
        if len(updates) > MAX_LISTED:
            raise TooLargeTokenError(f"a token must name at most {MAX_LISTED:,} changes")
        for row in updates:
            check_update_key(row)
        return cls(updates, frozen_tables=frozen)


@dataclass(frozen=True)
class Freshness:
    """The lag of a row, or a view, behind its sources.

    `newest_s`: the age of the newest change it holds, None if it holds none. `oldest_s`: the age
    of the oldest change that it does not hold yet, 0 if it holds all. `waiting`: how many changes
    of rows wait; `is_truncated`: they were not counted to the end. `is_frozen`: another version of
    the view built the table: no save by this code reaches it until a rebuild is swapped in.
    """

    newest_s: float | None
    oldest_s: float
    waiting: int
    is_truncated: bool
    is_frozen: bool = False


@dataclass(frozen=True)
class Reading:
    """Rows, and how fresh they are. `is_satisfied`: they hold the token's changes."""

    rows: Sequence[Row]
    freshness: Freshness
    is_satisfied: bool


def freshness_of(
    clients: Clients, waiting: Sequence[Any], applied: Sequence[datetime.datetime]
) -> Freshness:
    """Return how fresh rows are, by the keys of pending updates and the newest save in each row."""
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
    count, cursor = 0, prefix
    while True:
        page = _distinct_after(prefix, cursor)
        count += len(page)
        if len(page) < MAX_LISTED:
            return count
        cursor = page[-1]


def _distinct_after(prefix: str, cursor: str) -> list[str]:
    """Return the next different ranks of a row after one of them."""
    rank, end = RowMarker.ranks, prefix + "\U0010ffff"
    query = RowMarker.query(rank > cursor, rank < end, namespace=client_namespace())
    page = query.order(RowMarker.ranks).fetch(
        MAX_LISTED, projection=["ranks"], distinct_on=["ranks"]
    )
    return [marker.ranks[0] for marker in page]
