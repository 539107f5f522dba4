"""Dead tasks replayed in bulk: each once, whatever breaks, is doubled or dies on the way."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.continuations.progress import progress
from rollforward.datastore.batched import batched
from rollforward.operations import DeadTaskFilter, start_bulk
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import count_open
from rollforward.testing.injection import KINDS
from rollforward.testing.world import NotSettledError
from tests.infra.faults.explorer import Explorer
from tests.infra.runs import sampling
from tests.rollforward.console.conftest import Desk

MANY = 1_000


class BulkScenario:
    """Give some tasks up, ask for the replay of all of them, and see the work done."""

    COUNT = 3

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.ids: dict[str, list[str]] = {}

    def begin(self, tag: str) -> None:
        world = self.desk.world
        if tag not in self.ids:
            with world.plan.unwatched():
                self.ids[tag] = [
                    self.desk.keep(f"{tag}-{number}", error=f"Error{tag}")
                    for number in range(self.COUNT)
                ]
        world.clock.sleep(0.01)  # A bulk replay takes those that were dead before it.
        start_bulk(world.clients, "replay", DeadTaskFilter(error=f"Error{tag}"), run_id=f"r-{tag}")

    def is_done(self, tag: str) -> bool:
        return all(self.desk.done[f"{tag}-{number}"] for number in range(self.COUNT))

    def check(self, tag: str, fault: str) -> None:
        done = {number: self.desk.done[f"{tag}-{number}"] for number in range(self.COUNT)}
        assert done == dict.fromkeys(range(self.COUNT), 1), fault
        replays = [DeadTask.get_by_id(dead_id).replays for dead_id in self.ids[tag]]
        assert replays == [1] * self.COUNT, fault


@pytest.mark.parametrize("kind", KINDS)
def test_a_bulk_replay_works_with_a_fault_at_any_call(desk: Desk, kind: str) -> None:
    """Each task runs once, and each row is dealt with once."""
    Explorer(desk.world, BulkScenario(desk)).explore([kind])


@sampling.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_thousand_dead_tasks_are_replayed_once_each_under_drawn_faults(desk: Desk) -> None:
    """One in thirty remote calls fails, loses its reply, or is the last of its worker."""
    world, chance = desk.world, random.Random(sampling.SEED)
    ids = [desk.give_up(str(number), error="KeyError") for number in range(MANY)]
    world.clock.sleep(1)
    with world.context():
        start_bulk(world.clients, "replay", DeadTaskFilter(error="KeyError"), run_id="one")
    faults = {at: chance.choice(KINDS) for at in range(50_000) if chance.random() < 1 / 30}

    world.plan.reset(more=faults)
    with world.plan.watched(), contextlib.suppress(NotSettledError):
        world.settle(patience_s=60, revives=True, limit=10_000)
    fired = world.plan.fired.count(" at call ")
    world.heal(lambda: progress("one").totals.done == MANY and len(desk.done) == MANY)

    assert fired >= 20, world.plan.fired
    # A task whose worker died after its work may be delivered again, under its name.
    assert {tag: len(names) for tag, names in desk.names.items()} == {
        str(number): 1 for number in range(MANY)
    }
    with world.context():
        rows = [row for part in batched(ids, 500) for row in ndb.get_multi(_keys(part))]
        assert Counter(row.replays for row in rows) == Counter({1: MANY})
        assert count_open() == 0


def _keys(ids: Sequence[str]) -> list[Any]:
    return [ndb.Key(DeadTask, dead_id) for dead_id in ids]


@sampling.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_thousand_dead_tasks_are_replayed_once_each(desk: Desk) -> None:
    """In random order, every delivery twice over, with three runs of the same at the same time."""
    world: Any = desk.world
    for number in range(MANY):
        desk.give_up(str(number), error="KeyError")
    desk.give_up("other")
    world.clock.sleep(1)
    world.order, world.doubles = random.Random(7), True
    with world.context():
        for run_id in ("one", "two", "three"):
            start_bulk(world.clients, "replay", DeadTaskFilter(error="KeyError"), run_id=run_id)

    for _ in range(5):
        world.deliver_due(10_000)
        world.sweep()

    runs = {str(number): count for number, count in desk.done.items()}
    # Each was delivered twice over by the test itself.
    assert Counter(runs.values()) == Counter({2: MANY})
    with world.context():
        totals = [progress(run_id).totals for run_id in ("one", "two", "three")]
        assert sum(total.done for total in totals) == MANY
        assert count_open() == 1
