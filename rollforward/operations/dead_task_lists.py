"""Lists of open dead tasks, the newest first, filtered, in pages by cursor.

A page reads its rows and one more, by the index of the facets that it is filtered by.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollforward.runtime.clock import naive_utc
from rollforward.tasks.dead_task_entities import (
    FACETS,
    DeadTask,
    place_of,
    query_dead_tasks,
)
from rollforward.tasks.runs import BadCursorError

_CURSOR = re.compile(r"[0-9]{15}\|[!-~]{0,1000}")


@dataclass(frozen=True)
class DeadTaskFilter:
    """A choice of open dead tasks; an empty field takes any.

    Attributes:
        pattern: "tasks", or the name of the pattern that the task belongs to.
        error: The class of the last error, for example "ValueError".
        since, until: Bounds of the time of the last failure.
    """

    pattern: str = ""
    queue: str = ""
    error: str = ""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

    @property
    def facets(self) -> Mapping[str, str]:
        """Return the facets that it chooses by."""
        values = {name: getattr(self, name) for name in FACETS}
        return {name: value for name, value in values.items() if value}

    @property
    def places(self) -> tuple[str, str]:
        """Return the bounds of its places in the list: later times come first."""
        start_after = place_of(naive_utc(self.until)) if self.until else ""
        until = place_of(naive_utc(self.since)) if self.since else "~"
        return start_after, until


@dataclass(frozen=True)
class DeadTaskPage:
    """Dead tasks, the newest first, and the cursor of the next page; "": there is none."""

    dead_tasks: Sequence[DeadTask]
    next_cursor: str = ""


def list_dead_tasks(
    chosen: DeadTaskFilter | None = None,
    *,
    cursor: str = "",
    limit: int = 20,
    oldest_first: bool = False,
) -> DeadTaskPage:
    """Return a page of open dead tasks.

    Raises:
        BadCursorError: the cursor is not from a page.
    """
    chosen = chosen or DeadTaskFilter()
    if cursor and not _CURSOR.fullmatch(cursor):
        raise BadCursorError("cursor must be next_cursor of a list")
    start_after, until = chosen.places
    if oldest_first:
        until = min(until, cursor or until)
        return read_page(chosen.facets, start_after, until, limit, oldest_first=True)
    return read_page(chosen.facets, max(start_after, cursor), until, limit)


def count_dead_tasks(chosen: DeadTaskFilter, limit: int) -> int:
    """Return how many open dead tasks match, counting up to a limit, by keys alone."""
    return len(query_dead_tasks(chosen.facets, *chosen.places).fetch(limit, keys_only=True))


def read_page(
    facets: Mapping[str, str],
    start_after: str,
    until: str,
    limit: int,
    *,
    oldest_first: bool = False,
) -> DeadTaskPage:
    """Return a page of a list, between two places."""
    rows = query_dead_tasks(facets, start_after, until, oldest_first=oldest_first).fetch(limit + 1)
    shown = rows[:limit]
    next_cursor = place_of_row(shown[-1]) if len(rows) > limit else ""
    return DeadTaskPage(shown, next_cursor)


def place_of_row(dead: DeadTask) -> str:
    """Return the place of a dead task in any list."""
    return place_of(dead.updated, dead.key.id())
