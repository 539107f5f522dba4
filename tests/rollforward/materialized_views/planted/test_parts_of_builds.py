"""The steps of a table's build, without a store, and planted bugs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.materialized_views import catalog_changes as changes
from rollforward.materialized_views.catalog import Catalog
from rollforward.materialized_views.maintenance import rebuild, tables
from rollforward.materialized_views.maintenance.tables import Tables
from rollforward.materialized_views.updates import Propagate
from rollforward.materialized_views.updating import apply
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

TABLE = "by_school.3.1"


def view(name: str, *kinds: str) -> Any:
    functions = dict.fromkeys(kinds or ("Student",), 1)
    return SimpleNamespace(name=name, version=3, functions=lambda: functions, ranked=())


BY_SCHOOL, BY_CITY, SCHOOLS = view("by_school"), view("by_city"), view("schools", "by_school")


class Catalogs:
    """A catalog that is stored once."""

    def __init__(self, *views: Any) -> None:
        self.catalog = Catalog({})
        for each in views:
            self.catalog = changes.with_next(changes.with_view(self.catalog, each), each)

    def read(self) -> Catalog:
        return self.catalog

    def write(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def tables(self, each: Any) -> tuple[int, int | None]:
        """Return the numbers of the table that is read and of the one being built."""
        entry = self.catalog.entry(each)
        live, building = (name and int(name.split(".")[2]) for name in (entry.live, entry.building))
        assert isinstance(live, int)
        return live, building or None


def tables_of(catalogs: Catalogs, *below: Any) -> Any:
    definitions: Any = SimpleNamespace(downstream_of=lambda each: list(below))
    stored: Any = catalogs
    return Tables(definitions, stored, walks=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given_up", "begins"), [(None, 2), ("by_school.3.2", 3), (TABLE, 2)])
def test_a_build_is_begun_once_until_it_has_failed(given_up: str | None, begins: int) -> None:
    """C5: a second call joins it; one that gives it up begins the next."""
    catalogs = Catalogs(BY_SCHOOL, BY_CITY)
    assert tables_of(catalogs).begin(BY_SCHOOL, given_up) == f"by_school.3.{begins}"
    assert (catalogs.tables(BY_SCHOOL), catalogs.tables(BY_CITY)) == ((1, begins), (1, 2))


@pytest.mark.parametrize(
    ("number", "has_ended", "is_known_here", "after"),
    [
        (2, True, True, [(2, None), (1, 3), (1, 2)]),
        (2, True, False, [(2, None), (1, 3), (1, 2)]),
        (2, False, True, [(1, 2), (1, 2), (1, 2)]),
        (1, True, True, [(1, 2), (1, 2), (1, 2)]),
    ],
)
def test_a_table_is_swapped_in_when_its_walks_have_ended_and_rebuilds_what_is_below(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    has_ended: bool,
    is_known_here: bool,
    after: list[tuple[int, int | None]],
) -> None:
    """C5: also a view downstream that this code does not know, and no other view."""
    monkeypatch.setattr(Tables, "has_ended", lambda self, catalog, view, table: has_ended)
    catalogs = Catalogs(BY_SCHOOL, SCHOOLS, BY_CITY)
    of_group = tables_of(catalogs, *([SCHOOLS] if is_known_here else []))

    is_swapped = of_group.swap(BY_SCHOOL, f"by_school.3.{number}")
    assert is_swapped is (after[0] == (2, None))
    assert [catalogs.tables(each) for each in (BY_SCHOOL, SCHOOLS, BY_CITY)] == after


@pytest.mark.parametrize("state", [FINISHED, RUNNING, None])
def test_a_table_has_ended_when_each_of_its_walks_has(
    monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """C5: of each kind, in each step: one that is missing has not."""
    walks = [SimpleNamespace(run_id=lambda step, kind=kind: f"{kind} {step}") for kind in "ab"]
    for one in [f"{kind} {step}" for kind in "ab" for step in ("backfill", "catch-up", "confirm")]:
        states = {one: state}
        found = lambda keys, states=states: [  # noqa: E731
            SimpleNamespace(state=its) if (its := states.get(key, FINISHED)) else None
            for key in keys
        ]
        monkeypatch.setattr(tables, "run_key", lambda run_id: run_id)
        monkeypatch.setattr(tables, "ndb", SimpleNamespace(get_multi=found))
        of_group = Tables(None, None, SimpleNamespace(of_table=lambda *args: walks))  # type: ignore[arg-type]
        ended = of_group.has_ended(Catalogs(BY_SCHOOL).catalog, BY_SCHOOL, TABLE)
        assert ended is (state == FINISHED)


@pytest.mark.parametrize(
    ("done", "steps"),
    [
        (0, ["backfill?"]),
        (1, ["backfill?", "catch-up?"]),
        (2, ["backfill?", "catch-up?", "let wait", "confirm?"]),
        (3, ["backfill?", "catch-up?", "let wait", "confirm?", "departed?"]),
        (4, ["backfill?", "catch-up?", "let wait", "confirm?", "departed?", "swap", "advance"]),
    ],
)
def test_a_build_takes_its_steps_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, done: int, steps: list[str]
) -> None:
    """C5: tokens wait for the table before a last walk confirms it; then sources leave its rows."""
    taken = list[str]()
    build: Any = object.__new__(rebuild.ViewMaintenance)

    def is_done(clients: object, walks: object, step: str) -> bool:
        taken.append(f"{step}?")
        return step in ("backfill", "catch-up", "confirm")[:done]

    def hold_removed(*_: object) -> bool:
        taken.append("departed?")
        return done < 4

    monkeypatch.setattr(rebuild, "transact", lambda body: body())
    monkeypatch.setattr(rebuild, "hold_removed", hold_removed)
    build._contributor = SimpleNamespace(transport=None)
    build._is_done, build._walks_of = is_done, lambda *args: []
    build._tables = SimpleNamespace(
        add_required=lambda *args: taken.append("let wait"),
        swap=lambda *args: taken.append("swap") is None,
    )
    build._definitions = SimpleNamespace(downstream_of=lambda name: [])
    build.advance = lambda *args: taken.append("advance")
    build._continue(None, Catalogs(BY_SCHOOL).catalog, BY_SCHOOL)

    assert taken == steps


@pytest.mark.parametrize(
    ("ends", "is_done", "begun"),
    [
        ("", False, 2),
        ("f", False, 2),
        ("fr", False, 0),
        ("fx", False, 0),
        ("ff", True, 0),
    ],
)
def test_a_step_is_done_when_all_of_its_walks_have_ended_well(
    monkeypatch: pytest.MonkeyPatch, ends: str, is_done: bool, begun: int
) -> None:
    """C5: a walk that has failed for some source stops the build."""
    totals = {letter: SimpleNamespace(failed=int(letter == "x")) for letter in "frx"}
    states = {"r": RUNNING}
    runs = [
        SimpleNamespace(state=states.get(letter, FINISHED), totals=totals[letter], retried_by=None)
        for letter in ends
    ]
    monkeypatch.setattr(rebuild, "runs_of", lambda clients, walks, step: runs)
    started = list[object]()
    build: Any = object.__new__(rebuild.ViewMaintenance)
    build._start = lambda clients, step, walk: started.append(walk)

    assert build._is_done(None, ["a", "b"], "backfill") is is_done
    assert len(started) == begun


@pytest.mark.parametrize(("number", "contributes"), [(1, True), (2, False), (0, False)])
def test_only_a_row_of_the_table_that_is_read_is_a_source_of_views_below(
    monkeypatch: pytest.MonkeyPatch, number: int, contributes: bool
) -> None:
    """C1: whenever its task comes: none of a table that is being built, or was replaced."""
    contributed: list[object] = []
    monkeypatch.setattr(apply, "transact", lambda body: body())
    key = SimpleNamespace(get=lambda: None)
    monkeypatch.setattr(apply, "row_key", lambda table, row: key)
    definitions: Any = SimpleNamespace(known=lambda catalog, table: BY_SCHOOL)
    catalogs: Any = SimpleNamespace(read_any=lambda clients: Catalogs(BY_SCHOOL).catalog)
    contributor: Any = SimpleNamespace(contribute=lambda clients, rows: contributed.extend(rows))
    nobody: Any = None
    applier = apply.Applier(definitions, catalogs, contributor, nobody)
    applier.propagate(nobody, Propagate(f"by_school.3.{number}", "north"))
    assert contributed == ([(key, None)] if contributes else [])


_SWAP = test_a_table_is_swapped_in_when_its_walks_have_ended_and_rebuilds_what_is_below
_STEPS = test_a_build_takes_its_steps_one_after_the_other
_SWAPPED = {"number": 2, "has_ended": True, "after": [(2, None), (1, 3), (1, 2)]}
_ALL_STEPS = ["backfill?", "catch-up?", "let wait", "confirm?", "departed?", "swap", "advance"]
BUGS = (
    Bug(*(apply.Applier, "propagate",
          "catalog.live(self.definitions.known(catalog, args.table)) != args.table", "False"),
        test_only_a_row_of_the_table_that_is_read_is_a_source_of_views_below,
        {"number": 2, "contributes": False}),
    Bug(*(Tables, "begin", " and building != given_up", ""),
        test_a_build_is_begun_once_until_it_has_failed,
        {"given_up": "by_school.3.2", "begins": 3}),
    Bug(*(Tables, "swap", " or not self.has_ended(catalog, view, table)", "", _SWAP),
        {"number": 2, "has_ended": False, "is_known_here": True,
         "after": [(1, 2), (1, 2), (1, 2)]}),
    Bug(*(Tables, "swap", "{**ours, **dict.fromkeys(catalog.downstream_of(view))}", "ours", _SWAP),
        {**_SWAPPED, "is_known_here": False}),
    Bug(*(rebuild.ViewMaintenance, "_continue", "if table not in catalog.required_tables(view):",
          "if False:", _STEPS), {"done": 4, "steps": _ALL_STEPS}),
    Bug(*(rebuild.ViewMaintenance, "_continue",
          "if not self._is_done(clients, walks, CONFIRM):", "if False:", _STEPS),
        {"done": 2, "steps": _ALL_STEPS[:4]}),
    Bug(*(rebuild.ViewMaintenance, "_continue",
          "if hold_removed(clients, self._contributor.transport, walks):", "if False:", _STEPS),
        {"done": 3, "steps": _ALL_STEPS[:5]}),
    Bug(*(rebuild.ViewMaintenance, "_is_done", " and not run.totals.failed", ""),
        test_a_step_is_done_when_all_of_its_walks_have_ended_well,
        {"ends": "fx", "is_done": False, "begun": 0}),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """C5: each step of a build is for something."""
    bug.check_noticed(monkeypatch)
