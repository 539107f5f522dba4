"""Views with a fault at every remote call, and deliveries in every disorder."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.fork_join.entities import WorkPack
from rollforward.materialized_views.rows import BadContributionError, RowEntry
from rollforward.materialized_views.updates import Update
from rollforward.materialized_views.updating import apply, fold
from rollforward.outbox.entities import OutboxTask
from rollforward.testing.injection import FLUSH, KINDS, OVERLAP
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import as_work_items, by_own_tasks
from tests.rollforward.materialized_views.student_views import (
    SCHOOL,
    ByGrade,
    Pupil,
    Tutor,
    differences,
    school_world,
    wipe,
)
from tests.rollforward.runtime.sharing.shared_bodies import together


class SaveScenario:
    """Two pupils come, one moves, one leaves and comes back; a tutor joins.

    Two more are saved by one transaction with a third, whom a view refuses.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        """Do it all again when it failed half way: every step is a save of what shall be."""
        if tag not in self.begun:
            self.begun.add(tag)
            self.world.flush()  # A play puts the clock back; notes of the last one are of now.
            with self.world.plan.unwatched():
                self.prepare()
        self.act()

    def prepare(self) -> None:
        wipe()

    def act(self) -> None:
        clients = self.world.clients
        SCHOOL.save(clients, pupil("ada", 1, 1.5), pupil("bob", 1, 2))
        SCHOOL.save(clients, Tutor(id="tutor", grade=2))
        self.save_together(pupil("cid", 2, 1), pupil("bad", 2, 1, "x" * 1_001), pupil("dan", 2, 2))
        SCHOOL.save(clients, pupil("ada", 2, 3.25))
        SCHOOL.delete(clients, ndb.Key(Pupil, "bob"))
        SCHOOL.save(clients, pupil("bob", 2, 4))
        transact(lambda: self.twice(pupil("ada", 1, 3.5), pupil("ada", 2, 3.5)))

    def save_together(self, *pupils: Pupil) -> None:
        """Save pupils as callers that share a transaction."""
        save = SCHOOL._internals.contributor.shared_body
        bodies = [save(self.world.clients, [(source.key, source)], []) for source in pupils]
        cid, bad, dan = together(self.world.clients, bodies)
        for answer in (cid, dan):
            if answer is not None:
                raise answer
        assert isinstance(bad, BadContributionError)

    def twice(self, *changes: Pupil) -> None:
        """Save a source more than once in one transaction."""
        for change in changes:
            SCHOOL.save_in_transaction(self.world.clients, change)

    def is_done(self, tag: str) -> bool:
        return not any(kind.query().fetch(1, keys_only=True) for kind in (OutboxTask, WorkPack))

    def check(self, tag: str, fault: str) -> None:
        assert differences() == [], fault
        rows = SCHOOL.read(self.world.clients, ByGrade).rows
        assert {row.name: row.count for row in rows} == {2: 4}, fault
        assert Pupil.get_by_id("bad") is None, fault


def pupil(name: str, grade: int, points: float, house: str = "x") -> Pupil:
    return Pupil(id=name, grade=grade, points=points, house=house)


@pytest.fixture(params=[False, True], ids=["folds", "work items"])
def scenario(
    request: pytest.FixtureRequest, services: Services, monkeypatch: pytest.MonkeyPatch
) -> SaveScenario:
    """The same, whichever way updates travel; as work items an earlier version sends them."""
    if request.param:
        as_work_items(monkeypatch, SCHOOL.views.values())
    return SaveScenario(school_world(services))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_views_are_right_with_a_fault_at_any_call(scenario: SaveScenario, kind: str) -> None:
    """C1, C2, C4: a fault or a flushed cache at each call of the saves and of their updates."""
    Explorer(scenario.world, scenario).explore([kind])


def test_views_are_right_when_deliveries_overlap_at_any_call(scenario: SaveScenario) -> None:
    """C1, C2: a second delivery of a task runs from start to end inside the first."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP])


def test_views_are_right_with_every_delivery_doubled(scenario: SaveScenario) -> None:
    """C3: every task delivered twice, one after the other."""
    scenario.world.doubles = True
    Explorer(scenario.world, scenario).play()


@pytest.mark.parametrize("seed", range(5))
def test_views_are_right_in_any_order(scenario: SaveScenario, seed: int) -> None:
    """C3: every task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario).play()


def test_views_are_right_with_all_deliveries_side_by_side(scenario: SaveScenario) -> None:
    """C1, C2: all tasks that are due run at once, each of them twice, on threads."""
    scenario.world.overlaps = True
    for _ in range(2):
        Explorer(scenario.world, scenario).play()


def believe_the_task(update: Update, marker: object, row: object) -> RowEntry | None:
    if update.measures is None:
        return None
    return RowEntry(update.source, update.sequence, update.measures)


@pytest.mark.parametrize(
    ("module", "planted", "instead"),
    [
        (fold, "_from_source_marker", believe_the_task),
        (fold, "_is_older", lambda marker, update: True),
        (apply, "put_row", lambda view, row, changed: row.put()),
    ],
    ids=["no look at the source's marker", "no sequences", "no markers"],
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    planted: str,
    instead: Any,
) -> None:
    """With one of its proofs taken out, doubled and shuffled deliveries leave a wrong row."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    monkeypatch.setattr(module, planted, instead)
    by_own_tasks(monkeypatch)  # A fold takes updates in order, whichever order tasks come in.
    world = school_world(services)
    world.doubles = True

    with pytest.raises(AssertionError):
        play_in_some_orders(world)


def play_in_some_orders(world: World) -> None:
    """Play orders until one shows it: few do."""
    for seed in range(40):
        world.order = random.Random(seed)
        Explorer(world, SaveScenario(world)).play()
