"""Paces, folds and markers of a table, without a store, and planted bugs."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.materialized_views import reader
from rollforward.materialized_views.entities import RowMarker, SourceMarker, marker_key
from rollforward.materialized_views.maintenance import audit, catch_up
from rollforward.materialized_views.updating import table_fold
from rollforward.materialized_views.updating.contribute import Contributor
from rollforward.materialized_views.updating.hints import FoldStart
from rollforward.materialized_views.updating.markers import MarkerUpdate
from rollforward.materialized_views.updating.pacing import TablePace
from rollforward.outbox.entities import OutboxTask, RowId, outbox_key
from rollforward.runtime.process.process_state import ProcessState
from rollforward.tasks.errors import Retry
from tests.infra.memory_datastore import Memory, offline
from tests.infra.mutation.lines import Bug

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
NOON_MS = int(NOON.timestamp() * 1000)
TABLE = "by_school.3.1"


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


class Cache:
    """Memcached, in a dictionary."""

    def __init__(self, **values: bytes) -> None:
        self.values = values
        self.get = self.values.get

    def set(self, name: str, value: bytes, ttl_s: int) -> None:
        self.values[name] = value


class Machine:
    """The clients of a process, at noon."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.clock = SimpleNamespace(now=lambda: NOON)
        self.cache = cache or Cache()
        self.process_state = ProcessState()


# Paces


@pytest.mark.parametrize(
    ("ahead_ms", "wait_ms"),
    [(0, 0), (1, 0), (300, 0), (301, 1), (500, 200), (501, 0), (9_000, 0)],
)
def test_a_row_waits_for_its_turn_and_for_no_wrong_clock(ahead_ms: int, wait_ms: int) -> None:
    """C1: it may be written a burst before its time, and at once if that time cannot be right."""
    name = f"views:pace:{TABLE}"
    stored = {"busy": NOON_MS + ahead_ms, "beside": NOON_MS + 400}
    machine: Any = Machine(Cache(**{name: json.dumps(stored).encode()}))
    paced: Any = SimpleNamespace(row_rate=10, row_burst=3)
    pace = TablePace.read(machine, paced, TABLE)

    at = pace.due_at("busy")
    assert (at - NOON if at else datetime.timedelta()).total_seconds() * 1000 == wait_ms
    assert pace.due_at("beside") == NOON + datetime.timedelta(milliseconds=100)
    for _ in range(2):
        pace.note_write("busy")
    assert pace.due_at("busy") is None
    is_sound = 0 < ahead_ms <= 500
    assert pace.arrivals["busy"] == NOON_MS + (ahead_ms if is_sound else 0) + 100
    assert pace.arrivals["beside"] == NOON_MS + 400


# Folds


@pytest.mark.parametrize(
    ("rows", "middle"),
    [("ab", 1), ("aaab", 3), ("abbb", 1), ("abbbcc", 4), ("aabbbb", 2), ("aaaa", 2), ("aaa", 1)],
)
def test_a_part_is_halved_between_two_rows(rows: str, middle: int) -> None:
    """C1: unless all of it is of one row: updates of a row that fail are found so."""
    part: Any = [SimpleNamespace(row=letter) for letter in rows]
    assert table_fold._middle(part) == middle


@pytest.mark.parametrize(
    ("rows", "error", "end"),
    [
        ("a", rpc_errors.ServiceUnavailable("away"), "raised"),  # type: ignore[no-untyped-call]
        ("ab", rpc_errors.ServiceUnavailable("away"), "raised"),  # type: ignore[no-untyped-call]
        ("a", ConnectionError("away"), "raised"),
        ("a", Retry("busy"), "raised"),
        ("a", rpc_errors.InvalidArgument("too large"), "own task"),  # type: ignore[no-untyped-call]
        ("aa", KeyError("poison"), "own task"),
        ("ab", KeyError("poison"), "halves"),
        ("ab", rpc_errors.Aborted("race"), "halves of a lost part"),  # type: ignore[no-untyped-call]
        ("a", rpc_errors.Aborted("race"), "lost"),  # type: ignore[no-untyped-call]
        ("ab", None, "written"),
    ],
)
def test_updates_get_own_tasks_for_what_is_their_own_fault(
    rows: str, error: Exception | None, end: str
) -> None:
    """C1: an outage of the store is nobody's, and a lost race is repeated."""
    ends, written = list[str](), list[str]()

    def apply_many(*args: object) -> None:
        if error is not None:
            raise error

    fold: Any = object.__new__(table_fold._Fold)
    fold._show_progress = lambda: None
    fold._clients, fold._table, fold._lost = Machine(), TABLE, 0
    fold._folder = SimpleNamespace(applier=SimpleNamespace(apply_many=apply_many))
    fold._span = lambda part: contextlib.nullcontext()
    fold._pace = SimpleNamespace(note_write=written.append)
    fold._give_own_task = lambda rows: ends.append("own task")
    fold._split_and_fold = lambda part, *, is_lost=False: ends.append(
        "halves of a lost part" if is_lost else "halves"
    )
    saved = NOON.replace(tzinfo=None)
    updates = {"updates": [], "unacked": None, "saved": saved}
    part = [SimpleNamespace(id=number, row=row, **updates) for number, row in enumerate(rows)]
    if end == "raised":
        with pytest.raises(type(error)):
            fold._fold_part(part)
        return
    ends += ["written"] if fold._fold_part(part) else []

    assert [*ends, *["lost"] * fold._lost] == [end]
    assert written == (list(rows) if end == "written" else [])


@pytest.mark.parametrize(
    ("is_all", "later", "lost", "written", "rings"),
    [
        (True, (), 0, {"a"}, []),
        (True, (3, 1, 2), 0, {"a"}, [1]),
        (False, (), 0, {"a"}, [None]),
        (False, (2, 1), 0, {"a"}, [1, None]),
        (False, (), 0, set(), []),
        (True, (2, 1), 1, {"a"}, [1]),
    ],
)
def test_a_fold_rings_for_what_it_leaves(
    is_all: bool, later: tuple[int, ...], lost: int, written: set[str], rings: list[int | None]
) -> None:
    """C1: for the earliest of the busy rows; a part that lost its race is the task's to repeat."""
    rung = list[Any]()
    at = [NOON + datetime.timedelta(seconds=seconds) for seconds in range(4)]
    fold: Any = object.__new__(table_fold._Fold)
    fold._show_progress = lambda: None
    fold._clients, fold._table, fold._lost = Machine(), TABLE, lost
    fold._later = {at[seconds] for seconds in later}
    fold._run_paced, fold._has_passed_end = lambda: is_all, True
    fold._pace = SimpleNamespace(store=lambda clients: None, written=written)
    fold._place = SimpleNamespace(store=lambda: None, next="t:b")
    ring = lambda clients, table, when: rung.append(when)  # noqa: E731
    fold._folder = SimpleNamespace(transport=SimpleNamespace(bell=SimpleNamespace(ring=ring)))

    with pytest.raises(Retry) if lost else contextlib.nullcontext():
        fold.run()
    assert rung == [None if seconds is None else at[seconds] for seconds in rings]
    assert fold._place.next == ("" if is_all else "t:b")


def test_a_fold_that_finds_only_busy_rows_goes_on_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C1: as far as its listings reach, also where one row alone fills them."""
    waiting = [(f"{TABLE}:{letter}", str(n)) for n, letter in enumerate("aabbbbbc")]

    def list_unacked(_: Any, table: str, after: str, limit: int) -> list[tuple[str, str]]:
        return [(id_, tag) for tag, id_ in waiting if tag >= after][:limit]

    monkeypatch.setattr(table_fold, "list_unacked", list_unacked)
    monkeypatch.setattr(table_fold, "MAX_LISTED", 3)
    cache, starts = Cache(), list[str]()
    for listings in (1, 1, 3):
        monkeypatch.setattr(table_fold, "MAX_LISTINGS", listings)
        machine: Any = Machine(cache)
        fold: Any = object.__new__(table_fold._Fold)
        fold._show_progress = lambda: None
        fold._clients, fold._table = machine, TABLE
        fold._has_passed_end, fold._later = False, set()
        fold._place = FoldStart(machine, TABLE)
        fold._due, fold._parts = lambda found: [], lambda ids: []
        starts.append(fold._place.start)
        is_all = fold._run_paced()
        fold._place.store()

    assert starts == ["", f"{TABLE}:b\0", f"{TABLE}:b\0"]
    assert is_all


# Markers


def test_a_source_that_comes_back_begins_above_its_earlier_life() -> None:
    """C4: by the time; one that has a marker goes on from there."""
    source = ndb.Key("Student", "s1")
    assert MarkerUpdate(source, None, NOON).sequence == NOON_MS * 1000
    marker = SourceMarker(
        key=marker_key(source), sequence=5, contributions={TABLE: {"n": [4, {"grade": 1}]}}
    )
    for value, sequences in ((1, []), (1.0, [6]), (2, [6])):
        change = MarkerUpdate(source, marker, NOON)
        rows: Any = {TABLE: {"n": {"grade": value}}}
        change.set_contributions(rows, retained=[], is_gone=lambda table: False)
        assert [update.sequence for _, update in change.updates()] == sequences
        assert change.after[TABLE]["n"] == [*(sequences or [4]), {"grade": value}]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_source_forgets_a_table_that_was_replaced_and_no_other(is_deleted: bool) -> None:
    """C5: else its marker grows with each rebuild, until it can hold no more."""
    source, gone, of_another_version = ndb.Key("Student", "s1"), "by_school.3.0", "by_city.4.1"
    tables = (gone, TABLE, of_another_version)
    marker = SourceMarker(
        key=marker_key(source), sequence=5, contributions={name: {"n": [4, {}]} for name in tables}
    )
    catalog: Any = SimpleNamespace(is_gone=lambda table: table == gone)
    contributed: dict[str, Any] = {TABLE: {} if is_deleted else {"n": {}}}
    anything: Any = None
    contributor = Contributor(anything, anything, anything)
    machine: Any = Machine()
    change = contributor._plan(machine, catalog, source, contributed, marker, is_deleted=is_deleted)

    assert {*change.after} == (set() if is_deleted else {TABLE, of_another_version})
    left = {table for (table, _), _ in change.updates()}
    assert left == ({TABLE, of_another_version} if is_deleted else set())


@pytest.mark.parametrize("held", [None, 4, 5, 6])
def test_a_source_waits_until_its_row_holds_its_change(held: int | None) -> None:
    """C5: an earlier one is not enough, and a later one is."""
    for name, sequence in (("s1", held), ("s2", 9)):
        source = ndb.Key("Student", name)
        contributions = {TABLE: {"n": [5, {}]}, "by_city.3.1": {"n": [8, {}]}}
        sent = {f"{TABLE}:n": f"of {name}"}
        marker = SourceMarker(
            key=marker_key(source), sequence=5, contributions=contributions, sent=sent
        )
        Memory.current.put(marker)
        if sequence is not None:
            row = audit.row_marker_of(TABLE, "n", source)
            Memory.current.put(RowMarker(key=row, sequence=sequence, measures={}))
    sources = [ndb.Key("Student", "s1"), ndb.Key("Student", "s2")]

    is_there = held is not None and held >= 5
    assert catch_up.missing_updates(TABLE, sources) == [[] if is_there else ["of s1"], []]


def test_the_updates_that_have_waited_longest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: whichever rows and transactions they are of."""
    ids = []
    for transaction, minutes in (("a", 2), ("b", 3), ("c", 1)):
        created = NOON.replace(tzinfo=None) - datetime.timedelta(minutes=minutes)
        ids.append(RowId(transaction * 6, created, 0, is_unacked=True, digest="d").text)
        row = OutboxTask(key=outbox_key(ids[-1]), path="/p", queue="q", body="{}")
        Memory.current.put(row)
    found = [outbox_key(id_) for id_ in ids]
    monkeypatch.setattr(reader, "waiting_for_rows", lambda view, prefix, limit: found[:limit])
    transport: Any = SimpleNamespace(read=lambda row: row.key.id())
    views: Any = reader.ViewReader(SimpleNamespace(views={}), SimpleNamespace(), transport)  # type: ignore[arg-type]
    monkeypatch.setattr(views, "_of_live", lambda view, look: look(TABLE))
    machine: Any = Machine()

    for limit in (3, 1):
        waits = views.waiting(machine, None, limit=limit)
        told = [(ids.index(id_), round(waited_s)) for id_, waited_s in waits]
        assert told == [(1, 180), (0, 120), (2, 60)][:limit]


_ROW_WAITS = test_a_row_waits_for_its_turn_and_for_no_wrong_clock
_HALVED = test_a_part_is_halved_between_two_rows
_FAULT = test_updates_get_own_tasks_for_what_is_their_own_fault
_RINGS = test_a_fold_rings_for_what_it_leaves
_BUSY = test_a_fold_that_finds_only_busy_rows_goes_on_behind_them
BUGS = (
    Bug(*(TablePace, "read", " <= latest_ms", "", _ROW_WAITS), {"ahead_ms": 501, "wait_ms": 0}),
    Bug(*(table_fold, "_middle", "min(borders, key=lambda border: abs(border - middle))",
          "middle", _HALVED), {"rows": "aaab", "middle": 3}),
    Bug(*(table_fold._Fold, "_fold_part", "if is_outage(error):", "if False:", _FAULT),
        {"rows": "a", "error": ConnectionError("away"), "end": "raised"}),
    Bug(*(table_fold._Fold, "run", "min(self._later)", "max(self._later)", _RINGS),
        {"is_all": True, "later": (3, 1, 2), "lost": 0, "written": {"a"}, "rings": [1]}),
    Bug(*(table_fold._Fold, "_run_paced", "self._place.pass_by(after)", "pass", _BUSY)),
    Bug(*(table_fold._Fold, "_run_paced", 'after += "\\0"', "pass", _BUSY)),
    Bug(*(MarkerUpdate, "__init__", "int(now.timestamp() * 1_000_000)", "1"),
        test_a_source_that_comes_back_begins_above_its_earlier_life),
    Bug(*(catch_up, "_includes", "row_marker.sequence >= sequence", "True"),
        test_a_source_waits_until_its_row_holds_its_change, {"held": 4}),
    Bug(*(reader.ViewReader, "waiting", "sorted(keys, key=saved_at)", "keys"),
        test_the_updates_that_have_waited_longest_come_first),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    """C1, C4, C5: each decision of a fold is for something."""
    bug.check_noticed(monkeypatch)
