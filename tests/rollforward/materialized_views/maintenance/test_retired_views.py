"""Views that were taken out of the code, and builds that cannot go on."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward import continuations
from rollforward.continuations.entities import FINISHED, RUNNING, run_key
from rollforward.datastore.transactions import transact
from rollforward.fork_join.entities import WorkPack
from rollforward.materialized_views import ViewMaintenance
from rollforward.materialized_views.catalog_changes import with_tables
from rollforward.materialized_views.entities import RowMarker, ViewRow
from rollforward.materialized_views.maintenance.walks import (
    BACKFILL,
    CATCH_UP,
    DROP,
    MARKERS,
    ROWS,
    Walk,
)
from rollforward.outbox.entities import OutboxTask
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.waits import MAX_VERSION_WAIT_S
from rollforward.testing.world import SWEPT_EVERY_S
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    as_work_items,
    deploy,
    row_markers,
    rows_here,
)
from tests.rollforward.materialized_views.student_views import differences, pupil
from tests.rollforward.materialized_views.versions import (
    OLD,
    ByName,
    OldByGrade,
    built,
    deliver,
    group,
    is_update,
    old_world,
)


@pytest.fixture
def world(services: Services) -> World:
    return old_world(services)


@pytest.mark.parametrize("is_of_old", [False, True], ids=["folds", "work items"])
def test_a_view_that_was_taken_out_of_the_code_is_told_of_and_let_go(
    world: World,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_of_old: bool,
) -> None:
    """C1: what waits for it waits until somebody says that it is gone for good, and then ends."""
    if is_of_old:
        as_work_items(monkeypatch, [ByName])
    new = group(OldByGrade, ByName)
    built(world, new, ByName)
    with world.context():
        new.views.save(world.clients, pupil("eve", 1, 5))
        stored = OutboxTask.query().fetch() + WorkPack.query().fetch()
    deploy(world, OLD)
    deliver(world, 3)
    world.sweep()
    warnings = [
        record.getMessage() for record in caplog.records if "by_name" in record.getMessage()
    ]

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
        assert any("not in this version: ['by_name']" in message for message in warnings)
        assert OutboxTask.query().fetch() + WorkPack.query().fetch() == []
        assert all(row.key.id().startswith("by_grade.") for row in rows_here(ViewRow))
        markers = rows_here(RowMarker)
        assert all(marker.key.parent().id().startswith("by_grade.") for marker in markers)
        assert not any("by_name" in record.getMessage() for record in caplog.records)
        assert differences(OLD.views) == []


@pytest.mark.parametrize("is_pinned", [False, True], ids=["begins", "goes on"])
def test_a_build_of_a_view_that_was_taken_out_of_the_code_waits_and_ends_once_it_is_let_go(
    world: World, is_pinned: bool
) -> None:
    """C5: its walk waits for a version that has the view, without an error, as updates do."""
    new = group(OldByGrade, ByName)
    deploy(world, new)
    with world.context():
        if is_pinned:  # A page with an update that waits, so it comes again.
            new.views.save(world.clients, pupil("eve", 1, 5))
        table = new.rebuild(world.clients, ByName)
    if is_pinned:
        deliver(world, 4, but=is_update)
    run_id = Walk("by_name", table, "Pupil").run_id(CATCH_UP if is_pinned else BACKFILL)

    deploy(world, OLD)
    deliver(world, 3)
    with world.context():
        state_meanwhile = run_key(run_id).get().state
        OLD.retire(world.clients, "by_name")
    world.clock.sleep(MAX_VERSION_WAIT_S)
    world.settle(patience_s=SWEPT_EVERY_S)

    with world.context():
        assert (state_meanwhile, run_key(run_id).get().state) == (RUNNING, FINISHED)
        assert DeadTask.query().fetch() == []
    assert [failure.words() for failure in world.failures] == []


@pytest.mark.parametrize("is_retired", [False, True], ids=["rebuilt", "retired"])
@pytest.mark.parametrize("kind", [ROWS, MARKERS])
def test_a_cancelled_drop_goes_on_when_it_is_asked_for_again(
    world: World, kind: str, is_retired: bool
) -> None:
    """C5: by a second `retire` or `rebuild`, and not by a sweep."""
    new = group(OldByGrade, ByName)
    built(world, new, ByName)

    def ask() -> None:
        with world.context():
            if is_retired:
                OLD.retire(world.clients, "by_name")
            else:
                new.rebuild(world.clients, ByName)

    with world.context():
        table = new.views.catalog().live(ByName)
    if is_retired:
        deploy(world, OLD)
    drop = Walk("by_name", table, kind).run_id(DROP)
    ask()
    while not has_begun(world, drop):
        deliver(world, 1)
    with world.context():
        continuations.cancel(drop)
    world.settle()
    world.sweep()
    world.settle()
    with world.context():
        dropping = new.views.catalog().dropping("by_name")

    ask()
    world.settle()

    with world.context():
        assert dropping == [table]
        assert new.views.catalog().dropping("by_name") == []
        assert not any(row.key.id().startswith(f"{table}:") for row in rows_here(ViewRow))
        assert not row_markers(table)


def has_begun(world: World, run_id: str) -> bool:
    with world.context():
        return run_key(run_id).get() is not None


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
        new.views.save(world.clients, pupil("eve", 1, 5))
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
            transact(lambda view=view: new._tables.begin(view, None))
        catalog = with_tables(new.views.catalog(), ByName, dropping=["by_name.1.0"])
        transact(lambda: new._catalogs.write(catalog))
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
