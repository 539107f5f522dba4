"""Rebuilds with a fault at every remote call, and what the product itself says of the end."""

from __future__ import annotations

import random

import pytest

from rollforward.continuations.entities import FINISHED
from rollforward.materialized_views import ConsistencyToken
from rollforward.materialized_views.maintenance import catch_up
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import IS_EXHAUSTIVE, Explorer
from tests.infra.runs import sampling
from tests.infra.world import Services
from tests.rollforward.materialized_views.harness import ThreadedWorld, as_work_items
from tests.rollforward.materialized_views.student_views import (
    BUILDS,
    SCHOOL,
    ByGrade,
    ByHouse,
    GradesBySize,
    differences,
    school_world,
    wipe,
)
from tests.rollforward.materialized_views.test_materialized_views_under_faults import (
    SaveScenario,
    pupil,
)


class BuildScenario(SaveScenario):
    """A view is rebuilt while a pupil moves and another one comes."""

    def prepare(self) -> None:
        wipe()
        SCHOOL.save(self.world.clients, pupil("ada", 1, 1), pupil("bob", 1, 2))

    def act(self) -> None:
        clients = self.world.clients
        BUILDS.rebuild(clients, ByGrade)
        SCHOOL.save(clients, pupil("ada", 2, 3), pupil("eve", 3, 1))

    def is_done(self, tag: str) -> bool:
        catalog = SCHOOL.catalog()
        views = (ByGrade, GradesBySize)
        busy = [catalog.building(view) or catalog.dropping(view.name) for view in views]
        built = [catalog.live(view) for view in views]
        is_built = "by_grade.1.1" not in built and "grades_by_size.1.1" not in built
        return is_built and not any(busy) and super().is_done(tag)

    def check(self, tag: str, fault: str) -> None:
        assert differences() == [], fault
        rows = SCHOOL.read(self.world.clients, ByGrade).rows
        assert {row.name: row.count for row in rows} == {1: 1, 2: 1, 3: 1}, fault


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_ends_with_a_fault_at_any_call(
    services: Services, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: rebuilt while a source moves, with a fault at each call; then the table is read.

    The catch-up draws from its page first, as it does from large ones.
    """
    monkeypatch.setattr(catch_up, "DRAWN", 1)
    monkeypatch.setattr(catch_up, "MANY", 1)
    world = school_world(services)
    at_most = 2 if services.datastore_kind == "datastore" else 1  # Of some 800 calls.
    Explorer(world, BuildScenario(world)).explore([kind], at_most)


def test_a_verification_ends_with_nothing_found_after_all_that(services: Services) -> None:
    """C1, C5: doubled, shuffled, and verified by the product itself."""
    world = school_world(services)
    world.doubles, world.order = True, random.Random(7)
    with world.context():
        SaveScenario(world).act()
        BUILDS.rebuild(world.clients, ByGrade)
        SaveScenario(world).act()
    world.heal(lambda: not SCHOOL.catalog().building(ByGrade))
    with world.context():
        for view in (ByGrade, ByHouse, GradesBySize):
            BUILDS.verify(world.clients, view, "v")
    world.settle()

    with world.context():
        for view in (ByGrade, ByHouse, GradesBySize):
            found = BUILDS.verification(world.clients, view, "v")
            assert (found.state, found.differences) == (FINISHED, [])
            assert found.checked == found.expected > 0


@sampling.long
@pytest.mark.parametrize("is_of_old", [False, True], ids=["folds", "work items"])
def test_a_token_that_was_met_stays_met_while_its_table_is_replaced(
    services: Services, monkeypatch: pytest.MonkeyPatch, is_of_old: bool
) -> None:
    """C1, C5: rows that are read hold all that any reader has seen before, in any order."""
    if is_of_old:
        as_work_items(monkeypatch, SCHOOL.views.values())
    world, chance = ThreadedWorld(services, builds=[BUILDS]), random.Random(7)
    world.order = chance
    waiting: list[ConsistencyToken] = []
    met = ConsistencyToken()
    steps = 220 if IS_EXHAUSTIVE else 130
    seen = saved = swaps = 0
    with world.context():
        live = SCHOOL.catalog().live(ByHouse)
        for step in range(steps):
            if step % 100 == 10:
                BUILDS.rebuild(world.clients, ByHouse)
            if step % 8 == 0:
                waiting.append(SCHOOL.save(world.clients, pupil(f"p{saved}", 1, 1)))
                saved += 1
            if due := world.engine.due():
                world.deliver(chance.choice(due).task_name)
            elif (wake_at := world.engine.wake_at()) is not None:
                world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.001)
            if waiting and SCHOOL.wait(world.clients, waiting[0], 0):
                met, seen = ConsistencyToken.of_all([met, waiting.pop(0)]), seen + 1
            swaps += live != (live := SCHOOL.catalog().live(ByHouse))

            reading = SCHOOL.read(world.clients, ByHouse, at_least=met, timeout_s=0)

            assert reading.is_satisfied, step
            assert sum(row.count for row in reading.rows) >= seen, step
    assert swaps >= steps // 110
    assert seen > steps // 22
