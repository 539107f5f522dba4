"""A school in tests: how something is done to it, and what its views and its students say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from models.grades import Student
from pipelines.grades import verification
from pipelines.grades.students import DEMO
from pipelines.grades.views import GRADES, ClassSizes, grade_of, view_of
from tests.infra.world import World

ADA, BOB = "a" * 32, "b" * 32


LIST = "1" * 32


def bars(world: World, school: str = DEMO) -> dict[int, tuple[int, float]]:
    """Return each grade's students and points, as a reader sees them."""
    with world.context():
        rows = GRADES.read(world.clients, view_of(school), prefix=(school,)).rows
        return {grade_of(row): (row.count, row.sum("points")) for row in rows}


def truth(world: World, school: str = DEMO) -> dict[int, tuple[int, float]]:
    """Return the same, counted from the students themselves."""
    counts: Counter[int] = Counter()
    points: Counter[int] = Counter()
    with world.context():
        for student in Student.query().fetch():
            if student.school == school:
                counts[student.grade] += 1
                points[student.grade] += student.points
    return {grade: (counts[grade], points[grade]) for grade in counts}


def joined(world: World) -> dict[int, tuple[float, int]]:
    """Return each grade's students and teachers."""
    with world.context():
        rows = GRADES.read(world.clients, ClassSizes, prefix=(DEMO,)).rows
        return {grade_of(row): (row.sum("students"), row.counts.get("Teacher", 0)) for row in rows}


def settled(world: World, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call something of the demo, and run everything that follows from it."""
    with world.context():
        result = act(world.clients, *args, **kwargs)
    world.settle()
    return result


def drift(world: World) -> list[str]:
    """Verify both views; return what differs."""
    with world.context():
        assert verification.verification(world.clients, DEMO) is None
        verification.verify(world.clients, DEMO, "v1")
        verification.verify(world.clients, DEMO, "v2")  # Does nothing: one is going on.
        running = verification.verification(world.clients, DEMO)
    world.settle()
    with world.context():
        found = verification.verification(world.clients, DEMO)
    assert running is not None
    assert found is not None
    assert (running.state, found.state) == ("running", "finished")
    assert found.checked == found.expected > 0
    return [f"{each.where}: {each.message}" for each in found.differences]
