"""Materialized views: what a save sends, what rows say, and how views are built anew."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

import main
from demos.registry import APP
from devserver.cloudtasks import messages
from handlers.endpoints import recovery
from models.dead_tasks import DeadTask
from models.materialized_views import (
    RowMarker,
    SourceMarker,
    ViewRow,
    marker_key,
    row_key,
    row_marker_key,
)
from models.outbox import OutboxTask, RowId
from models.transactions import transact
from pipelines.continuations.jobs import RefusedItemError
from pipelines.materialized_views import ViewMaintenance
from pipelines.materialized_views import freshness as view_reads
from pipelines.materialized_views import group as materialized_views
from pipelines.materialized_views import rebuild as view_builds
from pipelines.materialized_views.freshness import TooLargeTokenError, row_order
from pipelines.materialized_views.group import (
    BadContributionError,
    ConsistencyToken,
    Contributions,
    Row,
    View,
    ViewGroup,
)
from pipelines.materialized_views.rebuild import CONFIRM, FILL, NOT_BUILT, BuildStatus, Walk
from pipelines.materialized_views.rows import checked, ranks_of, row_text
from pipelines.materialized_views.updates import MAX_LEFT, Update, parts_of, source_name
from pipelines.registry import Registry
from pipelines.runtime.cache import NoCache
from pipelines.tasks.dead_tasks import Replay
from pipelines.tasks.declaration import MAX_BODY_BYTES
from tests.faults import CRASH_AFTER, Crash
from tests.pipelines.memory import Memory, offline
from tests.pipelines.school import (
    BUILDS,
    SCHOOL,
    ByGrade,
    ByHouse,
    GradesBySize,
    Pupil,
    Tutor,
    differences,
    facts,
)
from tests.world import SWEPT_EVERY_S, Services, World

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


class Beside(World):
    """A world whose app answers on a thread of its own, so that a test may look meanwhile."""

    def answer(self, attempt: Any) -> int | None:
        return in_a_thread(lambda: super(Beside, self).answer(attempt))

    def sweep(self) -> None:
        in_a_thread(super().sweep)


def in_a_thread(body: Callable[[], Any]) -> Any:
    """Return what a function returns on a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(body).result()


@pytest.fixture
def world(services: Services) -> World:
    """A world that delivers the school's updates."""
    return Beside(services, builds=[BUILDS])


@pytest.fixture
def here(world: World) -> Iterator[World]:
    """The same, in a context that is open."""
    with world.context():
        yield world


def pupil(name: str, grade: int | None, points: float | None = None, house: str = "") -> Pupil:
    return Pupil(id=name, grade=grade, points=points, house=house or None)


def tasks_here() -> int:
    """Return how many updates wait."""
    return len(OutboxTask.query().fetch(keys_only=True))


def counts(world: World, view: type[View] = ByGrade, views: ViewGroup = SCHOOL) -> dict[Any, Any]:
    """Return what a reader sees: each row and its count."""
    return {row.name: row.count for row in views.read(world.clients, view).rows}


def row_markers(table: str) -> dict[str, set[str]]:
    """Return the sources that each row of a table has a marker of."""
    found: dict[str, set[str]] = {}
    for marker in RowMarker.query().fetch():
        own, _, row = marker.key.parent().id().partition(":")
        if own == table:
            name = ndb.Key(urlsafe=marker.key.id().partition(":")[2].encode()).id()
            found.setdefault(row, set()).add(name)
    return found


def deploy(world: World, *builds: ViewMaintenance) -> None:
    """Let another version of the code answer from now on."""
    registry = Registry.of(APP.jobs.values(), APP.tasks.values(), [*APP.builds, *builds])
    world.app = main.create_app(world.settings, world.clients, registry)
    world.app.testing = False


# What a save sends


def test_a_save_sends_a_task_only_for_rows_whose_contribution_changed(here: World) -> None:
    """C1, M8: a new measure is one row's, a new house two, and an unchanged save is nobody's."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1.5, "x"))
    here.settle()

    sent = []
    for saved in [pupil("ada", 1, 2.5, "x"), pupil("ada", 1, 2.5, "x"), pupil("ada", 1, 2.5, "y")]:
        sent.append(len(SCHOOL.save(here.clients, saved).held))
        here.settle()

    # ByGrade's row changes by its points and by its house, ByHouse loses a row and gets one.
    assert sent == [1, 0, 3]
    assert differences() == []


def test_a_whole_number_and_a_float_of_the_same_value_are_two_contributions(
    services: Services,
) -> None:
    """1 and 1.0 are stored differently, so one cannot stand for the other."""
    with played(services, [Numbers]) as (world, views):
        sent = [len(views.save(world.clients, number("a", n)).held) for n in (1, 1, 1.0, 1.0)]
        world.settle()

        assert sent == [1, 0, 1, 0]
        assert differences_of(views) == []


def test_a_source_moves_goes_and_comes_back_with_a_sequence_that_goes_on(here: World) -> None:
    """C1, C4: row 2 has it, then nobody, then row 1; its marker counts on from the first time."""
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
    here: World, saves: int
) -> None:
    """C4: an update of its first life that comes then, parked or held up for months, is late."""
    key = ndb.Key(Pupil, "ada")
    for points in range(saves):
        SCHOOL.save(here.clients, pupil("ada", 1, points))
    late = [here.engine.begin_attempt(due.task_name) for due in here.engine.due()]
    for attempt in late:
        here.engine.end_attempt(attempt.id, status=200, error=None)
    SCHOOL.delete(here.clients, key)
    here.settle()
    marker_key(key).delete()  # As a TTL policy does.
    later = replace(here.clients, clock=Wrong(here.clock, 61 * 24 * 3600))  # type: ignore[arg-type]
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
    for held in RowMarker.query().fetch():
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
    assert set(calls[3:]) <= {"BatchCreateTasks", "CreateTask", "GetOperation", "cache.count"}
    assert (cost.reads, cost.writes, cost.tasks) == (2, 2 + 2, 2)
    assert len(token.held) == 2
    with world.context():
        assert len(SourceMarker.query().fetch()) == 1


def test_a_row_without_sources_goes_and_a_late_duplicate_does_not_bring_it_back(
    here: World,
) -> None:
    """C1, C3: neither the row nor a marker stays behind, and none comes again."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    late = [SCHOOL.task.read(row.body.encode()) for row in OutboxTask.query().fetch()]
    here.settle()
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
    here.settle()

    for update in late:
        SCHOOL.apply(here.clients, update)
    here.settle()

    assert ViewRow.query().fetch() == []
    assert RowMarker.query().fetch() == []
    assert tasks_here() == 0


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


def test_names_in_any_language_are_rows(here: World) -> None:
    """C1: in rows, measures, keys and ranks."""
    house = "Ґанок «é» 𐐷"
    SCHOOL.save(here.clients, pupil("Zoë", 1, 1, house), pupil("李", 1, 2, house))
    here.settle()

    assert counts(here, ByHouse) == {house: 2}
    assert SCHOOL.distinct(ByGrade, 1, "house") == 1
    assert [key.id() for key, _ in SCHOOL.top(ByGrade, 1, "points", 2)] == ["李", "Zoë"]
    assert differences() == []


# In a transaction of the caller's


def test_a_save_joins_the_callers_transaction(here: World) -> None:
    """C1: two changes of one commit, with something of the caller's own."""
    SCHOOL.save(here.clients, pupil("bob", 1))

    def body() -> ConsistencyToken:
        Abacus(id="t", many=1).put()
        SCHOOL.delete_in_transaction(here.clients, ndb.Key(Pupil, "bob"))
        return SCHOOL.save_in_transaction(here.clients, pupil("ada", 2))

    token = transact(body)
    here.settle()

    assert counts(here) == {2: 1}
    assert SCHOOL.wait(here.clients, token, 0)
    assert ndb.Key(Abacus, "t").get().many == 1


def write(world: World, grades: Sequence[int | None]) -> ConsistencyToken:
    """Save a pupil in one grade after the other, or delete it, in the transaction at hand."""
    for points, grade in enumerate(grades):
        if grade is None:
            token = SCHOOL.delete_in_transaction(world.clients, ndb.Key(Pupil, "ada"))
        else:
            token = SCHOOL.save_in_transaction(world.clients, pupil("ada", grade, points))
    return token


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "the last one first"])
@pytest.mark.parametrize(
    "grades",
    [(1, 1), (2, 1), (2, 3), (2, None, 1), (2, None), (None, 1), (1, 2, 1, 2)],
    ids=str,
)
def test_saves_of_one_source_in_one_transaction_are_one_change(
    here: World, grades: Sequence[int | None], order: int
) -> None:
    """C1: whatever they were in between, and in whatever order their updates come."""
    SCHOOL.save(here.clients, pupil("ada", 1, 9))
    here.settle()

    token = transact(lambda: write(here, grades))
    is_satisfied = [SCHOOL.wait(here.clients, token, 0)]
    for due in here.engine.due()[::order]:
        here.deliver(due.task_name)
    here.settle()
    is_satisfied.append(SCHOOL.wait(here.clients, token, 0))

    assert counts(here) == ({grades[-1]: 1} if grades[-1] else {})
    assert differences() == []
    assert is_satisfied == [False, True]


def test_saves_of_a_try_that_was_not_committed_leave_no_trace(here: World) -> None:
    """C1: the next try begins with what is stored, not with what the last one would have put."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1))
    here.settle()
    tries = []

    def body() -> None:
        tries.append(SCHOOL.save_in_transaction(here.clients, pupil("ada", 2, 7)))
        if len(tries) == 1:
            raise rpc_errors.Aborted("a race was lost")

    transact(body)
    here.settle()

    assert len(tries) == 2
    assert counts(here) == {2: 1}
    assert differences() == []


def test_an_abort_of_the_callers_transaction_leaves_nothing(here: World) -> None:
    """C1: neither a source, nor its marker, nor a task."""

    def body() -> None:
        SCHOOL.save_in_transaction(here.clients, pupil("ada", 1))
        SCHOOL.delete_in_transaction(here.clients, ndb.Key(Pupil, "bob"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        transact(body)

    assert [kind.query().fetch() for kind in (Pupil, SourceMarker, OutboxTask)] == [[], [], []]


class Abacus(ndb.Model):
    """Something of the caller's own."""

    many = ndb.IntegerProperty(indexed=False)


# What rows say


class Number(ndb.Model):
    """A source that contributes what it says."""

    row = ndb.JsonProperty()
    said = ndb.JsonProperty()


class Numbers(View):
    """Numbers in one row, or where they say."""

    source = Number
    ranked = ("n",)
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Contributions:
        row = tuple(number.row) if isinstance(number.row, list) else number.row
        return {row: number.said}


def number(name: str, n: Any = None, row: Any = "all", **said: Any) -> Number:
    return Number(id=name, row=row, said=said if n is None else {"n": n, **said})


class played:
    """A world with a group of its own, in a context that is open."""

    def __init__(self, services: Services, views: Sequence[type[View]], **how: Any) -> None:
        self.views = ViewGroup("played", *views, queue="default", **how)
        self.builds = ViewMaintenance(self.views, queue="default")
        self.world = Beside(services, builds=[self.builds])

    def __enter__(self) -> tuple[World, ViewGroup]:
        self._context = self.world.context()
        self._context.__enter__()
        return self.world, self.views

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def differences_of(views: ViewGroup) -> list[str]:
    return differences(views)


def test_a_row_says_count_sum_mean_and_variance(services: Services) -> None:
    """C1: exactly, over the sources that have the measure."""
    with played(services, [Numbers]) as (world, views):
        numbers = [2, 4, 4, 4, 5, 5, 7, 9]
        views.save(world.clients, *[number(f"s{i}", n) for i, n in enumerate(numbers)])
        views.save(world.clients, number("none", other=1))
        world.settle()

        row = views.row(Numbers, "all")

        assert row is not None
        assert (row.count, row.sum("n"), row.mean("n"), row.variance("n")) == (9, 40, 5.0, 4.0)
        assert (row.sum("unknown"), row.mean("unknown"), row.variance("unknown")) == (0, None, None)


def test_a_row_says_whole_numbers_and_parts_of_them() -> None:
    """As they are: a whole sum is no float, and a half is not left out."""
    row = Row("r", {"Pupil": 4}, {"whole": [4, 6, 14], "half": [4, "3/2", "5/4"]}, NOON, "Pupil")

    assert (repr(row.sum("whole")), repr(row.sum("half"))) == ("6", "1.5")
    assert (row.mean("whole"), row.mean("half")) == (1.5, 0.375)
    assert (row.variance("whole"), row.variance("half")) == (1.25, 0.171875)


@one_emulator
def test_floats_add_up_exactly_in_any_order(services: Services) -> None:
    """C3: tenths, a huge and a tiny one, put in and taken out again, leave no rest."""
    numbers: list[float] = [0.1, 0.2, 1e140, -1e-300, 0.3, 2**53 + 1, -1e140, 5e-324]
    named = list(enumerate(numbers))
    ends = []
    for names in (named, named[::-1], named[3:] + named[:3]):
        with played(services, [Numbers]) as (world, views):
            order = [number(f"s{i}", None, m=n) for i, n in names]
            for each in order:
                views.save(world.clients, each)
                world.settle()
            (row,) = ViewRow.query().fetch()
            ends.append(row.sums["m"])
            views.delete(world.clients, *[each.key for each in order[:-1]])
            world.settle()
            (row,) = ViewRow.query().fetch()
            assert Fraction(row.sums["m"][1]) == Fraction(order[-1].said["m"])

    assert ends[0] == ends[1] == ends[2]
    assert Fraction(ends[0][1]) == sum(map(Fraction, numbers))


def test_least_greatest_and_distinct_values(services: Services, monkeypatch: Any) -> None:
    """Of a thousand values a page; here of three, so that there are many pages."""
    monkeypatch.setattr(view_reads, "MAX_LISTED", 3)
    with played(services, [Numbers]) as (world, views):
        numbers = [5, -2.5, 10, 9, 0, -0.0, 5.0, "text", "other", -300, 2**53]
        views.save(world.clients, *[number(f"s{i}", n) for i, n in enumerate(numbers)])
        views.save(world.clients, number("elsewhere", 1e6, row="another"))
        world.settle()

        greatest = views.top(Numbers, "all", "n", 3)
        least = views.top(Numbers, "all", "n", 3, lowest=True)

        assert [value for _, value in greatest] == [2**53, 10, 9]
        assert [value for _, value in least] == [-300, -2.5, 0]
        assert greatest[0][0] == ndb.Key(Number, "s10")
        # Five is said twice, and so is zero; two are texts.
        assert views.distinct(Numbers, "all", "n") == 9
        views.save(world.clients, *[number(f"t{i}", 100 + i, row="six") for i in range(6)])
        world.settle()
        assert views.distinct(Numbers, "six", "n") == 6
        assert views.distinct(Numbers, "nobody's", "n") == 0
        with pytest.raises(LookupError):
            views.top(Numbers, "all", "unranked")


def test_the_greatest_goes_and_the_second_takes_its_place(here: World) -> None:
    """C1: what is read of the markers needs nothing that was remembered."""
    SCHOOL.save(here.clients, pupil("ada", 1, 9), pupil("bob", 1, 7))
    here.settle()
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
    here.settle()

    assert SCHOOL.top(ByGrade, 1, "points") == [(ndb.Key(Pupil, "bob"), 7.0)]


def test_a_left_join_shows_rows_that_have_one_of_the_views_own_kind(here: World) -> None:
    """A row that only a tutor is in is kept and not shown; both sides can be listed."""
    SCHOOL.save(here.clients, Tutor(id="t1", grade=1), Tutor(id="t2", grade=2), pupil("ada", 1))
    here.settle()

    assert counts(here) == {1: 1}
    assert SCHOOL.row(ByGrade, 2) is None
    assert SCHOOL.members(ByGrade, 1, Tutor) == [(ndb.Key(Tutor, "t1"), {"tutor": "t1"})]
    assert [key.id() for key, _ in SCHOOL.members(ByGrade, 1, Pupil)] == ["ada"]
    assert SCHOOL.members(ByGrade, 2, Pupil) == []
    SCHOOL.save(here.clients, pupil("bob", 2))
    here.settle()
    row = SCHOOL.row(ByGrade, 2)
    assert row is not None
    assert (row.count, dict(row.counts)) == (1, {"Tutor": 1, "Pupil": 1})


def test_a_view_of_a_view_follows(here: World) -> None:
    """C1: rows are sources, and a row that goes leaves the view above it."""
    SCHOOL.save(here.clients, pupil("ada", 1, 2), pupil("bob", 2, 3), pupil("eve", 2, 4))
    here.settle()
    assert counts(here, GradesBySize) == {1: 1, 2: 1}

    SCHOOL.save(here.clients, pupil("eve", 1, 4))
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "bob"))
    here.settle()

    assert counts(here, GradesBySize) == {2: 1}
    assert differences() == []


class Picky(View):
    """A view of a view that fails over rows of two."""

    name = "picky"
    source = Numbers
    row_rate = None
    fails_over = 2

    @classmethod
    def contributions(cls, row: Row) -> Contributions:  # type: ignore[override]
        if row.count == cls.fails_over:
            raise ZeroDivisionError(f"{row.name} has {row.count}")
        return {"all": {"n": row.count}}


class Sizes(View):
    """Another one that stands on the same rows, and takes them all."""

    source = Numbers
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {"all": {"n": row.count}}


def sizes(views: ViewGroup) -> list[float | None]:
    """Return how many sources the row below has, as it and the views on it say."""
    below = views.row(Numbers, "all")
    above = [views.row(view, "all") for view in (Sizes, Picky)]
    return [below.count if below else None, *(row.sum("n") if row else None for row in above)]


def test_a_view_that_fails_over_a_row_stops_neither_the_row_nor_the_views_beside_it(
    services: Services,
) -> None:
    """C1: it is parked with its reason, stays where it was, and goes on with the next change."""
    with played(services, [Numbers, Picky, Sizes]) as (world, views):
        seen = []
        for n in range(3):
            views.save(world.clients, number(f"s{n}", 1))
            world.settle()
            seen.append(sizes(views))

        (dead,) = DeadTask.query().fetch()
        assert seen == [[1, 1, 1], [2, 2, 1], [3, 3, 3]]
        assert dead.path == "/tasks/materialized-views/played/follow"
        assert "picky fails over it: ZeroDivisionError: all has 2" in dead.reason
        assert differences_of(views) == []


def test_a_row_that_was_parked_follows_when_its_view_is_mended(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: replayed, it takes the row as it is by then; until then verify tells."""
    play = played(services, [Numbers, Picky, Sizes])
    with play as (world, views):
        views.save(world.clients, number("a", 1), number("b", 1))
        world.settle()
        told = in_a_thread(lambda: verified(world, views, play.builds, Picky, "before"))
        (dead,) = DeadTask.query().fetch()
        monkeypatch.setattr(Picky, "fails_over", None)
        replay = APP.tasks["/tasks/dead/replay"]
        replay.enqueue(world.clients, Replay(dead.key.id()))
        world.settle()

        assert any("picky fails over it" in words for words in told)
        assert sizes(views) == [2, 2, 2]
        after = in_a_thread(lambda: verified(world, views, play.builds, Picky, "after"))
        assert after == []
        assert differences_of(views) == []


@one_emulator
def test_a_view_is_built_although_another_one_fails_over_its_sources(services: Services) -> None:
    """C5: the one that fails is told so, and it alone."""
    play = played(services, [Numbers, Picky, Sizes])
    with play as (world, views):
        views.save(world.clients, number("a", 1), number("b", 1))
        world.settle()
        for view in (Sizes, Picky):
            play.builds.rebuild(world.clients, view)
        world.settle()

        status = play.builds.rebuilding(world.clients, Picky)
        assert status is not None
        assert (status.phase, status.failed) == ("failed", 1)
        assert play.builds.rebuilding(world.clients, Sizes) is None
        assert sizes(views)[:2] == [2, 2]


@one_emulator
def test_tenants_see_their_own_rows(services: Services) -> None:
    """`under` takes whole parts: "a" is not under "ab", nor 1 under 12."""
    rows: list[Any] = [["a", 1, "x"], ["a", 1, "y"], ["a", 12, "x"], ["ab", 1, "x"], "a", ["é", 1]]
    with played(services, [Numbers]) as (world, views):
        numbers = [number(f"s{i}", 1, row=row) for i, row in enumerate(rows)]
        views.save(world.clients, *numbers)
        assert views.is_waiting(Numbers, 2, under=("a", 1))
        assert not views.is_waiting(Numbers, 3, under=("a", 1))
        assert len(views.waiting(world.clients, Numbers, under=("é",))) == 1
        world.settle()

        def under(*parts: Any) -> list[Any]:
            return [row.name for row in views.read(world.clients, Numbers, under=parts).rows]

        assert under("a", 1) == [("a", 1, "x"), ("a", 1, "y")]
        assert under("a") == [("a", 1, "x"), ("a", 1, "y"), ("a", 12, "x")]
        assert under("é") == [("é", 1)]
        assert under("nobody") == []
        assert not views.is_waiting(Numbers)


def test_rows_stand_in_order() -> None:
    """Numbers by value, then texts, then tuples part by part."""
    names: list[Any] = [10, 2, "b", "a", ("b", 1), ("a", 10), ("a", 2), ("a",), -1]
    rows = [Row(name, {}, {}, NOON) for name in names]

    ordered = [row.name for row in sorted(rows, key=row_order)]

    assert ordered == [-1, 2, 10, "a", "b", ("a",), ("a", 2), ("a", 10), ("b", 1)]


def test_ranks_are_written_alike_in_each_version() -> None:
    """Numbers by their bits, short texts as they are, long ones by a digest: they are compared."""
    values: list[Any] = [-2.5, 0, -0.0, 1, 1.0, 2**53, "b", "é" * 199, "é" * 200]

    ranks = [ranks_of({"n": value, "m": 1}, {"n": "p|", "x": "q|"}) for value in values]

    assert [rank.removeprefix("p|") for (rank,) in ranks] == [
        "n3ffbffffffffffff",
        "n8000000000000000",
        "n8000000000000000",
        "nbff0000000000000",
        "nbff0000000000000",
        "nc340000000000000",
        "tb",
        "t" + "é" * 199,
        "udf20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3",
    ]


# Tokens and freshness


@dataclass(frozen=True)
class Delivering:
    """A clock that lets the queue deliver at one of its sleeps."""

    world: World
    at: int
    slept: list[float]

    def now(self) -> datetime.datetime:
        return self.world.clock.now()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.world.clock.sleep(seconds)
        if len(self.slept) == self.at:
            task = self.world.engine.due()[0]
            self.world.deliver(task.task_name)


def test_a_token_is_met_when_the_last_of_its_updates_is_applied(here: World) -> None:
    """Before that it is not, and a reader who waits sees it as soon as it is."""
    token = SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    assert not SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0).is_satisfied
    here.deliver(here.engine.due()[0].task_name)
    assert not SCHOOL.wait(here.clients, token, 0)
    slept: list[float] = []
    clients = replace(here.clients, clock=Delivering(here, 2, slept))

    reading = SCHOOL.read(clients, ByGrade, at_least=token, timeout_s=0.3)

    assert reading.is_satisfied
    assert len(slept) == 2
    assert [row.count for row in reading.rows] == [1]


@one_emulator
@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_token_is_waited_for_until_the_limit(here: World, who: str) -> None:
    """By the clock that is passed in, and no longer."""
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    before = here.clock.time_s

    if who == "reader":
        is_satisfied = SCHOOL.read(
            here.clients, ByGrade, at_least=token, timeout_s=0.3
        ).is_satisfied
    else:
        is_satisfied = SCHOOL.wait(here.clients, token, 0.3)

    assert not is_satisfied
    assert 0.299 < here.clock.time_s - before < 0.3 + 3 * materialized_views.LOOK_AGAIN_S


@one_emulator
def test_an_empty_token_and_one_of_an_unchanged_save_are_met(here: World) -> None:
    """They set nothing going, and nothing is under way."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.settle()

    unchanged = SCHOOL.save(here.clients, pupil("ada", 1))

    assert not unchanged.held
    assert SCHOOL.wait(here.clients, unchanged, 0)
    assert ConsistencyToken.parse(str(ConsistencyToken())) == ConsistencyToken()
    assert SCHOOL.wait(here.clients, ConsistencyToken(), 0)


def test_the_token_of_an_unchanged_save_waits_for_the_changes_before_it(
    services: Services,
) -> None:
    """C1: for those of its source, whichever row they are of, and for nobody else's."""
    with played(services, [Wide]) as (world, views):
        other = views.save(world.clients, number("other", None, {"elsewhere": 1}))
        saves = [{"x": 1, "y": 1}, {"x": 2, "y": 1, "z": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 1}]
        tokens = [views.save(world.clients, number("a", None, rows)) for rows in saves]
        unchanged = tokens[-1]
        waiting = {row.key.id(): row for row in OutboxTask.query().fetch()}
        last = [tokens[0].held, tokens[1].held, tokens[2].held]
        of_y = next(row for row in last[0] if waiting[row].tag.endswith('"y"'))
        of_x = next(row for row in last[1] if waiting[row].tag.endswith('"x"'))
        (of_z,) = last[2]

        met = [views.wait(world.clients, unchanged, 0)]
        for row in (of_z, of_x, of_y):
            views.apply(world.clients, views.task.read(waiting[row].body.encode()))
            met.append(views.wait(world.clients, ConsistencyToken.parse(str(unchanged)), 0))

        assert not unchanged.held
        assert met == [False, False, False, True]
        assert not views.wait(world.clients, other, 0)


@one_emulator
def test_a_source_remembers_the_changes_of_few_rows_that_it_left(services: Services) -> None:
    """Of those it is in, all: its marker does not grow with the rows that it was ever in."""
    with played(services, [Numbers]) as (world, views):
        for n in range(MAX_LEFT + 5):
            views.save(world.clients, number("a", 1, row=n))

        sent = marker_key(ndb.Key(Number, "a")).get().sent

        assert len(sent) == MAX_LEFT + 2  # The one it left now, and the one it is in.
        assert f"numbers.1.1:{MAX_LEFT + 4}" in sent


@one_emulator
def test_a_source_forgets_what_it_sent_to_a_table_that_is_gone(world: World) -> None:
    """Nobody waits for it; else each rebuild would push out rows that it left."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    rebuild(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 2))

        assert set(marker_key(ndb.Key(Pupil, "ada")).get().sent) == {
            "by_grade.1.2:1",
            "by_grade.1.2:2",
        }


@one_emulator
def test_a_token_of_very_many_changes_is_waited_for_and_refused_as_text(here: World) -> None:
    """It is not cut: who waits where it was made waits for all, and no text holds them."""
    one = SCHOOL.save(here.clients, pupil("ada", 1))
    many = ConsistencyToken(one.held | {HELD.replace("0003", f"{n:04d}") for n in range(2_500)})

    with pytest.raises(TooLargeTokenError, match="2,501 changes, its text at most 1,000"):
        str(many)
    before = SCHOOL.wait(here.clients, many, 0)
    here.settle()

    assert [before, SCHOOL.wait(here.clients, many, 0)] == [False, True]


@one_emulator
def test_a_token_holds_for_the_table_that_is_swapped_in_behind_it(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the new table waits for the new table's update, and one of the old does not."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    BUILDS.rebuild(here.clients, ByGrade)
    token = SCHOOL.save(here.clients, pupil("ada", 2))
    of_table = {
        row.tag.partition(":")[0]: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
    }

    swapped_at_once(monkeypatch)
    SCHOOL.apply(here.clients, of_table["by_grade.1.1"])
    before = SCHOOL.wait(here.clients, token, 0)
    transact(lambda: BUILDS._swap(ByGrade, "by_grade.1.2"))
    after = SCHOOL.wait(here.clients, token, 0)
    SCHOOL.apply(here.clients, of_table["by_grade.1.2"])

    assert [before, after, SCHOOL.wait(here.clients, token, 0)] == [True, False, True]


def swapped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a swap not wait for anything."""
    monkeypatch.setattr(ViewMaintenance, "_has_ended", lambda *args: True)


@one_emulator
def test_a_token_is_met_when_the_table_that_is_about_to_be_read_holds_it_too(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was met stays so: the swap behind it waits for what the new table lacks."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    with monkeypatch.context() as patch:
        sound = ViewMaintenance._is_done
        patch.setattr(
            ViewMaintenance,
            "_is_done",
            lambda self, clients, walks, step: (
                step != CONFIRM and sound(self, clients, walks, step)
            ),
        )
        here.settle()
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    late = []
    for due in list(here.engine.due()):
        if table.encode() in body_of(here, due.task_name):
            late.append(due)
        else:
            here.deliver(due.task_name)

    before = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)
    in_a_thread(lambda: advanced(here))
    live_meanwhile = SCHOOL.catalog().live(ByGrade)
    here.settle()
    after = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)

    assert len(late) == 1
    assert (before.is_satisfied, [row.count for row in before.rows]) == (False, [2])
    assert live_meanwhile == "by_grade.1.1"
    assert SCHOOL.catalog().live(ByGrade) == table
    assert (after.is_satisfied, [row.count for row in after.rows]) == (True, [2])


def body_of(world: World, task_name: str) -> bytes:
    """Return what a task says."""
    task = world.engine.get_task(task_name, messages.FULL)
    return bytes(task.http_request.body)


def advanced(world: World) -> None:
    """Take the steps of a build that are due, and what they set going but updates."""
    with world.context():
        BUILDS.advance(world.clients, ByGrade)
    for _ in range(3):
        for due in list(world.engine.due()):
            if b"updates" not in body_of(world, due.task_name):
                world.deliver(due.task_name)


@dataclass(frozen=True)
class Applying:
    """A clock that does something at each of its sleeps."""

    clock: Any
    act: Callable[[], None]

    def now(self) -> datetime.datetime:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.act()
        self.clock.sleep(seconds)


@one_emulator
@pytest.mark.parametrize("timeout_s", [0, 5])
def test_a_token_is_judged_by_the_table_that_was_read(
    here: World, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """C1, C5: not by the one that was read when the waiting began; with time left it waits on."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    of_table = {
        row.tag.partition(":")[0]: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
    }
    SCHOOL.apply(here.clients, of_table["by_grade.1.1"])
    swapped_at_once(monkeypatch)
    sound, looks = ViewGroup._seen, []

    def seen(self: ViewGroup, view: type[View], look: Callable[[str], Any]) -> Any:
        looks.append(SCHOOL.catalog().live(ByGrade))
        if len(looks) == 1:
            transact(lambda: BUILDS._swap(ByGrade, table))
        return sound(self, view, look)

    monkeypatch.setattr(ViewGroup, "_seen", seen)
    applying = Applying(here.clock, lambda: SCHOOL.apply(here.clients, of_table[table]))
    clients = replace(here.clients, clock=applying)
    reading = SCHOOL.read(clients, ByGrade, at_least=token, timeout_s=timeout_s)

    assert looks == ["by_grade.1.1", table]
    assert reading.is_satisfied == bool(timeout_s)
    assert [row.count for row in reading.rows] == ([1] if timeout_s else [])


HELD = "c|20300501T120000000000|h|c0ffee|0003|1a2b3c4d"


def test_a_token_survives_as_text() -> None:
    """Through a redirect and back."""
    token = ConsistencyToken(frozenset([HELD, HELD.replace("0003", "0004")]))

    assert ConsistencyToken.parse(str(token)) == token


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "~",
        HELD + "~",
        HELD.replace("|h|", "|o|"),
        HELD.replace("2030", "20x0"),
        HELD.replace("0003", "three"),
        HELD + "|more",
        "~".join(HELD.replace("0003", f"{n:04d}") for n in range(1001)),
        "\ud800",
    ],
    ids=["word", "separator", "half", "relayed", "time", "number", "parts", "many", "surrogate"],
)
def test_a_bad_token_is_refused(text: str) -> None:
    """With a ValueError, which its reader expects."""
    with pytest.raises(ValueError):  # noqa: PT011  Of any text: it is somebody else's.
        ConsistencyToken.parse(text)


def test_an_update_that_is_applied_between_two_reads_is_told_or_in_a_row(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: what waits is read before the rows, so a change is never in neither."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    (held,) = [row for row in OutboxTask.query().fetch() if row.tag.startswith("by_grade.")]
    update = SCHOOL.task.read(held.body.encode())
    looks: list[str] = []

    def between(name: str) -> None:
        sound = getattr(materialized_views, name)

        def look(*args: Any) -> Any:
            looks.append(name)
            if len(looks) == 2:
                SCHOOL.apply(here.clients, update)
            return sound(*args)

        monkeypatch.setattr(materialized_views, name, look)

    between("waiting_for_rows")
    between("rows_from")
    reading = SCHOOL.read(here.clients, ByGrade)

    assert sorted(looks) == ["rows_from", "waiting_for_rows"]
    assert (reading.freshness.waiting, len(reading.rows)) == (1, 1)


@one_emulator
def test_a_row_says_how_new_its_newest_change_is_in_whatever_order_they_come(here: World) -> None:
    """An older save that is applied later does not make it older."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.clock.sleep(10)
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.clock.sleep(5)
    held = {
        RowId.parse(row.key.id()).created: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
        if row.tag.startswith("by_grade.")
    }

    for created in sorted(held, reverse=True):
        SCHOOL.apply(here.clients, held[created])

    newest_s = SCHOOL.freshness(here.clients, ByGrade, 1).newest_s
    assert len(held) == 2
    assert newest_s == pytest.approx(5, abs=0.5)


def test_freshness_tells_what_waits_and_how_old_the_newest_change_is(here: World) -> None:
    """Of a view, and of one row of it."""
    clients = here.clients
    SCHOOL.save(clients, pupil("ada", 1))
    here.settle()
    here.clock.sleep(10)
    SCHOOL.save(clients, pupil("bob", 2))
    here.clock.sleep(5)

    of_view = SCHOOL.read(clients, ByGrade).freshness
    rows = [SCHOOL.freshness(clients, ByGrade, grade) for grade in (1, 2, 3)]

    assert (of_view.waiting, of_view.is_truncated) == (1, False)
    assert of_view.oldest_s == pytest.approx(5, abs=0.5)
    assert of_view.newest_s == pytest.approx(15, abs=0.5)
    assert [row.waiting for row in rows] == [0, 1, 0]
    assert [row.oldest_s == 0 for row in rows] == [True, False, True]
    assert [row.newest_s is None for row in rows] == [False, True, True]
    ((update, age_s),) = SCHOOL.waiting(clients, ByGrade)
    assert (update.row, age_s) == ("2", pytest.approx(5, abs=0.5))
    here.settle()
    assert SCHOOL.read(clients, ByGrade).freshness.oldest_s == 0


# Pacing


class Paced(View):
    """One row that takes an update a second, after three."""

    name = "paced"
    source = Number
    row_rate = 1.0
    row_burst = 3

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {"all": number.said}


def starts(world: World, views: ViewGroup, many: int = 7) -> list[float]:
    """Save so many numbers one by one; return how many seconds later each update may start."""
    for n in range(many):
        views.save(world.clients, number(f"s{n}", 1))
    rows = sorted(OutboxTask.query().fetch(), key=lambda row: row.at or NOON.min)
    now = world.clock.now().replace(tzinfo=None)
    return [round((row.at - now).total_seconds(), 3) if row.at else 0.0 for row in rows]


@one_emulator
def test_updates_of_one_row_are_spread_after_the_burst(services: Services) -> None:
    """C1: they come later, and none is lost."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()

        assert starts(world, views) == [0, 0, 0, 0, 1, 2, 3]

        world.settle()
        assert counts(world, Paced, views) == {"all": 7}
        assert differences_of(views) == []


@dataclass(frozen=True)
class Wrong:
    """A clock that is off by some seconds."""

    clock: Any
    ahead_s: float

    def now(self) -> datetime.datetime:
        return self.clock.now() + datetime.timedelta(seconds=self.ahead_s)


@one_emulator
@pytest.mark.parametrize("ahead_s", [-36_000, 36_000, 10**9], ids=["behind", "ahead", "years"])
def test_turns_that_a_wrong_clock_took_hold_nobody_up(services: Services, ahead_s: int) -> None:
    """C1: a process whose clock is right again gives turns from its own time on."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()
        right = world.clients
        world.clients = replace(right, clock=Wrong(world.clock, ahead_s))  # type: ignore[arg-type]
        for n in range(3):
            views.save(world.clients, number(f"wrong{n}", 1))
        ndb.delete_multi(OutboxTask.query().fetch(keys_only=True))

        world.clients = right

        assert starts(world, views) == [0, 0, 0, 0, 1, 2, 3]


@one_emulator
def test_a_turn_is_at_most_an_hour_ahead(services: Services) -> None:
    """C1: what comes in faster for so long is not held back for ever longer."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()
        views.save(world.clients, number("first", 1))
        world.clients.cache.incr('views:turn:paced.1.1:"all"', 3_602_000, ttl_s=60)
        views.save(world.clients, number("second", 1))
        views.save(world.clients, number("third", 1))

        now = world.clock.now().replace(tzinfo=None)
        ats = [row.at for row in OutboxTask.query().fetch()]

        assert sorted(round((at - now).total_seconds()) for at in ats if at) == [3_600]


@one_emulator
@pytest.mark.parametrize("cache", ["away", "flushed"])
def test_without_memcached_updates_come_at_once_and_totals_stay_exact(
    services: Services, cache: str
) -> None:
    """C1: what memcached says decides when, and never what."""
    with played(services, [Paced]) as (world, views):
        if cache == "away":
            world.clients = replace(world.clients, cache=NoCache())
            found = starts(world, views)
        else:
            found = []
            for n in range(7):
                world.flush()
                views.save(world.clients, number(f"s{n}", 1))
            found = [0.0 if row.at is None else 1.0 for row in OutboxTask.query().fetch()]

        assert found == [0.0] * 7
        world.settle()
        assert counts(world, Paced, views) == {"all": 7}


# What no row can hold


@pytest.mark.parametrize(
    "contributions",
    [
        {1.5: {}},
        {None: {}},
        {True: {}},
        {10**5_000: {}},
        {(): {}},
        {("a", None): {}},
        {("a", ("b",)): {}},
        {"x" * 1_001: {}},
        {"é" * 501: {}},
        {"\ud800": {}},
        {n: {} for n in range(201)},
        {"r": {f"m{n}": 1 for n in range(51)}},
        {"r": {"m": None}},
        {"r": {"m": True}},
        {"r": {"m": [1]}},
        {"r": {"m": math.nan}},
        {"r": {"m": math.inf}},
        {"r": {"m": 10**400}},
        {"r": {"m": 10**5_000}},
        {"r": {"m": "x" * 1_001}},
        {"r": {"m": "\udfff"}},
        {"r": {"n": 2**53 + 1}},
        {"r": {1: 1}},
        {"r": {"\ud800": 1}},
        {"r": {"x" * 101: 1}},
        {"r": {"x" * 90_000: 1}},
        {"r": {f"m{n}": "é" * 1_000 for n in range(50)}},
    ],
)
def test_what_no_row_can_hold_is_refused(contributions: Any) -> None:
    """Each kind of it, before anything is written."""
    with pytest.raises(BadContributionError):
        checked(contributions, ["n"])


def test_what_a_row_can_hold_is_taken() -> None:
    """Up to the limits themselves."""
    full = {f"m{n}": "x" * 1_000 for n in range(50)}

    assert checked({"r": full}, [])['"r"'] == full
    assert checked({"r": {"x" * 100: 1}}, [])
    assert len(checked({n: {} for n in range(200)}, [])) == 200
    assert len(row_text("x" * 998).encode()) == 1_000
    assert checked({"r": {"n": -(2**53), "m": 10**140}}, ["n"])


def test_a_bad_contribution_saves_nothing(services: Services) -> None:
    """C1: not even the good sources beside it."""
    with played(services, [Numbers]) as (world, views):
        with pytest.raises(BadContributionError):
            views.save(world.clients, number("good", 1), number("bad", m=[1]))

        kinds = (Number, SourceMarker, OutboxTask)
        assert [kind.query().fetch() for kind in kinds] == [[], [], []]


@one_emulator
@pytest.mark.parametrize("fan_in", [False, True], ids=["outbox", "fan-in"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with another one"])
def test_an_update_that_is_parked_is_seen_by_tokens_and_freshness(
    services: Services, monkeypatch: pytest.MonkeyPatch, fan_in: bool, is_alone: bool
) -> None:
    """C1: its row lacks a change until it is replayed, whichever way it travelled."""
    monkeypatch.setattr(Numbers, "fan_in", fan_in)
    with played(services, [Numbers]) as (world, views):
        sources = [number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)}) for n in range(5)]
        views.save(world.clients, *sources[:4])
        world.settle()
        beside = [] if is_alone else [number("small", None)]
        token = ConsistencyToken.parse(str(views.save(world.clients, sources[4], *beside)))

        def told() -> tuple[bool, int, int, bool, bool]:
            reading = views.read(world.clients, Numbers, at_least=token, timeout_s=0)
            of_row = views.freshness(world.clients, Numbers, "all")
            waits = views.is_waiting(Numbers)
            is_old = reading.freshness.oldest_s > 0
            return reading.is_satisfied, reading.freshness.waiting, of_row.waiting, is_old, waits

        for _ in range(30):
            world.settle()
            world.clock.sleep(60)
        dead = DeadTask.query().fetch()
        parked = told()
        ((apply, age_s),) = views.waiting(world.clients, Numbers)
        views.delete(world.clients, sources[0].key)
        world.settle()
        APP.tasks["/tasks/dead/replay"].enqueue(world.clients, Replay(dead[0].key.id()))
        world.settle()

        assert len(dead) == 1
        assert parked == (False, 1, 1, True, True)
        assert (apply.row, age_s > 60) == ('"all"', True)
        assert told() == (True, 0, 0, False, False)
        assert differences_of(views) == []


def test_an_update_that_no_row_has_room_for_is_parked_and_can_be_replayed(
    services: Services,
) -> None:
    """C1: sources may have measures of their own; the row can be read, and the rest goes on."""
    with played(services, [Numbers]) as (world, views):
        sources = [number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)}) for n in range(5)]
        views.save(world.clients, *sources[:4])
        world.settle()
        views.save(world.clients, sources[4])
        world.settle()
        (dead,) = DeadTask.query().fetch()
        full = counts(world, Numbers, views)
        still_waits = views.is_waiting(Numbers)

        views.delete(world.clients, sources[0].key)
        world.settle()
        APP.tasks["/tasks/dead/replay"].enqueue(world.clients, Replay(dead.key.id()))
        world.settle()

        assert 'row "all" of numbers.1.1 would have 250 measures, at most 200' in dead.reason
        assert (full, still_waits) == ({"all": 4}, True)
        assert counts(world, Numbers, views) == {"all": 4}
        assert differences_of(views) == []


class Wide(View):
    """A source in many rows, with long measures."""

    name = "wide"
    source = Number
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {row: {"m0": "x" * size, **number.said} for row, size in number.row.items()}


@one_emulator
def test_a_source_that_its_marker_cannot_hold_is_refused(services: Services) -> None:
    """Datastore takes 1 MiB an entity: this says so before, and names the reason."""
    texts = {f"t{n}": "x" * 900 for n in range(49)}
    with played(services, [Wide]) as (world, views):
        with pytest.raises(BadContributionError, match="more than its marker"):
            views.save(world.clients, number("s", None, {str(r): 1 for r in range(200)}, **texts))
        assert Number.query().fetch() == []

        views.save(world.clients, number("s", None, {str(r): 1_000 for r in range(200)}))
        assert tasks_here() == 200


@one_emulator
def test_many_long_updates_of_one_row_travel_in_several_tasks(services: Services) -> None:
    """C1: a task's body has a limit, and a batch of saves has another one."""
    texts = {f"t{n}": "é" * 900 for n in range(10)}
    with played(services, [Wide]) as (world, views):
        views.save(world.clients, *[number(f"s{n}", None, {"all": n}, **texts) for n in range(12)])
        rows = OutboxTask.query().fetch()
        assert len(rows) > 1
        assert max(len(row.body.encode()) for row in rows) < MAX_BODY_BYTES
        world.settle()

        assert counts(world, Wide, views) == {"all": 12}
        assert differences_of(views) == []


def test_updates_are_cut_by_number_and_by_size() -> None:
    """In their order, and none is left out."""
    small = [Update("Pupil:x", n, {}, is_first=True) for n in range(250)]
    large = [Update("Pupil:x", n, {"m": "x" * 40_000}, is_first=True) for n in range(5)]

    assert [len(part) for part in parts_of(small)] == [100, 100, 50]
    assert [len(part) for part in parts_of(large)] == [2, 2, 1]
    assert [update for part in parts_of(large) for update in part] == large
    assert list(parts_of([])) == []


# What cannot be registered


def view_like(view: type[View], **how: Any) -> type[View]:
    """Return a view like another one, but for some of what it declares."""
    return type("Other", (view,), {"name": "other", **how})


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ([Numbers, Numbers], "two views are called numbers: give one of them another `name`"),
        ([view_like(Numbers, name="a.b")], "'a.b' names tables: up to 100 small letters"),
        ([view_like(Numbers, name="Ä")], "names tables"),
        ([view_like(Numbers, name="a" * 101)], "names tables: up to 100 small letters"),
        ([Numbers, view_like(Paced, joins={Numbers: None})], "other joins a view"),
        ([GradesBySize], "grades_by_size stands on by_grade: put both into one group"),
    ],
    ids=["twice", "dot", "letter", "length", "join", "alone"],
)
def test_views_that_could_never_be_right_are_refused(
    declared: Sequence[type[View]], words: str
) -> None:
    """C1: when they are declared, and with what to do about it."""
    with pytest.raises(TypeError, match=words):
        ViewGroup("refused", *declared)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            ViewGroup("other", view_like(Paced, name="by_house")),
            "the view by_house is in the groups",
        ),
        (
            ViewGroup("other", view_like(ByHouse)),
            "the kind Pupil is in the groups school and other",
        ),
        (
            ViewGroup("other", view_like(Paced, joins={Tutor: None})),
            "the kind Tutor is in the groups",
        ),
        (ViewGroup("school", Paced), "the name school is in the groups"),
    ],
    ids=["view", "kind", "joined kind", "name"],
)
def test_two_groups_that_share_anything_are_refused(other: ViewGroup, words: str) -> None:
    """C1: each would overwrite the rows, the markers or the catalog of the other one."""
    with pytest.raises(TypeError, match=words):
        Registry.of([], builds=[BUILDS, ViewMaintenance(other)])


# Views, two versions of them


class NewByGrade(View):
    """The next definition: points count double."""

    name = "by_grade"
    definition = 2
    source = Pupil
    row_rate = None
    ranked = ("points",)

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.grade: {"points": 2 * (pupil.points or 0)}} if pupil.grade else {}


class NewGradesBySize(View):
    """The same view of the next one."""

    name = "grades_by_size"
    source = NewByGrade
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {row.count: {"points": row.sum("points")}} if row.count else {}


NEWER = ViewGroup("school", NewByGrade, ByHouse, NewGradesBySize, queue="default")
NEW_BUILDS = ViewMaintenance(NEWER, queue="default")
OLDER = ViewGroup("school", ByGrade, GradesBySize, queue="default")


def rebuild(world: World, view: type[View] = ByGrade, builds: ViewMaintenance = BUILDS) -> str:
    """Rebuild a view to the end; return its table."""
    with world.context():
        table = builds.rebuild(world.clients, view)
    world.heal(lambda: not any(busy(builds.views, each) for each in builds.views.views.values()))
    return table


def without_prints(rows: dict[Any, Any]) -> dict[Any, Any]:
    """Return rows without their fingerprints, which tell of sequences, too."""
    return {name: (counted, sums) for name, (counted, sums, _) in rows.items()}


def busy(views: ViewGroup, view: type[View]) -> bool:
    catalog = views.catalog()
    return bool(catalog.building(view) or catalog.dropping(view.name))


def test_a_rebuilt_view_is_the_same_and_its_old_table_is_gone(world: World) -> None:
    """C5: the same bytes; and the view that stands on it is rebuilt, too."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 0.1), pupil("bob", 1, 0.2, "x"))
        SCHOOL.save(world.clients, Tutor(id="t", grade=1))
    world.settle()
    before = [facts(world, view) for view in (ByGrade, GradesBySize)]

    table = rebuild(world)

    after = [facts(world, view) for view in (ByGrade, GradesBySize)]
    assert table == "by_grade.1.2"
    assert [without_prints(each) for each in after] == [without_prints(each) for each in before]
    with world.context():
        catalog = SCHOOL.catalog()
        assert catalog.live(ByGrade) == table
        assert catalog.live(GradesBySize) == "grades_by_size.1.2"
        assert {row.key.id().partition(":")[0] for row in ViewRow.query().fetch()} == {
            "by_grade.1.2",
            "by_house.1.1",
            "grades_by_size.1.2",
        }
        assert not row_markers("by_grade.1.1")
        assert not row_markers("grades_by_size.1.1")
        assert differences() == []


LOOKS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "a view": (lambda world: counts(world), {1: 1}),
    "a row": (lambda world: getattr(SCHOOL.row(ByGrade, 1), "count", None), 1),
    "the top": (lambda world: [n for _, n in SCHOOL.top(ByGrade, 1, "points")], [9.0]),
    "different values": (lambda world: SCHOOL.distinct(ByGrade, 1, "house"), 1),
    "members": (lambda world: len(SCHOOL.members(ByGrade, 1, Pupil)), 1),
    "a row's freshness": (
        lambda world: SCHOOL.freshness(world.clients, ByGrade, 1).newest_s is None,
        False,
    ),
    "what waits": (lambda world: SCHOOL.is_waiting(ByGrade), True),
    "updates": (lambda world: len(SCHOOL.waiting(world.clients, ByGrade)), 1),
}


@one_emulator
@pytest.mark.parametrize("is_built", [False, True], ids=["before the build", "in the build"])
@pytest.mark.parametrize("of", LOOKS)
def test_a_reader_that_is_held_up_sees_a_table_that_is_whole(
    here: World, monkeypatch: pytest.MonkeyPatch, of: str, is_built: bool
) -> None:
    """C5: it knows which table is read, and then that one is replaced and dropped."""
    look, expected = LOOKS[of]
    SCHOOL.save(here.clients, pupil("ada", 1, 9, "x"))
    here.settle()
    before = SCHOOL.catalog()
    BUILDS.rebuild(here.clients, ByGrade)
    catalogs = [SCHOOL.catalog() if is_built else before]
    in_a_thread(lambda: here.heal(lambda: not busy(SCHOOL, ByGrade)))
    if of in ("what waits", "updates"):
        SCHOOL.save(here.clients, pupil("bob", 1))
    now = ViewGroup.catalog
    monkeypatch.setattr(
        ViewGroup, "catalog", lambda self: catalogs.pop() if catalogs else now(self)
    )

    seen = look(here)

    assert seen == expected
    assert catalogs == []


def test_a_rebuild_pressed_twice_is_one(here: World) -> None:
    """Both are told the same table."""
    SCHOOL.save(here.clients, pupil("ada", 1))

    tables = [BUILDS.rebuild(here.clients, ByGrade) for _ in range(2)]

    status = BUILDS.rebuilding(here.clients, ByGrade)
    assert tables == ["by_grade.1.2"] * 2
    assert status is not None
    assert (status.table, status.phase) == ("by_grade.1.2", FILL)


@one_emulator
def test_a_rebuild_expects_as_many_sources_as_are_in_the_table_that_is_read(here: World) -> None:
    """In its own rows, and not in those of the views beside it."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"), pupil("bob", 1, 1, "y"), pupil("eve", 2))
    here.settle()

    statuses = []
    for view in (ByGrade, ByHouse):
        BUILDS.rebuild(here.clients, view)
        statuses.append(BUILDS.rebuilding(here.clients, view))

    assert statuses == [
        BuildStatus("by_grade.1.2", FILL, done=0, expected=3, failed=0),
        BuildStatus("by_house.1.2", FILL, done=0, expected=2, failed=0),
    ]


def test_a_changed_definition_is_swapped_in_at_one_go(world: World) -> None:
    """C5: readers see the old table until they see the new one; then the old one goes."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2), pupil("bob", 2, 3))
    world.settle()
    deploy(world, NEW_BUILDS)
    with world.context():
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
        seen = []
        for _ in range(400):
            sums = new_points(world)
            if not seen or seen[-1] != sums:
                seen.append(sums)
            if not (due := world.engine.due()):
                if (wake_at := world.engine.wake_at()) is None:
                    break
                world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)
                continue
            world.deliver(due[0].task_name)

        assert seen == [{1: 2, 2: 3}, {1: 4, 2: 6}]
        assert NEWER.catalog().live(NewByGrade) == "by_grade.2.3"
        assert not NEWER.catalog().dropping("by_grade")
        assert not row_markers("by_grade.1.2")
        assert differences_of(NEWER) == []


def new_points(world: World) -> dict[Any, Any]:
    """Return what a reader of the new version sees."""
    rows = NEWER.read(world.clients, NewByGrade).rows
    return {row.name: row.sum("points") for row in rows}


def rebuild_first(world: World) -> None:
    """Let the catalog know the table, as a new view should."""
    assert rebuild(world) == "by_grade.1.2"


def test_a_table_of_another_definition_is_said_to_be_frozen(world: World) -> None:
    """C1: what the new code saves does not reach it; no reader is told that it does."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
        world.settle()
        deploy(world, NEW_BUILDS)
        token = ConsistencyToken.parse(str(NEWER.save(world.clients, pupil("bob", 1, 3))))
        world.settle()

        def told(view: type[View]) -> tuple[bool, bool]:
            reading = NEWER.read(world.clients, view, at_least=token, timeout_s=0)
            return reading.is_satisfied, reading.freshness.is_frozen

        before = [told(NewByGrade), told(ByHouse)]
        of_row = NEWER.freshness(world.clients, NewByGrade, 1).is_frozen
        of_older = SCHOOL.read(world.clients, ByGrade).freshness.is_frozen
        anywhere = NEWER.wait(world.clients, token, 0)
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
    world.heal(lambda: not any(busy(NEWER, view) for view in NEWER.views.values()))

    assert before == [(False, True), (True, False)]
    assert (of_row, of_older, anywhere) == (True, False, False)
    with world.context():
        assert [told(NewByGrade), told(ByHouse)] == [(True, False), (True, False)]
        assert NEWER.wait(world.clients, token, 0)
        assert new_points(world) == {1: 10}


def test_a_changed_definition_is_not_read_from_an_empty_table(world: World) -> None:
    """C5: also of a view that was never rebuilt; the sweep has told the catalog of it."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
    world.settle()
    world.sweep()
    deploy(world, NEW_BUILDS)

    with world.context():
        reading = NEWER.read(world.clients, NewByGrade)
        seen = {row.name: row.sum("points") for row in reading.rows}
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
    world.heal(lambda: not any(busy(NEWER, view) for view in NEWER.views.values()))

    assert (seen, reading.freshness.is_frozen) == ({1: 2}, True)
    with world.context():
        assert new_points(world) == {1: 4}
        assert not row_markers("by_grade.1.1")
        assert differences_of(NEWER) == []


def test_another_versions_table_is_left_alone(world: World) -> None:
    """C1: while the next definition is being built, both versions save; each feeds its own."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2), pupil("bob", 1, 3))
        world.settle()
        deploy(world, NEW_BUILDS)
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
        SCHOOL.save(world.clients, pupil("ada", 2, 5))  # The older version, before the fill.
        NEWER.save(world.clients, pupil("bob", 2, 7))
    world.heal(lambda: not any(busy(NEWER, view) for view in NEWER.views.values()))

    with world.context():
        assert new_points(world) == {2: 24}
        assert differences_of(NEWER) == []


@one_emulator
def test_a_version_that_does_not_know_a_view_leaves_its_rows_alone(world: World) -> None:
    """C1: a save by an older version forgets nothing: a source is not left in two rows."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2, "x"))
        world.settle()
        OLDER.save(world.clients, pupil("ada", 2, 2, "x"))
        world.settle()
        SCHOOL.save(world.clients, pupil("ada", 2, 2, "y"))
        world.settle()

        assert counts(world, ByHouse) == {"y": 1}
        assert row_markers("by_house.1.1") == {'"y"': {"ada"}}
        assert differences() == []


def deliver_each_once(world: World, rounds: int = 8) -> None:
    """Deliver what is due, refusals too, for some time."""
    for _ in range(rounds):
        for due in list(world.engine.due()):
            world.deliver(due.task_name)
        world.clock.sleep(5)


def test_code_with_another_definition_does_not_fill_a_table(world: World) -> None:
    """C5: a build that the next version takes over is not swapped in half full."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2), pupil("bob", 2, 3))
        world.settle()
        BUILDS.rebuild(world.clients, ByGrade)
    deploy(world, NEW_BUILDS)

    deliver_each_once(world)

    with world.context():
        assert NEWER.catalog().live(NewByGrade) == "by_grade.1.2"
        assert counts(world, NewByGrade, NEWER) == {1: 1, 2: 1}
        assert NEW_BUILDS.rebuild(world.clients, NewByGrade) == "by_grade.2.4"
    world.heal(lambda: not any(busy(NEWER, view) for view in NEWER.views.values()))
    with world.context():
        assert counts(world, NewByGrade, NEWER) == {1: 1, 2: 1}
        assert differences_of(NEWER) == []


@one_emulator
def test_a_late_walk_over_replaced_rows_brings_nothing_back(world: World) -> None:
    """C5: the fill of a build that was given up reads rows of a table that nobody reads."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
        world.settle()
        stale = ViewRow(
            key=row_key("by_grade.1.1", "1"),
            counts={"Pupil": 9},
            sums={},
            fingerprint="0",
            applied=NOON,
        )
        stale.put()
        walk = Walk("grades_by_size", "grades_by_size.1.2", "by_grade", "by_grade.1.1")
        answers = [
            *transact(lambda: BUILDS.fill.apply(world.clients, walk, [stale])),  # type: ignore[misc]
            *BUILDS.settle.check(world.clients, walk, [stale, stale]),  # type: ignore[misc]
        ]
        stale.key.delete()
        world.settle()

        assert [str(answer) for answer in answers] == [NOT_BUILT] * 3
        assert {type(answer) for answer in answers} == {RefusedItemError}
        assert differences() == []


def test_a_rebuild_goes_on_while_sources_come_move_and_go(world: World) -> None:
    """C5: after each delivery something else happens."""
    with world.context():
        SCHOOL.save(world.clients, *[pupil(f"p{n}", n % 3 + 1, n, "x") for n in range(12)])
        world.settle()
        BUILDS.rebuild(world.clients, ByGrade)
        BUILDS.rebuild(world.clients, ByHouse)
        for n in range(15):
            match n % 3:
                case 0:
                    SCHOOL.save(world.clients, pupil(f"p{n % 12}", n % 4 + 1, n, "y"))
                case 1:
                    tutor = Tutor(id="t", grade=n % 4)
                    SCHOOL.save(world.clients, pupil(f"q{n}", 1, n, "z"), tutor)
                case _:
                    SCHOOL.delete(world.clients, ndb.Key(Pupil, f"p{n % 12}"))
            for due in world.engine.due()[:2]:
                world.deliver(due.task_name)
    world.heal(lambda: not any(busy(SCHOOL, view) for view in SCHOOL.views.values()))

    with world.context():
        assert SCHOOL.catalog().live(ByGrade) == "by_grade.1.2"
        assert differences() == []
        for view in SCHOOL.views.values():
            BUILDS.verify(world.clients, view, "v")
    world.settle()
    with world.context():
        for view in SCHOOL.views.values():
            assert BUILDS.verification(world.clients, view, "v").differences == []


@one_emulator
def test_a_build_that_failed_is_begun_anew(services: Services) -> None:
    """C5: `rebuild` again, after the source was mended; the table it gave up goes."""
    play = played(services, [Numbers])
    with play as (world, views):
        views.save(world.clients, number("good", 1))
        Number(id="bad", row="all", said={"m": [1]}).put()
        world.settle()
        play.builds.rebuild(world.clients, Numbers)
        world.settle()
        status = play.builds.rebuilding(world.clients, Numbers)
        assert status is not None
        assert (status.phase, status.failed) == ("failed", 1)
        assert counts(world, Numbers, views) == {"all": 1}

        views.save(world.clients, number("bad", 2))
        tables = [play.builds.rebuild(world.clients, Numbers) for _ in range(2)]
        world.settle()

        assert tables == ["numbers.1.3"] * 2
        assert counts(world, Numbers, views) == {"all": 2}
        assert not busy(views, Numbers)
        assert differences_of(views) == []


@one_emulator
def test_the_sweep_goes_on_after_a_crash_behind_the_first_commit(world: World) -> None:
    """C5: the table is in the catalog, and whoever put it there died."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    world.plan.reset(CRASH_AFTER, next_call="Commit")
    with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
        BUILDS.rebuild(world.clients, ByGrade)
    world.bury()
    with world.context():
        assert SCHOOL.catalog().building(ByGrade) == "by_grade.1.2"

    world.heal(lambda: not busy(SCHOOL, ByGrade))

    with world.context():
        assert SCHOOL.catalog().live(ByGrade) == "by_grade.1.2"
        assert differences() == []


@one_emulator
@pytest.mark.parametrize("what", ["save", "rebuild"])
def test_a_worker_that_starts_goes_on_with_what_a_dead_one_left(world: World, what: str) -> None:
    """C1, C5: it died behind its first commit; no sweep of cron is needed."""
    world.flush()
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1))
    world.settle()
    act: dict[str, Callable[[], object]] = {
        "save": lambda: SCHOOL.save(world.clients, pupil("ada", 2)),
        "rebuild": lambda: BUILDS.rebuild(world.clients, ByGrade),
    }
    world.plan.reset(CRASH_AFTER, next_call="Commit")
    with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
        act[what]()
    assert "Commit" in world.plan.fired
    world.bury()
    began = world.clock.time_s

    with world.context():
        recovery.recover(world.clients, world.registry)
    world.settle(patience_s=SWEPT_EVERY_S)

    assert world.clock.time_s - began <= 10
    with world.context():
        assert counts(world) == {2 if what == "save" else 1: 1}
        assert not busy(SCHOOL, ByGrade)
        assert SCHOOL.catalog().live(ByGrade) == f"by_grade.1.{1 if what == 'save' else 2}"
        assert differences() == []


# Verify


def verified(
    world: World, views: ViewGroup, builds: ViewMaintenance, view: type[View], run: str
) -> list[str]:
    """Verify a view to the end; return what was found."""
    with world.context():
        builds.verify(world.clients, view, run)
    world.settle()
    with world.context():
        found = builds.verification(world.clients, view, run)
    assert found.state == "finished"
    return [f"{difference.where}: {difference.words}" for difference in found.differences]


@pytest.fixture
def grown(world: World) -> World:
    """A world with three pupils in their rows."""
    with world.context():
        SCHOOL.save(
            world.clients, pupil("ada", 1, 1, "x"), pupil("bob", 1, 2, "x"), pupil("eve", 2, 3)
        )
    world.settle()
    return world


def by_hand(world: World, change: Any) -> list[str]:
    """Change something past the views; return what a verification says of it."""
    assert verified(world, SCHOOL, BUILDS, ByGrade, "before") == []
    with world.context():
        change()
    return verified(world, SCHOOL, BUILDS, ByGrade, "after")


def test_verify_lists_a_row_that_was_edited(grown: World) -> None:
    """C5: by what its markers add up to."""

    def edit() -> None:
        row = row_key("by_grade.1.1", "1").get()
        row.counts = {"Pupil": 3}
        row.put()

    (found,) = by_hand(grown, edit)

    assert found.startswith("by_grade.1.1:1: row 1 says")


def test_verify_lists_a_row_that_was_deleted(grown: World) -> None:
    """C5: its markers are still there, and nothing else tells."""
    found = by_hand(grown, lambda: row_key("by_grade.1.1", "1").delete())

    assert len(found) == 2
    assert all("row 1 is not there" in words for words in found)


def test_verify_lists_a_row_that_cannot_be_read(grown: World) -> None:
    """C5: and goes on with the others."""

    def act() -> None:
        row = row_key("by_grade.1.1", "1")
        RowMarker(id="nonsense", parent=row, sequence=1, measures={}).put()
        edited = row_key("by_grade.1.1", "2").get()
        edited.counts = {"Pupil": 7}
        edited.put()

    found = " ".join(by_hand(grown, act))
    assert "row 1 cannot be read" in found
    assert "row 2 says" in found


def test_verify_reads_all_markers_of_a_row(grown: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: of five hundred a page; here of three, so that a row has many, and a full last one."""
    monkeypatch.setattr(view_builds, "SCANNED", 3)
    with grown.context():
        SCHOOL.save(grown.clients, *[pupil(f"q{n}", 9, n) for n in range(6)])
    grown.settle()
    sound = verified(grown, SCHOOL, BUILDS, ByGrade, "before")
    with grown.context():
        markers = RowMarker.query(ancestor=row_key("by_grade.1.1", "9")).order(RowMarker._key)
        last = markers.fetch()[-1]
        last.measures = {**last.measures, "points": 77.0}
        last.put()

    found = verified(grown, SCHOOL, BUILDS, ByGrade, "after")

    assert sound == []
    assert any("row 9 says" in words for words in found)


def test_verify_lists_a_source_that_was_put_past_the_view(grown: World) -> None:
    """C5: by what it contributes."""
    (found,) = by_hand(grown, lambda: pupil("ada", 2, 1, "x").put())

    assert found.startswith("Pupil/ada: its marker says")


def test_verify_lists_a_source_that_was_deleted_past_the_view(grown: World) -> None:
    """C5: no walk over sources meets it; its row does."""
    (found,) = by_hand(grown, lambda: ndb.Key(Pupil, "eve").delete())

    assert "row 2 holds 1 sources that do not say so" in found
    assert "eve" in found


def test_verify_lists_a_marker_that_was_deleted(grown: World) -> None:
    """C5: at its source, and at its row."""

    def delete() -> None:
        row_marker_key(row_key("by_grade.1.1", "1"), source_name(ndb.Key(Pupil, "ada"))).delete()

    found = by_hand(grown, delete)

    assert len(found) == 2
    assert any("does not hold its change 1" in words for words in found)
    assert any("its markers add up to" in words for words in found)


@pytest.mark.parametrize("ranks", [[], ["elsewhere|n8000000000000000"]], ids=["gone", "other"])
def test_verify_lists_a_source_that_is_ranked_by_another_value(
    grown: World, ranks: list[str]
) -> None:
    """C5: sums do not tell, and the least, the greatest and the distinct values hang on it."""

    def edit() -> None:
        marker = row_marker_key(row_key("by_grade.1.1", "1"), source_name(ndb.Key(Pupil, "ada")))
        found = marker.get()
        found.ranks = ranks
        found.put()

    (found,) = by_hand(grown, edit)

    assert "row 1 ranks 1 sources by other values" in found
    assert "ada" in found


@one_emulator
@pytest.mark.parametrize(("sequence", "words"), [(4, "has 4"), (5, "holds {}, not"), (6, None)])
def test_verify_compares_a_source_with_a_row_that_was_read_later(
    here: World, sequence: int, words: str | None
) -> None:
    """C5: a row that is behind, or says otherwise, is a difference; one that is ahead is none."""
    source, row = ndb.Key(Pupil, "ada"), row_key("by_grade.1.1", "1")
    known = {"by_grade.1.1": {"1": [5, {"points": 1}]}}
    marker = SourceMarker(key=marker_key(source), sequence=5, contributions=known)
    key = row_marker_key(row, source_name(source))
    held = {row: ViewRow(key=row), key: RowMarker(key=key, sequence=sequence, measures={})}

    doubt = view_builds._doubt_source("by_grade.1.1", source, {"1": {"points": 1}}, marker, held)

    assert (doubt is None) == (words is None)
    if doubt is not None and words is not None:
        assert words in doubt.words


def test_verify_finds_nothing_while_sources_are_saved_and_updates_wait(grown: World) -> None:
    """C5: what is under way is looked at again."""
    with grown.context():
        SCHOOL.save(grown.clients, pupil("ada", 2, 5, "x"))
        SCHOOL.delete(grown.clients, ndb.Key(Pupil, "eve"))
        BUILDS.verify(grown.clients, ByGrade, "v")
        BUILDS.verify(grown.clients, GradesBySize, "v")
    # The walks come first, and the updates after them.
    for due in grown.engine.due()[::-1]:
        grown.deliver(due.task_name)
    grown.settle()

    with grown.context():
        for view in (ByGrade, GradesBySize):
            found = BUILDS.verification(grown.clients, view, "v")
            assert (found.state, list(found.differences)) == ("finished", [])


@pytest.mark.parametrize("late_s", [1, 6, 40])
def test_verify_ends_soon_after_what_was_late(grown: World, late_s: int) -> None:
    """It says what it waits for, and looks again within as long as that took, and some seconds."""
    with grown.context():
        SCHOOL.save(grown.clients, pupil("ada", 1, 9))
    late = list(grown.engine.due())
    with grown.context():
        BUILDS.verify(grown.clients, ByGrade, "v")
    began = grown.clock.time_s

    def deliver_all_but_late() -> None:
        for due in list(grown.engine.due()):
            if due.task_name not in {each.task_name for each in late}:
                grown.deliver(due.task_name)

    while grown.clock.time_s < began + late_s:
        deliver_all_but_late()
        grown.clock.sleep(0.5)
    with grown.context():
        waits = BUILDS.verification(grown.clients, ByGrade, "v")
    grown.settle()

    with grown.context():
        found = BUILDS.verification(grown.clients, ByGrade, "v")
    assert (waits.state, waits.waiting, waits.differences) == ("running", 2, [])
    assert (found.state, found.waiting, found.differences) == ("finished", 0, [])
    assert grown.clock.time_s - began <= 2 * late_s + 8


def test_verify_says_nothing_of_a_table_that_was_replaced_meanwhile(grown: World) -> None:
    """C5: its rows are gone because they have to be."""
    with grown.context():
        for view in (ByGrade, GradesBySize):
            BUILDS.verify(grown.clients, view, "v")
        held_back = {due.task_name for due in grown.engine.due()}
        BUILDS.rebuild(grown.clients, ByGrade)
    for _ in range(400):
        due = [task for task in grown.engine.due() if task.task_name not in held_back]
        if not due:
            with grown.context():
                if not busy(SCHOOL, ByGrade) and not busy(SCHOOL, GradesBySize):
                    break
            grown.clock.sleep(1)
            continue
        grown.deliver(due[0].task_name)
    grown.settle()

    with grown.context():
        assert SCHOOL.catalog().live(GradesBySize) == "grades_by_size.1.2"
        for view in (ByGrade, GradesBySize):
            found = BUILDS.verification(grown.clients, view, "v")
            assert (found.state, list(found.differences)) == ("finished", [])


# The fake's contract


HISTORY: Sequence[Mapping[str, Any]] = (
    {"save": [("ada", 1, 1.5, "x"), ("bob", 1, 2, "y"), ("eve", 2, 0.1, "")]},
    {"tutor": 1},
    {"save": [("ada", 2, 1.5, "x")]},
    {"delete": "bob"},
    {"save": [("bob", 3, 7, "y"), ("eve", 2, 0.1, "")]},
    {"tutor": 3},
)


def play(clients: Any, deliver: Any) -> None:
    """Play the history; deliver what waits after every second step."""
    for n, step in enumerate(HISTORY):
        if "save" in step:
            SCHOOL.save(clients, *[pupil(*each) for each in step["save"]])
        elif "delete" in step:
            SCHOOL.delete(clients, ndb.Key(Pupil, step["delete"]))
        else:
            SCHOOL.save(clients, Tutor(id="t", grade=step["tutor"]))
        if n % 2:
            deliver()


def path(key: Any) -> tuple[Any, ...]:
    """Return a key without its project and namespace, also of those in its text."""
    parts = []
    for part in key.flat():
        kind, colon, text = part.partition(":") if isinstance(part, str) else ("", "", "")
        is_name = kind in ("Pupil", "Tutor", "by_grade") and colon
        parts.append(path(ndb.Key(urlsafe=text.encode())) if is_name else part)
    return tuple(parts)


def stored(entities: Sequence[Any]) -> dict[Any, Any]:
    """Return everything that the views keep, but for what depends on project and time."""
    found: dict[Any, Any] = {}
    for entity in entities:
        match entity:
            case ViewRow():
                found[path(entity.key)] = (entity.counts, entity.sums)
            case RowMarker():
                found[path(entity.key)] = (entity.sequence, entity.measures)
            case SourceMarker():
                found[path(entity.key)] = (entity.sequence, entity.contributions)
    return found


def played_in_memory(now: datetime.datetime) -> dict[Any, Any]:
    clock = SimpleNamespace(now=lambda: now)
    with offline():
        clients = SimpleNamespace(clock=clock, random=random.Random(1), cache=NoCache())
        with Memory() as memory:

            def deliver() -> None:
                while tasks := memory.tasks(SCHOOL):
                    for task in tasks:
                        SCHOOL.apply(clients, task)  # type: ignore[arg-type]

            play(clients, deliver)
            deliver()
            return stored([memory.get(key) for key in memory.facts])


def test_memory_and_both_emulators_agree(world: World) -> None:
    """What the search in memory proves holds where the entities are stored, too."""
    expected = played_in_memory(world.clients.clock.now())  # Sequences begin at the time.

    with world.context():
        play(world.clients, world.settle)
        world.settle()
        kinds = (ViewRow, RowMarker, SourceMarker)
        found = stored([entity for kind in kinds for entity in kind.query().fetch()])

    assert found == expected
    assert len(found) > 10


@pytest.mark.parametrize("raised", [ValueError("a bug"), rpc_errors.ServiceUnavailable("away")])
def test_a_group_whose_sweep_fails_stops_none_behind_it(raised: Exception) -> None:
    """C5: each group has its turn; that a service was unwell is said afterwards."""
    swept: list[str] = []

    def group(name: str) -> Any:
        def sweep(clients: Any) -> int:
            swept.append(name)
            if name == "broken":
                raise raised
            return 1

        return SimpleNamespace(sweep=sweep)

    groups = [group("a"), group("broken"), group("b")]
    if isinstance(raised, rpc_errors.ServiceUnavailable):
        with pytest.raises(rpc_errors.ServiceUnavailable):
            view_builds.sweep_all(None, groups)
    else:
        assert view_builds.sweep_all(None, groups) == 2

    assert swept == ["a", "broken", "b"]
