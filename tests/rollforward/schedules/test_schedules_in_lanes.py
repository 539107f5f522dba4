"""Schedules whose work waits in a lane: each tick once, in the lane's order, and seen there."""

from __future__ import annotations

import datetime

import pytest

from rollforward.datastore.partitions import PARTITIONS
from rollforward.lanes import BadLaneError, Lane
from rollforward.lanes.rows.entities import LaneTask
from rollforward.operations.replays import replay_dead_task
from rollforward.schedules import UserSchedules, schedule
from rollforward.schedules.entities import ScheduleRow
from rollforward.schedules.listing import schedule_state
from rollforward.tasks import Reject
from rollforward.tasks.errors import UnknownTaskError
from rollforward.tasks.stored.entities import CancellableTask
from rollforward.tasks.stored.sweep import EXPIRED
from rollforward.testing.injection import FLUSH, KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.schedules import test_schedules
from tests.rollforward.schedules.test_schedules import (
    DAY_S,
    SWEEP,
    TickRun,
    TickScenario,
    greet_user,
    note,
    pass_time,
    times_here,
)
from tests.rollforward.tasks.reminders import one_emulator

NIGHTLY = Lane("test-nightly", order=True)
BY_USER = Lane("test-by-user", order=True)
BROKEN = {"is": False}


@schedule("*/10 * * * *", missed="all", lane=NIGHTLY("all"))
def tidy(at: datetime.datetime) -> None:
    """Note that it ran, or can never run."""
    if BROKEN["is"]:
        raise Reject("nothing is there")
    note("tidy", at)


USERS = UserSchedules("users", greet_user, lane=BY_USER)


def world_of(services: Services) -> World:
    BROKEN["is"] = False
    # The lane of a schedule in the code comes with it.
    world = World(services, schedules=[tidy, USERS], lanes=[BY_USER])
    world.clock.sleep(600 - world.clock.now().timestamp() % 600 + 30)
    return world


def test_each_tick_waits_in_the_lane_and_runs_once(services: Services) -> None:
    """T4: in their order, one after the other, also those that a pause has held up."""
    world = world_of(services)
    with world.context():
        pass_time(world, 600)
        NIGHTLY("all").pause(world.clients)
        pass_time(world, 1_800)
        assert (len(times_here()), len(LaneTask.query().fetch())) == (1, 3)
        state = schedule_state(world.clients, tidy, "", runs=10)
        assert state is not None
        assert state.lane == "test-nightly|all"
        assert [run.state for run in state.runs] == ["waiting"] * 3 + ["done"]

        NIGHTLY("all").resume(world.clients)
        pass_time(world, 60)
        ran = [row.at for row in TickRun.query().fetch()]
        assert (len(set(ran)), ran) == (4, sorted(ran))
        assert LaneTask.query().fetch() == []


@one_emulator
def test_a_schedule_in_a_lane_that_the_app_does_not_declare_is_refused(services: Services) -> None:
    """When it is put, and not at its first tick."""
    world = World(services, schedules=[USERS], lanes=[NIGHTLY])
    with world.context():
        with pytest.raises(UnknownTaskError, match=r"add the lane to rf\.serve"):
            USERS.put(world.clients, "ada", "0 8 * * *", greet_user.bind("ada"))
        assert ScheduleRow.query().fetch() == []


@one_emulator
def test_a_tick_whose_work_is_dead_is_seen_and_replayed(services: Services) -> None:
    """T4: it goes back into its lane."""
    world = world_of(services)
    with world.context():
        BROKEN["is"] = True
        pass_time(world, 600)
        state = schedule_state(world.clients, tidy, "", runs=1)
        assert state is not None
        [run] = state.runs
        assert (run.state, run.error) == ("dead", "Reject")

        BROKEN["is"] = False
        replay_dead_task(world.clients, run.dead_id)
        world.settle(patience_s=1)
        assert len(times_here()) == 1


@one_emulator
def test_ticks_that_wait_for_months_are_seen_to_wait(services: Services) -> None:
    """T4: their key is paused, and nothing of them expires."""
    world = World(services, schedules=[USERS], lanes=[BY_USER])
    with world.context():
        BY_USER("u1").pause(world.clients)
        USERS.put(world.clients, "u1", "0 0 1 * *", greet_user.bind("u1"))
        for _ in range(3):
            world.clock.sleep(31 * DAY_S)
            for partition in PARTITIONS:
                EXPIRED.delete_page(world.clients, partition)
            world.sweep(SWEEP)
            world.settle(patience_s=1)
        state = schedule_state(world.clients, USERS, "u1", runs=10)
        assert state is not None
        assert [run.state for run in state.runs] == ["waiting"] * 3

        BY_USER("u1").resume(world.clients)
        world.settle(patience_s=1)
        assert [row.tag for row in TickRun.query().fetch()] == ["u1"] * 3
        assert CancellableTask.query().fetch() == LaneTask.query().fetch() == []


@one_emulator
def test_users_have_their_work_in_their_own_keys(services: Services) -> None:
    """T4: an id that can be no key is refused, and nothing is written."""
    world = world_of(services)
    with world.context():
        BY_USER("u1").pause(world.clients)
        for user in ("u1", "u2"):
            USERS.put(world.clients, user, "*/10 * * * *", greet_user.bind(user))
        pass_time(world, 600)
        users = [row.tag for row in TickRun.query().fetch() if row.tag != "tidy"]
        assert users == ["u2"]
        assert BY_USER("u1").state().waiting == 1
        with pytest.raises(BadLaneError):
            USERS.put(world.clients, "x" * 300, "*/10 * * * *", greet_user.bind("x"))
        rows = [row.key.id() for row in ScheduleRow.query().fetch()]
        assert sorted(rows) == ["tidy|", "users|u1", "users|u2"]


@one_emulator
def test_a_row_that_can_be_in_no_lane_holds_up_no_other(services: Services) -> None:
    """T1: its id was put before there was a lane, and the queue has lost all ticks."""
    before = UserSchedules("users", greet_user)
    world = world_of(services)
    with world.context():
        before.put(world.clients, "x" * 300, "*/9 * * * *", greet_user.bind("x"))
        before.put(world.clients, "u1", "*/10 * * * *", greet_user.bind("u1"))
        world.sweep(SWEEP)
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        world.clock.sleep(1_200)
        assert world.call_cron(SWEEP) == 500  # An operator has to know.
        world.settle(patience_s=1)
        assert {row.tag for row in TickRun.query().fetch()} == {"u1", "tidy"}


class LaneScenario(TickScenario):
    """A user's tick, whose work waits in the user's key."""

    def is_done(self, tag: str) -> bool:
        return super().is_done(tag) and not LaneTask.query().fetch(1)


@one_emulator
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_a_tick_is_added_to_its_lane_once_with_a_fault_at_any_call(
    services: Services, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """T4: by one commit with the row's move."""
    monkeypatch.setattr(test_schedules, "USERS", USERS)
    scenario = LaneScenario(World(services, schedules=[USERS], lanes=[BY_USER]))
    assert Explorer(scenario.world, scenario, dict.fromkeys((*KINDS, FLUSH), 2)).explore([kind])
