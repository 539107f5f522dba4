"""Runs of several patterns in one list: each once, the newest first."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.runtime.channel import limits
from rollforward.tasks.pattern import Pattern
from rollforward.tasks.runs import (
    BadCursorError,
    Run,
    RunList,
    RunQuery,
    UnknownRunError,
    latest_rows,
    merged,
    parse_cursor,
    timed_cursor,
)

pytestmark = pytest.mark.fast

CLIENTS: Any = None


def at(seconds: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC) + datetime.timedelta(
        seconds=seconds
    )


class Batches(Pattern[object]):
    """A pattern with runs that were started at these seconds."""

    def __init__(self, name: str, started: Sequence[int]) -> None:
        self.name = name
        self.all = [self._run(number, seconds) for number, seconds in enumerate(started)]

    def _run(self, number: int, seconds: int) -> Run:
        run_id = f"{self.name}-{number}"
        return Run(self.name, run_id, "paint", "finished", "{}", at(seconds), None, {}, 0)

    def runs(self, clients: Clients, parts: Sequence[object], query: RunQuery) -> RunList:
        """As a query does that never tears apart what was started together."""
        older = [run for run in self.all if query.before is None or run.started < query.before]
        older.sort(key=lambda run: run.started, reverse=True)
        if len(older) <= query.limit:
            return RunList(older)
        oldest = older[query.limit - 1].started
        shown = [run for run in older if run.started >= oldest]
        return RunList(shown, oldest if len(shown) < len(older) else None)


starts = st.lists(st.integers(min_value=0, max_value=12), max_size=12)


@given(first=starts, second=starts, limit=st.integers(min_value=1, max_value=5))
def test_pages_over_two_patterns_show_each_run_once_newest_first(
    first: list[int], second: list[int], limit: int
) -> None:
    """However their times lie, and however small the pages are."""
    registry = Registry(patterns=[Batches("a", first), Batches("b", second)])
    seen: list[Run] = []
    query = RunQuery(limit=limit)
    while True:
        page = registry.runs(CLIENTS, query)
        seen += page.runs
        if page.next_before is None:
            break
        query = RunQuery(before=page.next_before, limit=limit)

    assert [run.started for run in seen] == sorted((run.started for run in seen), reverse=True)
    assert len(seen) == len({run.id for run in seen}) == len(first) + len(second)


def test_a_list_that_ends_early_holds_back_older_runs_of_the_others() -> None:
    """A pattern may stop before the limit: what it has not read yet would be passed over."""
    [early] = Batches("a", [12]).all
    newer, older = Batches("b", [11, 7]).all

    page = merged([RunList([early], at(10)), RunList([newer, older], at(5))], limit=10)

    assert page == RunList([early, newer], at(10))


def test_a_pattern_without_runs_lists_none_and_knows_none() -> None:
    """Every method of `Pattern` may stay as it is."""
    registry = Registry()

    for pattern in ("outbox", "nothing"):
        with pytest.raises(UnknownRunError):
            registry.run(CLIENTS, pattern, "r")
        with pytest.raises(UnknownRunError):
            registry.control_run(CLIENTS, pattern, "r", "cancel")


@pytest.mark.parametrize(
    ("row_id", "is_name"),
    [
        ("", False),
        ("x", True),
        ("x" * limits.KEY_NAME.most, True),
        ("x" * (limits.KEY_NAME.most + 1), False),
        ("é" * (limits.KEY_NAME.most // 2), True),
        ("é" * (limits.KEY_NAME.most // 2 + 1), False),
        ("\ud800", False),
    ],
    ids=["none", "short", "longest", "longer", "longest in UTF-8", "longer in UTF-8", "half"],
)
def test_a_cursor_has_the_id_of_a_row_that_datastore_could_have(
    row_id: str, *, is_name: bool
) -> None:
    """Limit `key-name`, 1,500 bytes: any other cursor is refused before a query is made of it."""
    begun = at(0).replace(tzinfo=None)
    cursor = timed_cursor(begun, row_id)
    if is_name:
        assert parse_cursor(cursor, "no cursor") == (begun, row_id)
    else:
        with pytest.raises(BadCursorError, match="no cursor"):
            parse_cursor(cursor, "no cursor")


@pytest.mark.parametrize(("limit", "shown", "next_before"), [(2, 3, 7), (3, 3, 7), (5, 5, None)])
def test_a_filtered_list_shows_the_newest_that_match_and_goes_on_behind_them(
    limit: int, shown: int, next_before: int | None
) -> None:
    """Of those that began together none is left out, nor listed twice."""
    hours = [9, 8, 7, 7, 6, 6, 5, 4]
    rows = [datetime.datetime(2031, 5, 1, hour) for hour in hours]  # noqa: DTZ001
    matching = [row for row in rows if row.hour in (9, 7, 6)]

    found, goes_on = latest_rows(
        RunQuery(state="running", limit=limit),
        lambda before: SimpleNamespace(fetch=lambda most: rows[:most]),
        lambda at: SimpleNamespace(fetch=lambda: [row for row in rows if row == at]),
        lambda row: row,
        lambda row: row in matching,
    )

    assert found == matching[:shown]
    assert (goes_on.hour if goes_on else None) == next_before
