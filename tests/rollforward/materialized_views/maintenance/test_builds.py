"""Builds of views as an operator sees them, from the rows of their walks, without a store."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rollforward.continuations.entities import FINISHED, ContinuationRun, run_key
from rollforward.materialized_views import builds
from rollforward.materialized_views.builds import Build
from rollforward.materialized_views.catalog import Catalog
from rollforward.tasks.runs import Run, RunLink, RunQuery
from tests.infra.memory_datastore import Memory, offline
from tests.rollforward.materialized_views.student_views import BUILDS

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
BY_GRADE = "by_grade.1.2"


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def hours(count: int) -> datetime.datetime:
    return NOON + datetime.timedelta(hours=count)


def walk_row(
    began_h: int, ended_h: int | None, *, done: int = 3, failed: int = 0, **fields: Any
) -> ContinuationRun:
    """Return the row of a walk; it has finished if it has ended."""
    row = ContinuationRun(
        key=run_key(f"run-{began_h}"), job="walk", args="{}", spans=[], page_size=1,
        started=hours(began_h), **fields,
    )  # fmt: skip
    if ended_h is not None:
        row.state, row.ended = FINISHED, hours(ended_h)
        others = dict.fromkeys(("skipped", "retrying", "waiting", "in_doubt", "pages"), 0)
        row.totals = {"done": done, "failed": failed, **others, "cost": {}}
    return row


Rows = Mapping[tuple[str, str], ContinuationRun]


def build_of(place: str, rows: Rows) -> Build:
    return Build("school", BY_GRADE, place, [], rows)


def rows_of(*walks: tuple[str, str, ContinuationRun]) -> Rows:
    return {(step, kind): row for step, kind, row in walks}


def backfilled() -> list[tuple[str, str, ContinuationRun]]:
    return [("backfill", "Pupil", walk_row(1, 3)), ("backfill", "Tutor", walk_row(0, 2))]


def confirmed() -> list[tuple[str, str, ContinuationRun]]:
    return [("confirm", "Pupil", walk_row(4, 6)), ("confirm", "Tutor", walk_row(5, 7))]


def shown(run: Run) -> tuple[str, str, Any, Any]:
    return run.state, run.note, run.started, run.ended


def utc(count: int) -> datetime.datetime:
    return hours(count).replace(tzinfo=datetime.UTC)


def test_a_build_says_what_became_of_its_table() -> None:
    """Whether any of its last walks has ended tells one that was replaced from one given up."""
    whole = rows_of(*backfilled(), *confirmed())
    live, replaced = (build_of(place, whole).run() for place in ("live", "dropping"))
    given_up = build_of("dropping", rows_of(*backfilled())).run()

    assert shown(live) == ("finished", "this table is read", utc(0), utc(7))
    note = "another table is read; this one is being deleted"
    assert shown(replaced) == ("finished", note, utc(0), utc(7))
    assert shown(given_up) == ("cancelled", "given up; its table is being deleted", utc(0), None)


@pytest.mark.parametrize(
    ("failed", "other_ended", "retried", "expected"),
    [
        (2, 3, None, "failed: 2 of its sources failed"),
        (2, None, None, "running: backfill"),
        (0, 3, None, "running: backfill"),
        (2, 3, 1, "failed: 1 of its sources failed"),
        (2, 3, 0, "running: backfill"),
    ],
    ids=["failed", "one runs", "sound", "failed again", "mended"],
)
def test_a_build_has_failed_when_its_walks_have_ended_and_sources_failed(
    failed: int, other_ended: int | None, retried: int | None, expected: str
) -> None:
    """Those of the last retry count, if a walk was retried."""
    row = walk_row(0, 1, failed=failed)
    if retried is not None:
        row.retried_by = "run-8"
        Memory.current.put(walk_row(8, 9, failed=retried))
    walks = [("backfill", "Pupil", row), ("backfill", "Tutor", walk_row(1, other_ended))]
    run = build_of("building", rows_of(*walks)).run()

    assert f"{run.state}: {run.note}" == expected


def test_each_walk_of_a_build_is_a_row_and_a_span() -> None:
    """With its items and its times; a walk that has not ended has neither."""
    cancelled = walk_row(3, None)
    cancelled.ended = hours(4)
    rows = rows_of(
        ("backfill", "Pupil", walk_row(0, 1, done=3, failed=2)),
        ("backfill", "Tutor", walk_row(1, 2)),
        ("catch-up", "Pupil", walk_row(2, None)),
        ("confirm", "Pupil", cancelled),
    )
    details = builds._details(build_of("dropping", rows))

    assert details.numbers == {
        "view": RunLink("materialized-views", "school/by_grade"),
        "table": BY_GRADE,
        "place": "being deleted",
    }
    columns = ("step", "source", "state", "items", "failed")
    assert [tuple(row[name] for name in columns) for row in details.rows] == [
        ("backfill", "Pupil", "failed", 5, 2),
        ("backfill", "Tutor", "done", 3, 0),
        ("catch-up", "Pupil", "waiting", "", ""),
        ("confirm", "Pupil", "skipped", "", ""),
    ]
    times = [(row["began_at"], row["ended_at"]) for row in details.rows]
    ends = [utc(1).timestamp(), utc(2).timestamp(), "", utc(4).timestamp()]
    assert times == [(utc(hour).timestamp(), end) for hour, end in enumerate(ends)]
    assert [(span.label, span.outcome, span.is_wait) for span in details.spans] == [
        ("backfill: Pupil", "failed", False),
        ("backfill: Tutor", "done", False),
        ("catch-up: Pupil", "waiting", True),
        ("confirm: Pupil", "skipped", True),
    ]
    assert [(span.began, span.ended) for span in details.spans] == [
        (utc(0), utc(1)), (utc(1), utc(2)), (utc(2), None), (utc(3), utc(4)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "owner"),
    [
        ("views-school-backfill", {"table": BY_GRADE}, BY_GRADE),
        ("views-school-catch-up", {"table": BY_GRADE}, BY_GRADE),
        ("views-school-confirm", {"table": BY_GRADE}, BY_GRADE),
        ("views-school-drop", {"table": BY_GRADE}, BY_GRADE),
        ("views-school-verify", {"table": BY_GRADE}, None),
        ("views-other-drop", {"table": BY_GRADE}, None),
        ("backfill", {"table": BY_GRADE}, None),
        ("views-school-drop", {}, None),
        ("views-school-drop", [], None),
    ],
)
def test_a_walk_belongs_to_the_build_of_its_table(
    name: str, args: object, owner: str | None
) -> None:
    """By the name of its job; what it was given may be of another version."""
    run = Run("continuations", "r", name, "running", json.dumps(args), None, None, {}, 0)
    link = builds.owner_of([BUILDS], run)

    assert link == (RunLink("materialized-views", f"school/{owner}") if owner else None)


def catalog_of(**entries: Mapping[str, Any] | None) -> Catalog:
    return Catalog({name: entry for name, entry in entries.items() if entry is not None})


ENTRY = {"live": "by_grade.1.2", "building": "by_grade.1.4", "builds": 4}
ENTRY |= {"dropping": ["by_grade.1.1", "by_grade.1.3"]}


@pytest.mark.parametrize(
    ("entries", "tables"),
    [
        ({}, []),
        ({"by_grade": {"live": "by_grade.1.1"}}, []),
        ({"by_grade": {"live": "by_grade.0.7"}}, []),
        ({"by_grade": {"live": "by_grade.1.2"}}, ["by_grade.1.2 live"]),
        (
            {"by_grade": ENTRY, "by_house": {"live": "by_house.1.2", "building": "by_house.1.3"}},
            ["by_grade.1.4 building", "by_house.1.3 building", "by_grade.1.2 live",
             "by_grade.1.3 dropping", "by_house.1.2 live"],
        ),
        ({"by_grade": {"live": None}, "by_house": {"live": "by_house.1.2"}}, ["by_house.1.2 live"]),
        ({"by_grade": {"dropping": 1}, "by_house": {"live": "by_house.1.2"}},
         ["by_house.1.2 live"]),
    ],
    ids=["none", "first", "retired", "one", "all", "empty", "strange"],
)  # fmt: skip
def test_a_table_that_was_built_has_a_place(entries: Mapping[str, Any], tables: list[str]) -> None:
    """Those being built come first; a view's first table, and that of a retired one, have none."""
    places = builds._tables(BUILDS, catalog_of(**entries))

    assert [f"{table} {place}" for table, place in places] == tables


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_a_list_of_builds_looks_at_so_many_tables(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Of all groups together, the tables that are being built first."""
    catalog = catalog_of(by_grade={**ENTRY, "dropping": ["by_grade.1.3"]})
    monkeypatch.setattr(type(BUILDS.views), "catalog", lambda views: catalog)
    monkeypatch.setattr(builds, "MAX_TABLES", most)
    looked_at: list[str] = []

    def look(group: object, catalog: object, table: str, place: str) -> Run:
        looked_at.append(table)
        return Run("materialized-views", table, "by_grade", "running", "", None, None, {}, 0)

    monkeypatch.setattr(builds, "_readable", look)
    builds.list_builds([BUILDS, BUILDS], RunQuery())

    one = ["by_grade.1.4", "by_grade.1.2", "by_grade.1.3"]
    assert looked_at == [*one, *one][:most]
