"""Views whose version is changed: the next one is built beside the one that is read."""

from __future__ import annotations

from typing import Any

from rollforward.materialized_views import (
    ConsistencyToken,
    Contributions,
    Row,
    View,
    ViewGroup,
    ViewMaintenance,
)
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import (
    counts,
    deploy,
    heal,
    one_emulator,
    rebuild,
    row_markers,
)
from tests.rollforward.materialized_views.student_views import (
    BUILDS,
    SCHOOL,
    ByGrade,
    ByHouse,
    GradesBySize,
    Pupil,
    differences,
    pupil,
)


class NewByGrade(View):
    """The next version: points count double."""

    name = "by_grade"
    version = 2
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


def test_a_changed_version_is_swapped_in_at_one_go(world: World) -> None:
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
        assert differences(NEWER) == []


def new_points(world: World) -> dict[Any, Any]:
    """Return what a reader of the new version sees."""
    rows = NEWER.read(world.clients, NewByGrade).rows
    return {row.name: row.sum("points") for row in rows}


def rebuild_first(world: World) -> None:
    """Let the catalog know the table, as a new view should."""
    assert rebuild(world) == "by_grade.1.2"


def test_a_table_of_another_version_is_said_to_be_frozen(world: World) -> None:
    """C1: what the new code saves does not reach it; readers see that it does not."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
        world.settle()
        deploy(world, NEW_BUILDS)
        token = ConsistencyToken.parse(str(NEWER.save(world.clients, pupil("bob", 1, 3))))
        world.settle()

        def seen(view: type[View]) -> tuple[bool, bool]:
            reading = NEWER.read(world.clients, view, at_least=token, timeout_s=0)
            return reading.is_satisfied, reading.freshness.is_frozen

        before = [seen(NewByGrade), seen(ByHouse)]
        of_row = NEWER.freshness(world.clients, NewByGrade, 1).is_frozen
        of_older = SCHOOL.read(world.clients, ByGrade).freshness.is_frozen
        anywhere = NEWER.wait(world.clients, token, 0)
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
    heal(world, NEW_BUILDS)

    assert before == [(False, True), (True, False)]
    assert (of_row, of_older, anywhere) == (True, False, False)
    with world.context():
        assert [seen(NewByGrade), seen(ByHouse)] == [(True, False), (True, False)]
        assert NEWER.wait(world.clients, token, 0)
        assert new_points(world) == {1: 10}


def test_a_changed_version_is_not_read_from_an_empty_table(world: World) -> None:
    """C5: also of a view that was never rebuilt; the sweep has listed it in the catalog."""
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2))
    world.settle()
    world.sweep()
    deploy(world, NEW_BUILDS)

    with world.context():
        reading = NEWER.read(world.clients, NewByGrade)
        seen = {row.name: row.sum("points") for row in reading.rows}
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
    heal(world, NEW_BUILDS)

    assert (seen, reading.freshness.is_frozen) == ({1: 2}, True)
    with world.context():
        assert new_points(world) == {1: 4}
        assert not row_markers("by_grade.1.1")
        assert differences(NEWER) == []


def test_another_versions_table_is_left_alone(world: World) -> None:
    """C1: while the next version of a view is being built, both apps save; each feeds its own."""
    rebuild_first(world)
    with world.context():
        SCHOOL.save(world.clients, pupil("ada", 1, 2), pupil("bob", 1, 3))
        world.settle()
        deploy(world, NEW_BUILDS)
        NEW_BUILDS.rebuild(world.clients, NewByGrade)
        SCHOOL.save(world.clients, pupil("ada", 2, 5))  # The older version, before the fill.
        NEWER.save(world.clients, pupil("bob", 2, 7))
    heal(world, NEW_BUILDS)

    with world.context():
        assert new_points(world) == {2: 24}
        assert differences(NEWER) == []


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


def test_code_with_another_version_does_not_fill_a_table(world: World) -> None:
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
    heal(world, NEW_BUILDS)
    with world.context():
        assert counts(world, NewByGrade, NEWER) == {1: 1, 2: 1}
        assert differences(NEWER) == []
