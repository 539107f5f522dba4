"""Views whose updates travel through the fork-join queue of their row: hot rows, few writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.fork_join.entities import WorkPack
from rollforward.materialized_views import (
    BadContributionError,
    ConsistencyToken,
    Contributions,
    Row,
    View,
    ViewGroup,
    ViewMaintenance,
)
from rollforward.materialized_views.updating import apply, fold
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import naive_utc
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.student_views import (
    SCHOOL,
    ByGrade,
    Pupil,
    differences,
    school_world,
)


@pytest.fixture
def world(services: Services, monkeypatch: pytest.MonkeyPatch) -> World:
    for view in SCHOOL.views.values():
        monkeypatch.setattr(view, "fan_in", True)
    return school_world(services)


def save(
    world: World, count: int, grade: Callable[[int], int], at_once: int = 50
) -> ConsistencyToken:
    """Save so many pupils, fifty in a transaction."""
    with world.clients.context():
        many = [Pupil(id=f"p{i}", grade=grade(i), points=i % 7) for i in range(count)]
        for start in range(0, count, at_once):
            token = SCHOOL.save(world.clients, *many[start : start + at_once])
    return token


@pytest.mark.timeout(300)
def test_many_sources_that_move_write_each_row_once_a_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: sources move between 3 rows; a row is written at most once in a batch."""
    save(world, 400, lambda i: i % 3)
    world.settle()
    writes: Counter[str] = Counter()
    folds: Counter[str] = Counter()
    sound_put, sound_join = fold.put_row, SCHOOL.fan_in.join

    def put_row(view: Any, row: Any, changed: Any) -> None:
        writes[row.key.id()] += 1
        sound_put(view, row, changed)

    def join(clients: Any, batch: Any, items: Any) -> None:
        folds[batch.key] += 1
        sound_join(clients, batch, items)

    monkeypatch.setattr(apply, "put_row", put_row)
    monkeypatch.setattr(SCHOOL.fan_in, "join", join)
    save(world, 400, lambda i: (i + 1) % 3)
    world.settle()

    grades = {row: count for row, count in writes.items() if row.startswith("by_grade.")}
    assert all(count <= folds[row] for row, count in grades.items())
    # Each pupil leaves one row and enters another: 800 updates, most of 80 a write.
    assert sum(grades.values()) <= 800 / 50
    with world.context():
        assert differences() == []
        rows = SCHOOL.read(world.clients, ByGrade).rows
        assert sum(row.count for row in rows) == 400


def test_a_row_is_as_new_as_the_newest_save_of_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: whichever place that one has among those that came together."""
    sound_join, sizes = SCHOOL.fan_in.join, set[int]()

    def join(clients: Any, batch: Any, items: Any) -> None:
        sizes.add(len(items))
        newest, *others = sorted(items, key=lambda each: each.saved, reverse=True)
        sound_join(clients, batch, [*others[:1], newest, *others[1:]])

    monkeypatch.setattr(SCHOOL.fan_in, "join", join)
    for number in range(3):
        world.clock.sleep(0.2)
        saved = naive_utc(world.clock.now())
        with world.clients.context():
            SCHOOL.save(world.clients, Pupil(id=f"p{number}", grade=1, points=number))
    world.settle()

    with world.context():
        row = SCHOOL.row(ByGrade, 1)
    assert row is not None
    assert 3 in sizes
    assert abs((row.applied - saved).total_seconds()) < 0.1


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


def test_a_save_costs_no_more_than_without_fan_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entity for each row that changes: a work item instead of an outbox row."""
    save(world, 1, lambda i: 1)
    world.settle()

    def cost() -> Any:
        before = world.clients.meter.cost()
        save(world, 2, lambda i: 1)
        return world.clients.meter.cost() - before

    ours = cost()
    world.settle()
    with world.clients.context():
        SCHOOL.delete(world.clients, ndb.Key(Pupil, "p1"))
    world.settle()
    monkeypatch.setattr(ByGrade, "fan_in", False)
    theirs = cost()

    # Without fan-in the relay follows at once: its task, and the row that stays until then.
    assert ours.writes <= theirs.writes
    assert ours.reads <= theirs.reads


def test_a_view_may_change_its_way_while_updates_are_under_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: some travel this way and some that way, in any order, to the same row."""
    save(world, 10, lambda i: 1)
    monkeypatch.setattr(ByGrade, "fan_in", False)
    save(world, 10, lambda i: 2)
    monkeypatch.setattr(ByGrade, "fan_in", True)
    save(world, 5, lambda i: 1)
    world.settle()

    with world.context():
        assert differences() == []
        assert WorkPack.query().fetch(keys_only=True) == []


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
        assert world.deliver(task.name) == 409
    assert SCHOOL.views == known
    world.settle()

    with world.context():
        assert differences() == []


# What is too large to travel by fan-in


class Doc(ndb.Model):
    """A source of so many texts."""

    texts = ndb.IntegerProperty(indexed=False)


def wide(texts: int) -> dict[str, str]:
    return {f"m{i}": "x" * 900 for i in range(texts)}


class Wide(View):
    """Texts in one row, by fan-in."""

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


def test_what_does_not_fit_into_a_work_item_is_refused_at_the_save(services: Services) -> None:
    """C1: with the reason, and before anything is written; what fits, travels."""
    views = ViewGroup("wide", Wide, queue="default")
    world = World(services, builds=[ViewMaintenance(views)])
    with world.context():
        with pytest.raises(BadContributionError, match=r"at most 34,000 bytes, got 45,\d+"):
            views.save(world.clients, Doc(id="d", texts=50))
        refusal = views._internals.definitions.refusal(Wide, Doc(id="d", texts=50))
        left = [kind.query().fetch() for kind in (Doc, WorkPack)]
        views.save(world.clients, Doc(id="d", texts=37))
    world.settle()

    with world.context():
        row = views.row(Wide, "all")
        assert refusal is not None
        assert left == [[], []]
        assert row is not None
        assert row.count == 1
        assert differences(views) == []


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
        assert "wide_above" in dead[0].reason or "34,000" in dead[0].reason
        assert differences(views) == []


def test_any_error_of_the_way_is_the_refusal_of_the_view_that_takes_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: also one that no size tells of beforehand."""
    views = ViewGroup("above", Below, WideAbove, BesideWide, queue="default")
    world = World(services, builds=[ViewMaintenance(views)])
    sound = views.fan_in.check

    def check(key: str, item: Any) -> None:
        if key.startswith("wide_above."):
            raise ZeroDivisionError(key)
        sound(key, item)

    monkeypatch.setattr(views.fan_in, "check", check)
    with world.context():
        views.save(world.clients, Pupil(id="ada", grade=1))
    world.deliver_due()
    with world.context():
        row = views.row(Below, 1)
        assert row is not None
        assert row.count == 1
