"""Views while two versions of the code serve at once: neither touches what it does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from google.cloud import ndb

from models.dead_tasks import DeadTask
from models.fork_join import WorkPack
from models.materialized_views import (
    RowMarker,
    SourceMarker,
    ViewCatalog,
    ViewRow,
    marker_key,
)
from models.outbox import OutboxTask
from models.transactions import transact
from pipelines.materialized_views import Contributions, Row, View, ViewGroup, ViewMaintenance
from pipelines.materialized_views import rebuild as view_builds
from pipelines.materialized_views.rebuild import DROP, FILL, Walk
from tests.pipelines.materialized_views.test_materialized_views import busy, deploy
from tests.pipelines.school import Pupil, Tutor, differences
from tests.world import Services, World


class OldByGrade(View):
    """Pupils by grade."""

    name = "by_grade"
    source = Pupil
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.grade: {"points": pupil.points or 0}} if pupil.grade else {}


class OldSizes(View):
    """A view of it."""

    name = "sizes"
    source = OldByGrade
    row_rate = None

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {row.count: {}} if row.count else {}


def from_tutor(tutor: Tutor) -> Contributions:
    return {tutor.grade: {}}


class NewByGrade(OldByGrade):
    """The next definition: joined with tutors, and ranked."""

    name = "by_grade"
    definition = 2
    ranked = ("points",)
    joins: ClassVar[Mapping[Any, Any]] = {Tutor: from_tutor}


class SameByGrade(NewByGrade):
    """The same, by somebody who forgot to count the definition up."""

    name = "by_grade"
    definition = 1


class NewSizes(OldSizes):
    """The next definition of the view above."""

    name = "sizes"
    definition = 2


def group(*views: type[View]) -> ViewMaintenance:
    return ViewMaintenance(ViewGroup("beside", *views, queue="default"), queue="default")


OLD = group(OldByGrade)
versions = pytest.mark.parametrize(
    "newer", [NewByGrade, SameByGrade], ids=["next definition", "same definition"]
)


@pytest.fixture
def world(services: Services) -> World:
    """A world of the old version: two pupils in its view, and tutors who are in none."""
    world = World(services, builds=[OLD])
    with world.context():
        OLD.rebuild(world.clients, OldByGrade)
    heal(world, OLD)
    with world.context():
        OLD.views.save(world.clients, pupil("ada", 9), pupil("bob", 1))
        ndb.put_multi([Tutor(id=f"t{n}", grade=1) for n in range(5)])
    world.settle()
    return world


def pupil(name: str, points: float, grade: int = 1) -> Pupil:
    return Pupil(id=name, grade=grade, points=points)


def heal(world: World, builds: ViewMaintenance) -> None:
    """Let time pass until nothing is built or dropped any more."""
    views = builds.views
    world.heal(lambda: not any(busy(views, view) for view in views.views.values()))


def built(world: World, builds: ViewMaintenance, view: type[View]) -> None:
    """Let a version answer from now on, and build a view."""
    deploy(world, builds)
    with world.context():
        builds.rebuild(world.clients, view)
    heal(world, builds)


def deliver(world: World, rounds: int, but: Callable[[Any], bool] = lambda attempt: False) -> None:
    """Deliver what is due for some time; what is left out is answered by a busy instance."""
    for _ in range(rounds):
        for due in list(world.engine.due()):
            attempt = world.engine.begin_attempt(due.task_name)
            if but(attempt):
                world.engine.end_attempt(attempt.id, status=503, error=None)
                continue
            world.current = attempt
            world.end(attempt, world.answer(attempt))
        world.clock.sleep(2)


# Swaps


@versions
def test_a_version_swaps_in_no_table_that_has_a_join_it_does_not_know(
    world: World, newer: type[View]
) -> None:
    """C5: its own walks have ended, and the one over the tutors has not."""
    new = group(newer)
    deploy(world, new)
    with world.context():
        table = new.rebuild(world.clients, newer)
    late = view_builds._run_id(FILL, Walk("by_grade", table, "Tutor")).encode()
    deliver(world, 10, but=lambda attempt: late in attempt.body)

    deploy(world, OLD)
    for _ in range(3):
        world.sweep()
        deliver(world, 3, but=lambda attempt: late in attempt.body)
    with world.context():
        live_meanwhile = new.views.catalog().live(newer)
    deploy(world, new)
    heal(world, new)

    with world.context():
        row = new.views.row(newer, 1)
        assert live_meanwhile != table
        assert new.views.catalog().live(newer) == table
        assert row is not None
        assert row.counts == {"Pupil": 2, "Tutor": 5}
        assert differences(new.views) == []


def test_a_swap_begins_views_anew_that_this_version_does_not_know(world: World) -> None:
    """C5: they stand on rows that are about to go; another version fills them."""
    new = group(OldByGrade, OldSizes)
    built(world, new, OldSizes)

    built(world, OLD, OldByGrade)
    deploy(world, new)
    heal(world, new)

    with world.context():
        assert differences(new.views) == []
        assert [row.name for row in new.views.read(world.clients, OldSizes).rows] == [2]
        assert new.views.catalog().live(OldSizes) == "sizes.1.3"


def test_a_swap_takes_no_view_back_to_an_older_definition(world: World) -> None:
    """C5: the view above was built by the next version, which will build it again."""
    old, new = group(OldByGrade, OldSizes), group(OldByGrade, NewSizes)
    built(world, new, NewSizes)

    deploy(world, old)
    with world.context():
        old.rebuild(world.clients, OldByGrade)
    deliver(world, 15)
    with world.context():
        building = old.views.catalog().building(OldSizes)
    deploy(world, new)
    heal(world, new)

    with world.context():
        assert building == "sizes.2.3"
        assert new.views.catalog().live(NewSizes) == building
        assert differences(new.views) == []


# Applies


@versions
def test_a_version_applies_nothing_to_a_table_whose_ranks_it_does_not_know(
    world: World, newer: type[View]
) -> None:
    """C1: the update waits for a version that ranks it, however often it comes."""
    new = group(newer)
    built(world, new, newer)
    with world.context():
        new.views.save(world.clients, pupil("eve", 5))

    deploy(world, OLD)
    deliver(world, 5)
    with world.context():
        waits = new.views.is_waiting(newer)
    deploy(world, new)
    world.settle()

    with world.context():
        top = new.views.top(newer, 1, "points", 3)
        assert waits
        assert [(key.id(), points) for key, points in top] == [("ada", 9), ("eve", 5), ("bob", 1)]


def test_an_update_of_a_table_that_was_replaced_ends_in_any_version(world: World) -> None:
    """C1: nobody reads that table, so nobody has to know it."""
    with world.context():
        OLD.views.save(world.clients, pupil("eve", 5))
        held = OutboxTask.query().fetch()
    new = group(NewByGrade)
    deploy(world, new)
    with world.context():
        new.rebuild(world.clients, NewByGrade)
    deliver(world, 15, but=lambda attempt: b'"by_grade.1.2"' in attempt.body and held_in(attempt))

    deliver(world, 5)

    with world.context():
        assert held
        assert OutboxTask.query().fetch() == []
        assert new.views.catalog().live(NewByGrade) == "by_grade.2.3"
        assert differences(new.views) == []


def held_in(attempt: Any) -> bool:
    return b'"held"' in attempt.body


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_an_update_that_no_version_takes_for_an_hour_is_left_to_the_sweep(world: World) -> None:
    """C1: nobody asks for it every ten seconds for days, and nothing is parked."""
    new = group(NewByGrade)
    built(world, new, NewByGrade)
    with world.context():
        new.views.save(world.clients, pupil("eve", 5))
    deploy(world, OLD)
    (due,) = world.engine.due()
    answers = []
    for wait_s in (10, 3_500, 100):
        world.clock.sleep(wait_s)
        answers.append(world.deliver(due.task_name))
    with world.context():
        waits = new.views.is_waiting(NewByGrade)
    left = world.engine.due()
    deploy(world, new)
    world.sweep()
    world.settle()

    with world.context():
        assert (answers, left, waits) == ([429, 429, 204], [], True)
        assert DeadTask.query().fetch() == []
        assert differences(new.views) == []


# Deletes


def test_a_version_deletes_a_source_from_tables_that_it_does_not_know(world: World) -> None:
    """C1: leaving takes no function; the version that knows the table applies it."""
    new = group(NewByGrade)
    built(world, new, NewByGrade)

    with world.context():
        OLD.views.delete(world.clients, ndb.Key(Pupil, "ada"))
    world.settle()

    with world.context():
        top = new.views.top(NewByGrade, 1, "points", 3)
        assert [key.id() for key, _ in top] == ["bob"]
        assert differences(new.views) == []


def test_a_version_deletes_a_source_from_views_that_it_does_not_know(world: World) -> None:
    """C1: also when the view is not in its code at all."""

    class ByPoints(View):
        source = Pupil
        fan_in = True

        @staticmethod
        def contributions(pupil: Pupil) -> Contributions:
            return {int(pupil.points or 0): {}}

    new = group(OldByGrade, ByPoints)
    built(world, new, ByPoints)

    with world.context():
        OLD.views.delete(world.clients, ndb.Key(Pupil, "ada"))
    world.settle()

    with world.context():
        assert [row.name for row in new.views.read(world.clients, ByPoints).rows] == [1]
        assert differences(new.views) == []


# The catalog


def test_a_catalog_of_the_version_before_is_read(world: World) -> None:
    """C5: it says nothing of what its tables were begun with; they go by their definition."""
    new = group(OldByGrade, OldSizes)
    built(world, new, OldSizes)
    with world.context():
        copies = ViewCatalog.query().fetch()
        for copy in copies:
            copy.begun_with = None
        ndb.put_multi(copies)
        new.views.save(world.clients, pupil("eve", 5, grade=2))
    world.settle()

    with world.context():
        assert differences(new.views) == []
    built(world, new, OldByGrade)
    with world.context():
        assert differences(new.views) == []
        tables = {row.key.id().partition(":")[0] for row in ViewRow.query().fetch()}
        assert tables == {"by_grade.1.3", "sizes.1.3"}


# Views that were taken out of the code


class ByName(View):
    """Pupils, each in a row of its own."""

    source = Pupil
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.key.id(): {}}


@pytest.mark.parametrize("fan_in", [False, True], ids=["outbox", "fan-in"])
def test_a_view_that_was_taken_out_of_the_code_is_told_of_and_let_go(
    world: World,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fan_in: bool,
) -> None:
    """C1: what waits for it waits until somebody says that it is gone for good, and then ends."""
    monkeypatch.setattr(ByName, "fan_in", fan_in)
    new = group(OldByGrade, ByName)
    built(world, new, ByName)
    with world.context():
        new.views.save(world.clients, pupil("eve", 5))
        stored = OutboxTask.query().fetch() + WorkPack.query().fetch()
    deploy(world, OLD)
    deliver(world, 3)
    world.sweep()
    told = [record.getMessage() for record in caplog.records if "by_name" in record.getMessage()]

    with world.context():
        waits = new.views.is_waiting(ByName)
        OLD.retire(world.clients, "by_name")
        OLD.retire(world.clients, "by_name")
    world.settle()
    caplog.clear()
    world.sweep()

    with world.context():
        assert stored
        assert waits
        assert any("not in this version: ['by_name']" in words for words in told)
        assert OutboxTask.query().fetch() + WorkPack.query().fetch() == []
        assert all(row.key.id().startswith("by_grade.") for row in ViewRow.query().fetch())
        markers = RowMarker.query().fetch(keys_only=True)
        assert all(key.parent().id().startswith("by_grade.") for key in markers)
        assert not any("by_name" in record.getMessage() for record in caplog.records)
        assert differences(OLD.views) == []


def test_a_view_that_was_let_go_may_come_back(world: World) -> None:
    """C5: it stands empty, and says so, until it is rebuilt."""
    new = group(OldByGrade, ByName)
    built(world, new, ByName)
    deploy(world, OLD)
    with world.context():
        OLD.retire(world.clients, "by_name")
    world.settle()
    deploy(world, new)
    with world.context():
        new.views.save(world.clients, pupil("eve", 5))
        before = new.views.read(world.clients, ByName)
    built(world, new, ByName)

    with world.context():
        assert ([row.name for row in before.rows], before.freshness.is_frozen) == ([], True)
        rows = new.views.read(world.clients, ByName).rows
        assert [row.name for row in rows] == ["ada", "bob", "eve"]
        assert differences(new.views) == []


def test_only_a_view_that_is_out_of_the_code_can_be_let_go(world: World) -> None:
    """C1: its saves would go on to a table that is dropped."""
    with world.context():
        with pytest.raises(ValueError, match="by_grade is in the code"):
            OLD.retire(world.clients, "by_grade")
        with pytest.raises(LookupError):
            OLD.retire(world.clients, "nothing")


def test_a_build_that_cannot_go_on_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: neither in the sweep nor beside a table that cannot be dropped."""
    new = group(OldByGrade, ByName)
    deploy(world, new)
    with world.context():
        for view in (OldByGrade, ByName):
            transact(lambda view=view: new._begin(view, None))
        transact(lambda: new._put(new.views.catalog().changed(ByName, dropping=["by_name.1.0"])))
    sound = ViewMaintenance._start

    def start(self: ViewMaintenance, clients: Any, step: str, walk: Walk) -> None:
        if walk.view == "by_grade" or step == DROP:
            raise ZeroDivisionError(walk)
        sound(self, clients, step, walk)

    monkeypatch.setattr(ViewMaintenance, "_start", start)
    world.sweep()
    world.settle(patience_s=60)

    with world.context():
        assert new.views.catalog().live(ByName) == "by_name.1.2"
        assert new.views.catalog().live(OldByGrade) == "by_grade.1.2"


def test_what_a_later_version_adds_is_not_erased(world: World) -> None:
    """C1, C5: in the catalog and in markers, which both versions change; in an entry as well."""
    with world.context():
        copies = ViewCatalog.query().fetch()
        for copy in copies:
            copy.views = {"by_grade": {**copy.views["by_grade"], "since": "noon"}}
        ndb.put_multi(copies)
        marker = marker_key(ndb.Key(Pupil, "ada"))
        with later_models():
            for key in [*[copy.key for copy in copies], marker]:
                stored = key.get()
                stored.later = "kept"
                stored.put()

    with world.context():
        OLD.views.save(world.clients, pupil("ada", 3, grade=2))
        OLD.rebuild(world.clients, OldByGrade)
    heal(world, OLD)

    with world.context():
        assert OLD.views.catalog().live(OldByGrade) == "by_grade.1.3"
        assert OLD.views.catalog().views["by_grade"]["since"] == "noon"
        with later_models():
            stored = ndb.get_multi([*[copy.key for copy in copies], marker])
            assert {getattr(each, "later", None) for each in stored} == {"kept"}
        assert differences(OLD.views) == []


@contextmanager
def later_models() -> Iterator[None]:
    """Let ndb know the kinds as a later version does, which has more properties."""
    here = {"ViewCatalog": ViewCatalog, "SourceMarker": SourceMarker}
    for kind in here:
        type(f"Later{kind}", (ndb.Expando,), {"_get_kind": classmethod(lambda cls, k=kind: k)})
    try:
        yield
    finally:
        ndb.Model._kind_map.update(here)
