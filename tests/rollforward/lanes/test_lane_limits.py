"""Lanes: the limit of a key under threads, and settings that change while tasks wait."""

from __future__ import annotations

import threading
import time

import pytest

from rollforward.lanes import Lane, Rate
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneTask
from rollforward.lanes.runs import lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.tasks.errors import Retry
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, SHARED, TWO, send


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED, TWO], ids=lambda lane: lane.name)
def test_no_more_tasks_of_a_key_run_at_a_time_than_its_limit(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K8: all hints are delivered twice, at the same moment, by threads."""
    monkeypatch.setattr(lookups, "SLICE_S", 0.02)
    lock = threading.Lock()
    at_work: set[str] = set()
    most = [0]

    def work(name: str) -> None:
        with lock:
            at_work.add(name)
            most[0] = max(most[0], len(at_work))
        time.sleep(0.01)
        with lock:
            at_work.discard(name)

    DESK.before = work
    world.overlaps = True
    send(world.clients, lane, "ada", *range(6))
    world.settle()
    assert sorted(map(int, DESK.of("ada"))) == list(range(6))
    assert most[0] <= lane.limit
    if lane.order:
        assert DESK.of("ada") == [str(number) for number in range(6)]


CHANGED = [
    Lane("test-two"),
    Lane("test-two", limit=5),
    Lane("test-two", order=True),
    Lane("test-two", order=True, on_dead="block"),
    Lane("test-two", rate=Rate(100)),
]


@pytest.mark.parametrize("number", range(len(CHANGED)))
def test_settings_change_while_tasks_wait(world: World, number: int) -> None:
    """K11: versions with different settings of a lane take turns at the tasks of a key."""
    failed: set[str] = set()

    def fail_once(name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise Retry("later", after_s=1)

    DESK.before = fail_once
    send(world.clients, TWO, "ada", *range(4))
    for _ in range(3):
        deliver(CHANGED[number], world.clients, LaneArgs("test-two|ada"))
        world.clock.sleep(1)
        for due in world.engine.due()[:1]:
            world.deliver(due.task_name)
    world.settle()
    assert sorted(DESK.of("ada")) == [str(number) for number in range(4)]
    assert LaneTask.query().fetch() == []
