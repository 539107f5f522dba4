"""Work items as an earlier version sends them for views with `fan_in`; what is too large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.fork_join.entities import WorkPack
from rollforward.materialized_views import (
    ConsistencyToken,
    Contributions,
    Row,
    View,
    ViewGroup,
    ViewMaintenance,
)
from rollforward.materialized_views.updating.transport import UpdateTransport
from rollforward.outbox.entities import OutboxTask
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import as_work_items
from tests.rollforward.materialized_views.student_views import (
    SCHOOL,
    ByGrade,
    Pupil,
    differences,
    school_world,
)


@pytest.fixture
def world(services: Services, monkeypatch: pytest.MonkeyPatch) -> World:
    as_work_items(monkeypatch, SCHOOL.views.values())
    return school_world(services)


SEND = UpdateTransport.send


def save(
    world: World, count: int, grade: Callable[[int], int], at_once: int = 50
) -> ConsistencyToken:
    """Save so many pupils, fifty in a transaction."""
    with world.clients.context():
        many = [Pupil(id=f"p{i}", grade=grade(i), points=i % 7) for i in range(count)]
        for start in range(0, count, at_once):
            token = SCHOOL.save(world.clients, *many[start : start + at_once])
    return token


def test_what_waits_can_be_seen_and_waited_for(world: World) -> None:
    """C4: the reader knows how far behind a row is; a token is met when its change is applied."""
    token = save(world, 3, lambda i: 1)
    with world.context():
        assert OutboxTask.query().fetch(keys_only=True) == []
        reading = SCHOOL.read(world.clients, ByGrade, at_least=token, timeout_s=0.1)
        assert not reading.is_satisfied
        assert reading.freshness.waiting == 1
        assert reading.freshness.oldest_s > 0
        ((update, age_s),) = SCHOOL.waiting(world.clients, ByGrade)
        assert (update.row, len(update.updates)) == ("1", 3)
        assert age_s > 0
        assert SCHOOL.freshness(world.clients, ByGrade, 1).waiting == 1
    world.settle()

    with world.context():
        again = ConsistencyToken.parse(str(token))
        reading = SCHOOL.read(world.clients, ByGrade, at_least=again, timeout_s=0)
        assert reading.is_satisfied
        assert reading.freshness.waiting == 0
        assert reading.freshness.newest_s is not None


def test_a_view_may_change_its_way_while_updates_are_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: some travel this way and some that way, in any order, to the same row."""
    save(world, 10, lambda i: 1)
    with monkeypatch.context() as patch:
        patch.setattr(UpdateTransport, "send", SEND)
        save(world, 10, lambda i: 2)
        with world.context():
            ways = [len(kind.query().fetch(keys_only=True)) for kind in (OutboxTask, WorkPack)]
    save(world, 5, lambda i: 1)
    world.settle()

    with world.context():
        assert min(ways) > 0
        assert differences() == []
        assert WorkPack.query().fetch(keys_only=True) == []


def test_fan_in_decides_nothing(services: Services) -> None:
    """A view that declares it sends its updates as all others do."""
    views = ViewGroup("wide", Wide, queue="default", fan_in_s=3)
    world = World(services, builds=[ViewMaintenance(views)])
    with world.context():
        views.save(world.clients, Doc(id="d", texts=30))
        stored = [len(kind.query().fetch(keys_only=True)) for kind in (OutboxTask, WorkPack)]
    world.settle()

    with world.context():
        assert stored == [1, 0]
        assert differences(views) == []


def test_a_batch_for_a_view_that_is_not_known_yet_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment under way loses nothing: an older version leaves it to the newer one."""
    save(world, 3, lambda i: 1)
    known = SCHOOL.views.copy()
    with monkeypatch.context() as patch:
        patch.setattr(SCHOOL._internals.definitions, "views", {})
        world.clock.sleep(1.1)
        (task,) = world.live_tasks("default")
        assert world.deliver(task.name) == 200  # It waits, in a task of its own.
    assert SCHOOL.views == known
    world.settle()

    with world.context():
        assert differences() == []


# What is too large to travel


class Doc(ndb.Model):
    """A source of so many texts."""

    texts = ndb.IntegerProperty(indexed=False)


def wide(texts: int) -> dict[str, str]:
    return {f"m{i}": "é" * 900 for i in range(texts)}


class Wide(View):
    """Texts in one row."""

    source = Doc
    fan_in = True

    @staticmethod
    def contributions(doc: Doc) -> Contributions:
        return {"all": wide(doc.texts)}


class Below(View):
    """Pupils by grade; others stand on it."""

    source = Pupil
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.grade: {}}


class WideAbove(View):
    """Long texts for rows of two."""

    source = Below
    fan_in = True

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {"all": wide(50 if row.count == 2 else 1)}


class BesideWide(View):
    """Another one on the same rows."""

    source = Below
    fan_in = True

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {"all": {"n": row.count}}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_view_whose_updates_cannot_travel_stops_neither_the_row_nor_the_views_beside_it(
    services: Services, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: it is parked with its reason, and goes on with the next change; whatever it fails of."""
    above = [WideAbove, BesideWide] if is_first else [BesideWide, WideAbove]
    views = ViewGroup("above", Below, *above, queue="default")
    world = World(services, builds=[ViewMaintenance(views)])
    seen = []
    for n in range(3):
        with world.context():
            views.save(world.clients, Pupil(id=f"p{n}", grade=1))
        world.settle()
        with world.context():
            row, beside = views.row(Below, 1), views.row(BesideWide, "all")
            seen.append((row and row.count, beside and beside.sum("n"), views.is_waiting(Below)))

    with world.context():
        dead = DeadTask.query().fetch()
        assert seen == [(1, 1, False), (2, 2, False), (3, 3, False)]
        assert [each.path for each in dead] == ["/tasks/materialized-views/above/propagate"]
        assert "wide_above" in dead[0].reason or "80,000" in dead[0].reason
        assert differences(views) == []


def test_any_error_of_the_way_is_the_refusal_of_the_view_that_takes_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: also one that no size tells of beforehand."""
    views = ViewGroup("above", Below, WideAbove, BesideWide, queue="default")
    world = World(services, builds=[ViewMaintenance(views)])
    sound = UpdateTransport.check

    def check(self: UpdateTransport, table: str, source: Any, rows: Any) -> None:
        if table.startswith("wide_above."):
            raise ZeroDivisionError(table)
        sound(self, table, source, rows)

    monkeypatch.setattr(UpdateTransport, "check", check)
    with world.context():
        views.save(world.clients, Pupil(id="ada", grade=1))
    world.deliver_due()
    with world.context():
        row = views.row(Below, 1)
        assert row is not None
        assert row.count == 1
