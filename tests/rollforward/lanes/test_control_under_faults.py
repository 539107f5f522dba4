"""Changes of an operator: each takes effect once, whatever breaks or dies on the way."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.operations import replay_dead_task
from rollforward.tasks.dead_task_entities import DeadTask, open_dead_tasks
from rollforward.testing.injection import KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.lanes.office import BLOCKING, DESK, LANES, send, write
from tests.rollforward.lanes.test_control import refuse


@pytest.fixture
def world(services: Services) -> World:
    """The app with the lanes of the tests; each play opens its own contexts."""
    DESK.__init__()  # type: ignore[misc]
    return World(services, lanes=LANES, tasks=[write])


class ReplayScenario:
    """Let a dead task block a key, and replay it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead: dict[str, str] = {}

    def begin(self, tag: str) -> None:
        if tag not in self.dead:
            with self.world.plan.unwatched():
                self.dead[tag] = self._block(tag)
        replay_dead_task(self.world.clients, self.dead[tag])

    def _block(self, tag: str) -> str:
        for kind in (LaneTask, LaneState, DeadTask):  # Of plays before.
            ndb.delete_multi(kind.query().fetch(keys_only=True))
        DESK.__init__()  # type: ignore[misc]
        DESK.before = refuse(f"{tag}:0")
        send(self.world.clients, BLOCKING, tag, 0, 1, 2)
        self.world.settle()
        DESK.before = lambda name: None
        [dead] = open_dead_tasks().fetch()
        return str(dead.key.id())

    def is_done(self, tag: str) -> bool:
        return not open_dead_tasks().fetch() and not LaneTask.query().fetch()

    def check(self, tag: str, fault: str) -> None:
        assert list(dict.fromkeys(DESK.of(tag))) == ["0", "1", "2"], fault
        assert LaneTask.query().fetch() == [], fault
        assert not BLOCKING(tag).state().rests, fault


class DrainScenario:
    """Pause a key, drain it and resume it; what is added afterwards runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        key = BLOCKING(tag)
        if tag not in self.begun:
            with self.world.plan.unwatched():
                key.pause(self.world.clients)
                send(self.world.clients, BLOCKING, tag, *range(3))
            self.begun.add(tag)
        drained = key.drain(self.world.clients)
        assert not drained.has_more
        key.resume(self.world.clients)

    def is_done(self, tag: str) -> bool:
        return not BLOCKING(tag).state().rests and not BLOCKING(tag).state().waiting

    def check(self, tag: str, fault: str) -> None:
        assert DESK.of(tag) == [], fault
        send(self.world.clients, BLOCKING, tag, "after")
        self.world.settle()
        assert DESK.of(tag) == ["after"], fault


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_unblocks_its_key_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """The task that blocked runs first, and no other one is lost."""
    Explorer(world, ReplayScenario(world)).explore([kind])


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_drained_key_goes_on_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """Nothing that was drained runs, and what comes later does."""
    Explorer(world, DrainScenario(world)).explore([kind])
