"""The views of a school: what a chart costs, and a rebuild beside it."""

from __future__ import annotations

from pipelines.grades import imports, students
from pipelines.grades.students import DEMO
from pipelines.grades.views import BUILDS, GRADES, StudentsByGrade
from tests.infra.world import World
from tests.pipelines.grades.schools import LIST, bars, drift, joined, settled


def test_a_rebuilt_view_is_the_same(world: World) -> None:
    """Built beside the one that is read; both views agree with their sources afterwards."""
    settled(world, imports.add_many, DEMO, LIST, 60)
    settled(world, students.add_teacher, DEMO, "c" * 32, 7)
    before, classes = bars(world), joined(world)

    settled(world, BUILDS.rebuild, StudentsByGrade)
    for _ in range(4):
        world.sweep()
        world.settle()

    assert (bars(world), joined(world)) == (before, classes)
    with world.context():
        assert BUILDS.rebuilding(world.clients, StudentsByGrade) is None
        assert GRADES.catalog().live(StudentsByGrade) == "students_by_grade.1.2"
    assert drift(world) == []


def test_what_waits_adds_nothing_to_the_reads_of_a_chart(world: World) -> None:
    """A read a bar and two for the catalog, while changes wait as when none does."""
    settled(world, imports.add_many, DEMO, LIST, 50)
    with world.context():
        imports.add_many(world.clients, DEMO, "2" * 32, 50)
    world.deliver(world.engine.due()[0].task_name)

    with world.context():
        before = world.clients.meter.cost()
        reading = GRADES.read(world.clients, StudentsByGrade, prefix=(DEMO,))
        cost = world.clients.meter.cost() - before

    assert reading.freshness.waiting > 0
    assert (cost.reads, cost.writes) == (len(reading.rows) + 2, 0)
