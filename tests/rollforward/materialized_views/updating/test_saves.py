"""What a save sends: updates of the rows that change, and a marker that goes on counting."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.ndb.context import get_context

from rollforward.datastore.transactions import MAX_ATTEMPTS, transact
from rollforward.materialized_views import Contributions, View
from rollforward.materialized_views.entities import RowMarker, SourceMarker, ViewRow, marker_key
from rollforward.materialized_views.updating import prepared
from rollforward.outbox.entities import OutboxTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    WrongClock,
    by_own_tasks,
    counts,
    number,
    one_emulator,
    played,
    row_markers,
    rows_here,
    tasks_here,
)
from tests.rollforward.materialized_views.student_views import (
    SCHOOL,
    ByGrade,
    ByHouse,
    Pupil,
    differences,
    pupil,
)

pytestmark = pytest.mark.fast


def test_a_save_sends_a_task_only_for_rows_whose_contribution_changed(here: World) -> None:
    """C1, M8: a new measure changes one row, a new house two, and an unchanged save none."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1.5, "x"))
    here.settle()

    sent = []
    for saved in [pupil("ada", 1, 2.5, "x"), pupil("ada", 1, 2.5, "x"), pupil("ada", 1, 2.5, "y")]:
        sent.append(len(SCHOOL.save(here.clients, saved).updates))
        here.settle()

    # ByGrade's row changes by its points and by its house, ByHouse loses a row and gets one.
    assert sent == [1, 0, 3]
    assert differences() == []


def test_a_whole_number_and_a_float_of_the_same_value_are_two_contributions(
    services: Services,
) -> None:
    """1 and 1.0 are stored differently, so one cannot stand for the other."""
    with played(services, [Numbers]) as (world, views):
        sent = [len(views.save(world.clients, number("a", n)).updates) for n in (1, 1, 1.0, 1.0)]
        world.settle()

        assert sent == [1, 0, 1, 0]
        assert differences(views) == []


def test_a_source_moves_goes_and_comes_back_with_a_sequence_that_goes_on(here: World) -> None:
    """C1, C4: row 2 has it, then no row, then row 1; its marker counts on from the first time."""
    began_us = int(here.clock.now().timestamp() * 1_000_000)
    seen, sequences = [], []
    for step in (1, 2, None, 1):
        if step is None:
            SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
        else:
            SCHOOL.save(here.clients, pupil("ada", step, 1))
        here.settle()
        seen.append(counts(here))
        sequences.append(marker_key(ndb.Key(Pupil, "ada")).get().sequence)

    assert seen == [{1: 1}, {2: 1}, {}, {1: 1}]
    assert sequences == list(range(began_us, began_us + 4))
    assert marker_key(ndb.Key(Pupil, "ada")).get().forget_after is None


def test_the_marker_of_a_deleted_source_may_be_forgotten_after_sixty_days(here: World) -> None:
    """Its deletion says from when on."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))

    left = marker_key(ndb.Key(Pupil, "ada")).get()
    now = here.clock.now().replace(tzinfo=None)

    assert left.contributions == {}
    assert left.forget_after - now == datetime.timedelta(days=60)


@pytest.mark.parametrize("saves", [1, 5])
def test_a_source_made_anew_when_its_marker_is_forgotten_begins_above_all_it_had(
    here: World, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """C4: an update of its first life that comes then, parked or held up for months, is late."""
    by_own_tasks(monkeypatch)
    key = ndb.Key(Pupil, "ada")
    for points in range(saves):
        SCHOOL.save(here.clients, pupil("ada", 1, points))
    late = [here.engine.begin_attempt(due.task_name) for due in here.engine.due()]
    for attempt in late:
        here.engine.end_attempt(attempt.id, status=200, error=None)
    SCHOOL.delete(here.clients, key)
    here.settle()
    marker_key(key).delete()  # As a TTL policy does.
    later = replace(here.clients, clock=WrongClock(here.clock, 61 * 24 * 3600))  # type: ignore[arg-type]
    SCHOOL.save(later, pupil("ada", 1, 3))
    here.settle()

    for attempt in late:
        SCHOOL.apply(here.clients, SCHOOL.task.read(attempt.body))
    before = differences()
    SCHOOL.save(later, pupil("ada", 2, 4))
    here.settle()

    assert late
    assert (before, differences()) == ([], [])


def test_a_marker_that_counts_from_one_goes_on(here: World) -> None:
    """C4: the first version of this code began so."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.settle()
    stored = marker_key(ndb.Key(Pupil, "ada")).get()
    stored.sequence = 7
    stored.contributions = {
        table: {row: [7, measures] for row, (_, measures) in rows.items()}
        for table, rows in stored.contributions.items()
    }
    stored.put()
    for held in rows_here(RowMarker):
        if held.key.id().startswith("Pupil:"):
            held.sequence = 7
            held.put()

    SCHOOL.save(here.clients, pupil("ada", 2))
    here.settle()

    assert marker_key(ndb.Key(Pupil, "ada")).get().sequence == 8
    assert counts(here) == {2: 1}


def test_many_views_share_one_marker_and_one_commit(world: World) -> None:
    """Three round trips before the answer, 2 reads, 2 writes and 1 for each row that changes."""
    clients = world.clients
    with clients.context(), world.plan.watched():
        before = clients.meter.cost()
        token = SCHOOL.save(clients, pupil("ada", 1, 2.5, "x"))
        cost = clients.meter.cost() - before
        calls = list(world.plan.calls)

    assert calls[:3] == ["BeginTransaction", "Lookup", "Commit"]
    made = {"BatchCreateTasks", "CreateTask", "GetOperation", "cache.count"}
    assert set(calls[3:]) <= {*made, "cache.get", "cache.add"}
    assert (cost.reads, cost.writes, cost.tasks) == (2, 2 + 2, 2)
    assert len(token.updates) == 2
    with world.context():
        assert len(SourceMarker.query().fetch()) == 1


def test_a_row_without_sources_goes_and_a_late_duplicate_does_not_bring_it_back(
    here: World,
) -> None:
    """C1, C3: neither the row nor a marker stays behind, and neither is made again."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    late = [SCHOOL.task.read(row.body.encode()) for row in OutboxTask.query().fetch()]
    here.settle()
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
    here.settle()

    for update in late:
        SCHOOL.apply(here.clients, update)
    here.settle()

    assert rows_here(ViewRow) == []
    assert rows_here(RowMarker) == []
    assert tasks_here() == 0


def test_an_update_that_comes_twice_writes_no_row_again(here: World) -> None:
    """C1: a stale update changes nothing, and costs no view downstream an update."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    twice = [SCHOOL.task.read(row.body.encode()) for row in OutboxTask.query().fetch()]
    here.settle()
    before = here.clients.meter.cost()

    for update in twice:
        SCHOOL.apply(here.clients, update)

    spent = here.clients.meter.cost() - before
    assert len(twice) == 2
    assert spent.writes == len(twice)  # Each acks its outbox row once more.
    assert (tasks_here(), here.engine.due()) == (0, [])


def test_a_group_knows_which_sources_were_ever_saved(here: World) -> None:
    """Also those that are deleted; but not one that never contributed anything."""
    key = ndb.Key(Pupil, "ada")
    known = [SCHOOL.was_saved(key)]
    SCHOOL.save(here.clients, pupil("ada", 1), pupil("bob", None))
    known.append(SCHOOL.was_saved(key))
    SCHOOL.delete(here.clients, key)
    known.append(SCHOOL.was_saved(key))

    assert known == [False, True, True]
    assert not SCHOOL.was_saved(ndb.Key(Pupil, "bob"))


def test_a_kind_that_no_view_has_is_refused(here: World) -> None:
    """It would be saved, and nothing would follow."""
    with pytest.raises(LookupError, match="no view of school has Number"):
        SCHOOL.save(here.clients, number("a", 1))
    with pytest.raises(LookupError):
        SCHOOL.delete(here.clients, ndb.Key("Number", "a"))

    assert Number.query().fetch() == []


def test_of_one_source_saved_twice_in_a_call_the_last_counts(here: World) -> None:
    """C1: both are one change."""
    SCHOOL.save(here.clients, pupil("ada", 1), pupil("ada", 2))
    here.settle()

    assert counts(here) == {2: 1}
    assert len(row_markers("by_grade.1.1")) == 1


@one_emulator
def test_sources_may_have_numbers_parents_and_no_key_at_all(here: World) -> None:
    """A key that is made up keeps its parent."""
    school = ndb.Key("School", 7)
    sources = [
        Pupil(id=12, grade=1),
        Pupil(id=12, parent=school, grade=1),
        Pupil(parent=school, grade=1),
        Pupil(grade=1),
    ]

    SCHOOL.save(here.clients, *sources)
    here.settle()

    assert counts(here) == {1: 4}
    assert [source.key.parent() for source in sources] == [None, school, school, None]
    assert differences() == []


@one_emulator
def test_a_source_without_an_id_stays_in_its_namespace(here: World) -> None:
    """A tenant's source that gets its id by the save is saved among the tenant's."""
    school = ndb.Key("School", 7, namespace="tenant")
    sources = [
        Pupil(namespace="tenant", grade=1),
        Pupil(parent=school, namespace="tenant", grade=1),
        Pupil(key=ndb.Key(Pupil, None, namespace="tenant"), grade=1),
    ]

    SCHOOL.save(here.clients, *sources)
    here.settle()

    assert [source.key.namespace() for source in sources] == ["tenant"] * 3
    assert ndb.get_multi([source.key for source in sources]) == sources
    assert [source.key.parent() for source in sources] == [None, school, None]
    assert counts(here) == {1: 3}


def test_names_in_any_language_are_rows(here: World) -> None:
    """C1: in rows, measures, keys and ranks."""
    house = "Ґанок «é» 𐐷"
    SCHOOL.save(here.clients, pupil("Zoë", 1, 1, house), pupil("李", 1, 2, house))
    here.settle()

    assert counts(here, ByHouse) == {house: 2}
    assert SCHOOL.distinct(ByGrade, 1, "house") == 1
    assert [key.id() for key, _ in SCHOOL.top(ByGrade, 1, "points", 2)] == ["李", "Zoë"]
    assert differences() == []


class Shelf(ndb.Model):
    """A source whose view reads, and fails as often as a test says."""


class Shelves(View):
    """Shelves in one row."""

    source = Shelf
    row_rate = None
    errors: ClassVar[list[Exception]] = []

    @staticmethod
    def contributions(shelf: Shelf) -> Contributions:
        if Shelves.errors:
            raise Shelves.errors.pop()
        return {"all": {}}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "pause_before_retry", lambda failures: None)


@pytest.mark.usefixtures("no_pauses")
def test_a_view_is_asked_again_after_an_error_of_the_service(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as the body of a transaction; the save's own attempts do not repeat the error."""
    errors = [rpc_errors.ServiceUnavailable(f"{number}") for number in range(9)]  # type: ignore[no-untyped-call]
    with played(services, [Shelves]) as (world, views):
        monkeypatch.setattr(Shelves, "errors", errors[: MAX_ATTEMPTS - 1])
        views.save(world.clients, Shelf(id="a"))
        assert Shelves.errors == []

        monkeypatch.setattr(Shelves, "errors", errors)
        with pytest.raises(rpc_errors.ServiceUnavailable), world.plan.watched():
            views.save(world.clients, Shelf(id="b"))
        assert len(errors) == 9 - MAX_ATTEMPTS
        assert "BeginTransaction" not in world.plan.calls

        monkeypatch.setattr(Shelves, "errors", [])
        world.settle()
        assert differences(views) == []


class Crate(ndb.Model):
    """A source with hooks; each of them asks for a call after the commit."""

    calls: ClassVar[list[str]] = []

    def _pre_put_hook(self) -> None:
        get_context().call_on_commit(lambda: Crate.calls.append("put"))

    @classmethod
    def _pre_delete_hook(cls, key: ndb.Key) -> None:
        get_context().call_on_commit(lambda: Crate.calls.append("delete"))


class Crates(View):
    """Crates in one row."""

    source = Crate
    row_rate = None

    @staticmethod
    def contributions(crate: Crate) -> Contributions:
        return {"all": {}}


def test_what_hooks_of_a_source_ask_for_happens_after_the_commit(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source whose kind has hooks is saved and deleted in a transaction of ndb."""
    monkeypatch.setattr(Crate, "calls", [])
    with played(services, [Crates]) as (world, views):
        views.save(world.clients, Crate(id="a"), Crate(id="b"))
        views.delete(world.clients, ndb.Key(Crate, "a"))
        world.settle()

        assert Crate.calls == ["put", "put", "delete"]
        assert differences(views) == []


class DatedNote(ndb.Model):
    """A source of which ndb sets two times."""

    created = ndb.DateTimeProperty(auto_now_add=True)
    updated = ndb.DateTimeProperty(auto_now=True)


class HookedNote(DatedNote):
    """One whose hook sets a value, too."""

    puts = ndb.IntegerProperty(default=0)

    def _pre_put_hook(self) -> None:
        self.puts += 1


class Notes(View):
    """Notes by the year of their creation, with the time of their last change."""

    source = DatedNote
    row_rate = None

    @staticmethod
    def contributions(note: DatedNote) -> Contributions:
        seconds = note.updated.replace(tzinfo=datetime.UTC).timestamp()
        return {note.created.year: {"updated": seconds, "puts": getattr(note, "puts", 0)}}


class HookedNotes(Notes):
    """The same of notes with a hook."""

    source = HookedNote


# ndb's own clock, from Python 3.12 on.
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("view", [Notes, HookedNotes])
def test_views_see_what_a_put_sets(
    services: Services, view: type[View], *, is_in_transaction: bool
) -> None:
    """C1: a rebuild finds nothing else than what the saves have contributed."""
    with played(services, [view]) as (world, views):

        def save(source: Any) -> None:
            if is_in_transaction:
                transact(lambda: views.save_in_transaction(world.clients, source))
            else:
                views.save(world.clients, source)

        note = view.source(id="a")
        save(note)
        world.settle()
        assert differences(views) == []
        save(note)
        world.settle()
        assert differences(views) == []
        assert getattr(note, "puts", 2) == 2
