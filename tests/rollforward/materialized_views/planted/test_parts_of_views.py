"""Catalogs, builds, audits and rings of tables, without a store, and planted bugs."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.materialized_views import catalog_changes as changes
from rollforward.materialized_views.builds import Build
from rollforward.materialized_views.catalog import Catalog
from rollforward.materialized_views.entities import (
    RowMarker,
    SourceMarker,
    ViewRow,
    marker_key,
    row_key,
)
from rollforward.materialized_views.maintenance import audit
from rollforward.materialized_views.maintenance.walks import BACKFILL, CATCH_UP, CONFIRM
from rollforward.materialized_views.updating import bell, table_fold
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  As Datastore's times are.


def view(name: str, version: int = 3) -> Any:
    return SimpleNamespace(name=name, version=version, functions=lambda: {"Student": 1}, ranked=())


BY_SCHOOL, BY_CITY = view("by_school"), view("by_city")


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def both() -> Catalog:
    """Return the catalog of two views, each with a table that is read and one being built."""
    catalog = Catalog({})
    for each in (BY_SCHOOL, BY_CITY):
        catalog = changes.with_next(changes.with_view(catalog, each), each)
    return catalog


def tables_of(catalog: Catalog, each: Any = BY_SCHOOL) -> tuple[str, str | None, list[str]]:
    entry = catalog.entry(each)
    return entry.live, entry.building, list(entry.dropping)


def table(number: int, each: Any = BY_SCHOOL) -> str:
    return f"{each.name}.{each.version}.{number}"


# Catalogs


def test_each_table_is_read_built_or_on_its_way_out_until_it_is_gone() -> None:
    """C5: none is forgotten while it has rows, and the other view keeps its own."""
    catalog = both()
    assert tables_of(catalog) == (table(1), table(2), [])
    given_up = changes.with_next(catalog, BY_SCHOOL)
    assert tables_of(given_up) == (table(1), table(3), [table(2)])
    swapped = changes.swapped(given_up, BY_SCHOOL, table(3))
    assert tables_of(swapped) == (table(3), None, [table(2), table(1)])
    again = changes.swapped(changes.with_next(swapped, BY_SCHOOL), BY_SCHOOL, table(4))
    assert tables_of(again) == (table(4), None, [table(2), table(1), table(3)])
    gone = changes.without_table(again, "by_school", table(1))
    assert tables_of(gone) == (table(4), None, [table(2), table(3)])
    retired = changes.retired(changes.with_next(gone, BY_SCHOOL), "by_school")
    live, building, dropping = tables_of(retired)
    assert (building, dropping) == (None, [table(2), table(3), table(4), table(5)])
    assert live not in dropping

    assert tables_of(retired, BY_CITY) == (table(1, BY_CITY), table(2, BY_CITY), [])


def test_tokens_wait_for_one_table_and_its_specification_stays() -> None:
    """C5: that of the other view, too."""
    catalog = both()
    assert set(catalog.begun_with) == {
        table(number, each) for each in (BY_SCHOOL, BY_CITY) for number in (1, 2)
    }
    catalog = changes.awaiting(catalog, BY_SCHOOL, table(2))
    assert catalog.required_tables(BY_SCHOOL) == {table(1), table(2)}
    assert catalog.required_tables(BY_CITY) == {table(1, BY_CITY)}
    for each, number in ((BY_SCHOOL, 2), (BY_CITY, 2)):
        spec = catalog.spec(table(number, each))
        assert spec is not None
        assert (list(spec.kinds), spec.is_awaited) == (["Student"], each is BY_SCHOOL)


# Builds


def run_of(began: int, ended: int | None, state: str = FINISHED, failed: int = 0) -> Any:
    started = NOON + datetime.timedelta(minutes=began)
    return SimpleNamespace(
        started=started,
        ended=None if ended is None else NOON + datetime.timedelta(minutes=ended),
        state=state,
        totals={"failed": failed} if failed else None,
        retried_by=None,
    )


@pytest.mark.parametrize(
    ("place", "is_confirmed", "state", "ended"),
    [
        ("building", True, "running", None),
        ("live", True, "finished", 9),
        ("dropping", True, "finished", 9),
        ("dropping", False, "cancelled", None),
    ],
)
def test_a_build_began_with_its_first_walk_and_ended_with_its_last(
    place: str, is_confirmed: bool, state: str, ended: int | None
) -> None:
    """C5: one that is still being built has not ended, although all of its walks have."""
    rows = {(BACKFILL, "Student"): run_of(2, 5), (BACKFILL, "School"): run_of(1, 4)}
    rows |= {(CATCH_UP, "Student"): run_of(0, 20)}
    if is_confirmed:
        rows |= {(CONFIRM, "Student"): run_of(6, 9), (CONFIRM, "School"): run_of(6, 8)}
    run = Build("grades", table(2), place, [], rows).run()

    minutes = [
        None if at is None else (at.replace(tzinfo=None) - NOON).total_seconds() / 60
        for at in (run.started, run.ended)
    ]
    assert (run.state, minutes) == (state, [1, ended])


def test_a_build_is_at_its_last_step_that_has_begun() -> None:
    """C5: as long as a walk of it is under way."""
    rows = {(BACKFILL, "Student"): run_of(0, 5), (CATCH_UP, "Student"): run_of(5, None, RUNNING)}
    run = Build("grades", table(2), "building", [], rows).run()

    assert (run.state, run.note) == ("running", CATCH_UP)
    assert Build("grades", table(2), "building", [], {}).run().note == "begins"


# Audits


@pytest.mark.parametrize(
    ("held", "is_row_there", "message"),
    [
        ((5, 7), True, None),
        ((6, 9), True, None),
        ((5, 9), True, "holds {'grade': 9}, not {'grade': 7}"),
        ((4, 7), True, "does not hold its change 5, it has 4"),
        (None, True, "does not hold its change 5, it has nothing of it"),
        ((5, 7), False, "is not there"),
    ],
)
def test_a_row_holds_what_its_source_says(
    monkeypatch: pytest.MonkeyPatch,
    held: tuple[int, int] | None,
    is_row_there: bool,
    message: str | None,
) -> None:
    """C1: an update in flight may explain what it lacks, and nothing that is wrong in it."""
    source, row = ndb.Key("Student", "s1"), '"north"'
    marker = SourceMarker(
        key=marker_key(source),
        sequence=5,
        contributions={table(1): {row: [5, {"grade": 7}]}, table(2): {row: [4, {"grade": 1}]}},
    )
    row_marker = audit.row_marker_of(table(1), row, source)
    stored: dict[Any, Any] = {row_marker: None, row_key(table(1), row): None}
    if held is not None:
        measures = {"grade": held[1]}
        stored[row_marker] = RowMarker(key=row_marker, sequence=held[0], measures=measures)
    if is_row_there:
        stored[row_key(table(1), row)] = ViewRow(key=row_key(table(1), row))
    asked: list[str] = []
    monkeypatch.setattr(audit, "has_pending", lambda tag: asked.append(tag) is None)
    doubt = audit.source_doubt(table(1), source, {row: {"grade": 7}}, marker, stored)

    if message is None:
        assert (doubt, asked) == (None, [])
        return
    assert doubt is not None
    assert message in doubt.message
    assert doubt.is_pending is bool(asked) is ("not {" not in message)
    assert asked in ([], [f"{table(1)}:{row}"])


# Rings


@pytest.mark.parametrize(("doubt", "rung"), [(None, []), (ConnectionError(), ["r1", "r2"])])
def test_a_save_that_is_given_up_rings_if_it_may_be_committed(
    doubt: Exception | None, rung: list[str]
) -> None:
    """C1: for the rows of all its attempts; else their updates would wait for the sweep."""
    asked: list[str] = []
    ring_for = lambda clients, view, table, rows, committed_s: asked.extend(rows)  # noqa: E731
    any_bell: Any = SimpleNamespace(ring_for=ring_for)
    transaction: Any = SimpleNamespace(doubt=doubt, committed_s=None)
    rings = bell._Rings(any_bell, any_bell, transaction)
    rings.rows["t"] = (BY_SCHOOL, {"r1": None})
    rings.on_retry(ConnectionError())
    rings.rows["t"][1]["r2"] = None
    rings.on_outcome_unknown()

    assert asked == rung


# Folds


@pytest.mark.parametrize(("start", "order"), [("", "abcd"), ("t:c", "cdab"), ("t:e", "abcd")])
def test_a_fold_goes_on_where_the_last_one_ended_and_then_from_the_first_row(
    monkeypatch: pytest.MonkeyPatch, start: str, order: str
) -> None:
    """C1: that is all, however few rows are behind its beginning."""
    waiting, folded = [f"t:{letter}" for letter in "abcd"], list[str]()

    def list_unacked(_: Any, table: str, after: str, limit: int) -> list[tuple[str, str]]:
        return [(tag, tag) for tag in waiting if tag >= after][:limit]

    def fold_part(part: Any) -> bool:
        folded.append(part[0].unacked.tag)
        waiting.remove(folded[-1])
        return True

    monkeypatch.setattr(table_fold, "list_unacked", list_unacked)
    fold: Any = object.__new__(table_fold._Fold)
    fold._show_progress = lambda: None
    fold._clients, fold._table = None, "t"
    fold._has_passed_end, fold._later = False, set()
    fold._place = SimpleNamespace(start=start, pass_by=lambda tag: None)
    fold._due = lambda found: [tag for _, tag in found]
    fold._parts = lambda ids: [[SimpleNamespace(unacked=SimpleNamespace(tag=tag))] for tag in ids]
    fold._fold_part, fold._is_late = fold_part, lambda: False

    assert fold._run_paced()
    assert (folded, waiting) == ([f"t:{letter}" for letter in order], [])


_LIFE = test_each_table_is_read_built_or_on_its_way_out_until_it_is_gone
_ENDS = test_a_build_began_with_its_first_walk_and_ended_with_its_last
_HOLDS = test_a_row_holds_what_its_source_says
BUGS = (
    Bug(*(table_fold._Fold, "_run_paced", "self._has_passed_end or not self._place.start", "True"),
        test_a_fold_goes_on_where_the_last_one_ended_and_then_from_the_first_row,
        {"start": "t:c", "order": "cdab"}),
    Bug(*(changes, "swapped", "*entry.dropping, ", "", _LIFE)),
    Bug(*(changes, "_with_next", "([entry.building] if entry.building else [])", "()", _LIFE)),
    Bug(*(changes, "without_table", "other != table", "other == table", _LIFE)),
    Bug(*(changes, "retired", "(entry.live, entry.building)", "(entry.live,)", _LIFE)),
    Bug(*(changes, "_with_entry", "view_name(table) != name or ", ""),
        test_tokens_wait_for_one_table_and_its_specification_stays),
    Bug(*(Build, "run", ' and self.place != "building"', "", _ENDS),
        {"place": "building", "is_confirmed": True, "state": "running", "ended": None}),
    Bug(*(Build, "run", "if step == BACKFILL", "", _ENDS),
        {"place": "live", "is_confirmed": True, "state": "finished", "ended": 9}),
    Bug(*(Build, "run", "max(ends)", "min(ends)", _ENDS),
        {"place": "live", "is_confirmed": True, "state": "finished", "ended": 9}),
    Bug(*(audit, "source_doubt", "held.sequence == sequence and held", "False and held", _HOLDS),
        {"held": (5, 9), "is_row_there": True,
         "message": "holds {'grade': 9}, not {'grade': 7}"}),
    Bug(*(audit, "source_doubt", "held.sequence == sequence and held", "held", _HOLDS),
        {"held": (6, 9), "is_row_there": True, "message": None}),
    Bug(*(audit, "source_doubt", "if stored[row_key(table, row)] is None:", "if False:", _HOLDS),
        {"held": (5, 7), "is_row_there": False, "message": "is not there"}),
    Bug(*(bell._Rings, "on_outcome_unknown", "self.on_commit()", "pass"),
        test_a_save_that_is_given_up_rings_if_it_may_be_committed,
        {"doubt": ConnectionError(), "rung": ["r1", "r2"]}),
    Bug(*(bell._Rings, "on_outcome_unknown", "self.transaction.doubt is not None", "True"),
        test_a_save_that_is_given_up_rings_if_it_may_be_committed, {"doubt": None, "rung": []}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """C1, C5: each change of a catalog, and each comparison, is for something."""
    bug.check_noticed(monkeypatch)
