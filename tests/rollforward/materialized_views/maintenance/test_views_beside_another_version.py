"""Views while two versions of the app serve at once: neither touches what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from google.cloud import ndb

from rollforward.materialized_views import Contributions, View
from rollforward.materialized_views.entities import SourceMarker, ViewCatalog, ViewRow, marker_key
from rollforward.materialized_views.maintenance.walks import BACKFILL, Walk
from rollforward.outbox.entities import OutboxTask
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.runs import sampling
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    by_own_tasks,
    deploy,
    heal,
    rows_here,
)
from tests.rollforward.materialized_views.student_views import Pupil, differences, pupil
from tests.rollforward.materialized_views.versions import (
    OLD,
    NewByGrade,
    NewSizes,
    OldByGrade,
    OldSizes,
    SameByGrade,
    built,
    deliver,
    group,
    is_update,
    old_world,
)

versions = pytest.mark.parametrize(
    "newer", [NewByGrade, SameByGrade], ids=["next version", "same version"]
)


@pytest.fixture
def world(services: Services) -> World:
    return old_world(services)


@versions
def test_a_version_swaps_in_no_table_that_has_a_join_it_does_not_know(
    world: World, newer: type[View]
) -> None:
    """C5: its own walks have ended, and the one over the tutors has not."""
    new = group(newer)
    deploy(world, new)
    with world.context():
        table = new.rebuild(world.clients, newer)
    late = Walk("by_grade", table, "Tutor").run_id(BACKFILL).encode()
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


def test_a_swap_takes_no_view_back_to_an_older_version(world: World) -> None:
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


@versions
def test_a_version_applies_nothing_to_a_table_whose_ranks_it_does_not_know(
    world: World, newer: type[View]
) -> None:
    """C1: the update waits for a version that ranks it, however often it comes."""
    new = group(newer)
    built(world, new, newer)
    with world.context():
        new.views.save(world.clients, pupil("eve", 1, 5))

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
    """C1: no reader reads that table, so no version has to know it."""
    with world.context():
        OLD.views.save(world.clients, pupil("eve", 1, 5))
        held = OutboxTask.query().fetch()
    new = group(NewByGrade)
    deploy(world, new)
    with world.context():
        new.rebuild(world.clients, NewByGrade)
    deliver(world, 15, but=lambda attempt: b'"by_grade.1.2"' in attempt.body and is_update(attempt))

    deliver(world, 5)

    with world.context():
        assert held
        assert OutboxTask.query().fetch() == []
        assert new.views.catalog().live(NewByGrade) == "by_grade.2.3"
        assert differences(new.views) == []


@sampling.long
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_an_update_that_no_version_takes_for_an_hour_is_left_to_the_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, H5a: it waits for an hour without an error, a new task each time, and is not parked."""
    by_own_tasks(monkeypatch)
    new = group(NewByGrade)
    built(world, new, NewByGrade)
    with world.context():
        new.views.save(world.clients, pupil("eve", 1, 5))
    deploy(world, OLD)
    (due,) = world.engine.due()
    answers = [world.deliver(due.task_name)]
    pauses_s = []
    while (wake_at := world.engine.wake_at()) is not None:
        pauses_s.append(wake_at - world.clock.time_s)
        world.clock.sleep(pauses_s[-1])
        (due,) = world.engine.due()
        answers.append(world.deliver(due.task_name))
    with world.context():
        waits = new.views.is_waiting(NewByGrade)
    left = world.engine.due()
    deploy(world, new)
    world.sweep()
    world.settle()

    with world.context():
        assert (set(answers[:-1]), answers[-1], left, waits) == ({200}, 204, [], True)
        assert pauses_s[0] == pytest.approx(5, abs=0.5)
        assert max(pauses_s) == pytest.approx(60, abs=0.5)
        assert 3_600 < sum(pauses_s) < 3_700
        assert DeadTask.query().fetch() == []
        assert differences(new.views) == []


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


def test_a_catalog_of_the_version_before_is_read(world: World) -> None:
    """C5: it says nothing of what its tables were begun with; they go by their version."""
    new = group(OldByGrade, OldSizes)
    built(world, new, OldSizes)
    with world.context():
        copies = ViewCatalog.query().fetch()
        for copy in copies:
            copy.begun_with = None
        ndb.put_multi(copies)
        new.views.save(world.clients, pupil("eve", 2, 5))
    world.settle()

    with world.context():
        assert differences(new.views) == []
    built(world, new, OldByGrade)
    with world.context():
        assert differences(new.views) == []
        tables = {row.key.id().partition(":")[0] for row in rows_here(ViewRow)}
        assert tables == {"by_grade.1.3", "sizes.1.3"}


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
        OLD.views.save(world.clients, pupil("ada", 2, 3))
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
