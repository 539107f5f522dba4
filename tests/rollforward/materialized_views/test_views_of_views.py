"""Views whose sources are another view's rows."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from pipelines.registry import APP
from rollforward.materialized_views import Contributions, Row, View, ViewGroup
from rollforward.outbox.entities import OutboxTask
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Numbers,
    counts,
    in_a_thread,
    number,
    one_emulator,
    played,
    verified,
)
from tests.rollforward.materialized_views.student_views import (
    BUILDS,
    SCHOOL,
    ByGrade,
    GradesBySize,
    Pupil,
    differences,
    pupil,
)


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
        assert dead.path == "/tasks/materialized-views/played/propagate"
        assert "picky fails over it: ZeroDivisionError: all has 2" in dead.reason
        assert differences(views) == []


@one_emulator
@pytest.mark.parametrize("row", ["字" * 332, '"' * 499])
def test_a_row_of_the_longest_name_is_parked_as_well(services: Services, row: str) -> None:
    """C1: its name is longer than the name of a task may be, as JSON."""
    with played(services, [Numbers, Picky, Sizes]) as (world, views):
        views.save(world.clients, number("a", 1, row), number("b", 1, row))
        world.settle()

        assert [each.path.rpartition("/")[2] for each in DeadTask.query().fetch()] == ["propagate"]
        assert OutboxTask.query().fetch() == []


@one_emulator
@pytest.mark.parametrize("is_mended", [False, True])
def test_a_row_whose_task_was_purged_is_taken_all_the_same(
    services: Services, monkeypatch: pytest.MonkeyPatch, *, is_mended: bool
) -> None:
    """C1: the sweep creates the task again, which fails as the first one would have, or works."""
    with played(services, [Numbers, Picky, Sizes]) as (world, views):
        views.save(world.clients, number("a", 1), number("b", 1))
        purged = 0
        while not purged:
            for task in world.live_tasks("default"):
                if "/propagate" in task.http_request.url:
                    world.engine.tasks.delete(task.name)
                    purged += 1
                else:
                    world.deliver(task.name)
            world.clock.sleep(1)
        if is_mended:
            monkeypatch.setattr(Picky, "fails_over", None)
        for _ in range(12):
            world.sweep()
            world.settle()
            world.clock.sleep(60)

        dead = [each.path.rpartition("/")[2] for each in DeadTask.query().fetch()]
        assert dead == ([] if is_mended else ["propagate"])
        assert sizes(views) == ([2, 2, 2] if is_mended else [2, 2, None])
        assert OutboxTask.query().fetch() == []


def test_a_row_that_was_parked_follows_when_its_view_is_mended(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: replayed, it takes the row as it is by then; until then verify tells."""
    play = played(services, [Numbers, Picky, Sizes])
    with play as (world, views):
        views.save(world.clients, number("a", 1), number("b", 1))
        world.settle()
        before = in_a_thread(lambda: verified(world, play.builds, Picky, "before"))
        (dead,) = DeadTask.query().fetch()
        monkeypatch.setattr(Picky, "fails_over", None)
        replay = APP.tasks["/tasks/dead/replay"]
        replay.enqueue(world.clients, ReplayDeadTask(dead.key.id()))
        world.settle()

        assert any("picky fails over it" in message for message in before)
        assert sizes(views) == [2, 2, 2]
        after = in_a_thread(lambda: verified(world, play.builds, Picky, "after"))
        assert after == []
        assert differences(views) == []


@one_emulator
def test_a_view_is_built_although_another_one_fails_over_its_sources(services: Services) -> None:
    """C5: only the build of the one that fails has failed."""
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
def test_a_row_of_a_table_that_is_being_built_is_no_source(here: World) -> None:
    """C5: it has not all of its own sources yet, and the views above it are read meanwhile."""
    SCHOOL.save(here.clients, pupil("ada", 1), pupil("bob", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    SCHOOL.save(here.clients, pupil("eve", 1))

    def apply_all(prefix: str) -> None:
        for row in OutboxTask.query().fetch():
            if row.tag.startswith(prefix):
                SCHOOL.apply(here.clients, SCHOOL.task.read(row.body.encode()))

    for prefix in ("by_grade.1.1:", f"{table}:", "grades_by_size."):
        apply_all(prefix)

    assert counts(here) == {1: 3}
    assert counts(here, GradesBySize) == {3: 1}
