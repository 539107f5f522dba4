"""Lanes: the limit of a key under threads, and settings that change while tasks wait."""

from __future__ import annotations

import threading
import time

import pytest

from rollforward.lanes import Lane, Rate
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.runs import claims, lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.lanes.sweep import wake_stale
from rollforward.tasks.errors import Retry
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, LANES, PACED, SHARED, TWO, send, write


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
    Lane("test-two", weight=10),
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


def take(world: World, lane: Lane) -> claims.Holder:
    """Claim tasks of Ada here and now."""
    lane_id = f"{lane.name}|ada"
    claimed = claims.take(world.clients, lane, lane_id, watches=False)
    assert isinstance(claimed, claims.Claimed)
    return claims.Holder(world.clients, lane, lane_id, claimed.claim, claimed.asked_s)


def send_together(world: World, lane: Lane, *texts: int) -> None:
    """Let letters to Ada wait, in this order also without one, and no hint."""
    many = [write.bind("ada", str(text)) for text in texts]
    write.enqueue_many(world.clients, many, lane=lane("ada"))
    world.engine.purge_queue(world.engine.place.queue_name("default"))


@pytest.mark.parametrize("order", [False, True])
def test_a_lower_limit_counts_the_claims_of_the_higher_one(world: World, *, order: bool) -> None:
    """K8, K11: it begins nothing until they are given back; with an order, the first one first."""
    send_together(world, TWO, 0, 1, 2)
    holders = [take(world, TWO), take(world, TWO)]
    lower = Lane("test-two", order=order)
    for holder in holders:
        deliver(lower, world.clients, LaneArgs("test-two|ada"))
        assert DESK.begun == []
        holder.release(set(), None, begun=0, pace_ms=1)
    deliver(lower, world.clients, LaneArgs("test-two|ada"))
    assert DESK.of("ada") == ["0", "1", "2"]


def test_a_higher_limit_counts_at_once(world: World) -> None:
    """K8, K11: beside the claim of the lower one."""
    send_together(world, SHARED, 0, 1)
    lane_id = "test-shared|ada"
    LaneState(key=state_key(lane_id), stamp="s", pace_ms=500).put()  # A turn has one of them.
    take(world, SHARED)
    deliver(SHARED, world.clients, LaneArgs(lane_id))
    assert DESK.begun == []
    deliver(Lane("test-shared", limit=2), world.clients, LaneArgs(lane_id))
    assert DESK.begun == ["ada:1"]


def test_an_order_that_is_taken_away_holds_nobody_up_and_leaves_no_row(world: World) -> None:
    """K10, K11: the first one waits for its retry, and the others for it no more."""
    waits = iter([30, 40])

    def wait_twice(name: str) -> None:
        if name == "ada:0" and (seconds := next(waits, None)) is not None:
            raise Retry("later", after_s=seconds)

    DESK.before = wait_twice
    send_together(world, IN_ORDER, 0, 1, 2)
    without = Lane("test-in-order")
    deliver(IN_ORDER, world.clients, LaneArgs("test-in-order|ada"))
    assert DESK.of("ada") == []
    deliver(without, world.clients, LaneArgs("test-in-order|ada"))
    assert DESK.of("ada") == ["1", "2"]
    for _ in range(2):
        world.clock.sleep(41)
        deliver(without, world.clients, LaneArgs("test-in-order|ada"))
    assert DESK.of("ada") == ["1", "2", "0"]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_a_slower_rate_counts_for_tasks_that_wait(world: World) -> None:
    """K6, K11: after the next one, which the rate before lets begin in half a second."""
    slower = Lane("test-paced", rate=Rate(1, per_s=60))
    send_together(world, PACED, 0, 1, 2, 3)
    deliver(PACED, world.clients, LaneArgs("test-paced|ada"))
    counts = []
    for seconds in (0, 1, 30, 31):
        world.clock.sleep(seconds)
        deliver(slower, world.clients, LaneArgs("test-paced|ada"))
        counts.append(len(DESK.begun))
    assert counts == [1, 2, 2, 3]


def test_a_rate_that_is_taken_away_holds_nobody_up(world: World) -> None:
    """K11: whatever its key had to wait for."""
    send_together(world, PACED, 0, 1, 2, 3)
    for lane in (PACED, Lane("test-paced")):
        deliver(lane, world.clients, LaneArgs("test-paced|ada"))
    assert len(DESK.begun) == 4


def test_a_lane_that_is_taken_away_keeps_its_tasks_until_it_is_back(world: World) -> None:
    """K1, K11: no version that does not know it touches them."""
    send_together(world, SHARED, 0, 1)
    world.clock.sleep(61)
    others = [lane for lane in LANES if lane is not SHARED]
    assert wake_stale(world.clients, others) == 0
    assert len(LaneTask.query().fetch()) == 2
    assert wake_stale(world.clients, LANES) == 1
    world.settle()
    assert sorted(DESK.of("ada")) == ["0", "1"]
