"""Two versions of the app side by side: the views that each has, and who answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from google.cloud import ndb

from rollforward.materialized_views import Contributions, Row, View, ViewGroup, ViewMaintenance
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import deploy, heal
from tests.rollforward.materialized_views.student_views import Pupil, Tutor, pupil


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
    """The next version: joined with tutors, and ranked."""

    name = "by_grade"
    version = 2
    ranked = ("points",)
    joins: ClassVar[Mapping[Any, Any]] = {Tutor: from_tutor}


class SameByGrade(NewByGrade):
    """The same, by somebody who forgot to add 1 to the version."""

    name = "by_grade"
    version = 1


class NewSizes(OldSizes):
    """The next version of the view above."""

    name = "sizes"
    version = 2


class ByName(View):
    """Pupils, each in a row of its own."""

    source = Pupil
    row_rate = None

    @staticmethod
    def contributions(pupil: Pupil) -> Contributions:
        return {pupil.key.id(): {}}


def group(*views: type[View]) -> ViewMaintenance:
    return ViewMaintenance(ViewGroup("beside", *views, queue="default"), queue="default")


OLD = group(OldByGrade)


def old_world(services: Services) -> World:
    """A world of the old version: two pupils in its view, and tutors who are in none."""
    world = World(services, builds=[OLD])
    with world.context():
        OLD.rebuild(world.clients, OldByGrade)
    heal(world, OLD)
    with world.context():
        OLD.views.save(world.clients, pupil("ada", 1, 9), pupil("bob", 1, 1))
        ndb.put_multi([Tutor(id=f"t{n}", grade=1) for n in range(5)])
    world.settle()
    return world


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


def is_update(attempt: Any) -> bool:
    return any(word in attempt.body for word in (b'"unacked"', b'"tick_ms"'))
