"""Schedules that the code does not know for hours, or whose arguments it cannot read."""

from __future__ import annotations

import datetime

import pytest

from rollforward.lanes import Lane
from rollforward.runtime import naive_utc
from rollforward.schedules import Schedule, UserSchedules
from rollforward.schedules import sweep as sweeps
from rollforward.schedules.cron import Missed
from rollforward.schedules.entities import ScheduleRow, row_key
from rollforward.schedules.listing import schedule_state
from tests.infra.world import Services, World
from tests.rollforward.schedules.test_schedules import (
    SWEEP,
    USERS,
    greet_user,
    report,
    times_here,
    world_of,
)
from tests.rollforward.tasks.reminders import one_emulator

EVERY_TEN = "*/10 * * * *"
# Of users, whether nobody can read their arguments.
USERS_OF = {"odd": True, "plain": False}


@one_emulator
@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 22), ("skip", 0)])
def test_ticks_that_came_while_no_version_knew_the_schedule_are_made_up_for(
    services: Services, missed: Missed, count: int
) -> None:
    """T2: a rollback of some hours is a downtime; sweeps that look at the row change nothing."""
    part = Schedule("report", report.task, missed, EVERY_TEN, "Europe/Berlin")
    world = world_of(services, part)
    world.sweep(SWEEP)
    with world.context():
        first = row_key("report", "").get().next_at
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        for minutes in (10, 65, 65, 86):
            world.clock.sleep(60 * minutes)
            sweeps.sweep(world.clients, {})
        world.clock.sleep(120)
    world.sweep(SWEEP)
    world.deliver_due()
    with world.context():
        ran = times_here()
        assert len(ran) == count
        assert {at.minute % 10 for at in ran} <= {0}
        assert {(at.second, at.microsecond) for at in ran} <= {(0, 0)}
        assert missed != "all" or ran[0] == first


@one_emulator
def test_rows_whose_arguments_nobody_can_read_starve_no_other(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T1: they are looked at once an hour, and the ticks of others are made up for.

    One such row fails no sweep: it would hide all other failures. The log names it.
    """
    monkeypatch.setattr(sweeps, "MAX_PER_SWEEP", 1)
    world = world_of(services, USERS)
    with world.context():
        for user in USERS_OF:
            USERS.put(world.clients, user, EVERY_TEN, greet_user.bind(user))
            world.clock.sleep(1)
        odd: ScheduleRow = row_key("users", "odd").get()
        odd.body = '{"bird": 1}'
        odd.next_at -= datetime.timedelta(seconds=1)
        odd.put()
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        world.clock.sleep(2 * 3600)
        sweeps.sweep(world.clients, {"users": USERS})
        sweeps.sweep(world.clients, {"users": USERS})
        assert row_key("users", "plain").get().next_at > naive_utc(world.clock.now())
        states = {user: schedule_state(world.clients, USERS, user, runs=1) for user in USERS_OF}
    assert {user: bool(state and state.problem) for user, state in states.items()} == USERS_OF
    assert "users|odd cannot run: put it again, or delete it" in caplog.text
    assert "user: Field required" in caplog.text


@one_emulator
def test_rows_whose_lane_cannot_be_found_starve_no_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: an error of the app's function leaves a row as one that nobody can read."""
    monkeypatch.setattr(sweeps, "MAX_PER_SWEEP", 1)
    lane, regions = Lane("test-regions"), {"odd": "north", "plain": "south"}
    users = UserSchedules("users", greet_user, lane=lambda user: lane(regions[user]))
    world = World(services, schedules=[users], lanes=[lane])
    with world.context():
        for user in regions:
            users.put(world.clients, user, EVERY_TEN, greet_user.bind(user))
        odd: ScheduleRow = row_key("users", "odd").get()
        odd.next_at -= datetime.timedelta(seconds=1)
        odd.put()
        del regions["odd"]
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        world.clock.sleep(2 * 3600)
        with pytest.raises(KeyError):
            sweeps.sweep(world.clients, {"users": users})
        sweeps.sweep(world.clients, {"users": users})
        assert row_key("users", "plain").get().next_at > naive_utc(world.clock.now())
        assert row_key("users", "odd").get().first_missed == odd.next_at


@one_emulator
def test_a_schedule_that_was_removed_is_not_said_to_be_late_for_ever(services: Services) -> None:
    """T2: its row waits for a version that knows it, and hides no other that is late."""
    part = Schedule("report", report.task, "once", EVERY_TEN, "Europe/Berlin")
    world = world_of(services, part, USERS)
    world.sweep(SWEEP)
    with world.context():
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        world.clock.sleep(3 * 3600)
        sweeps.sweep(world.clients, {})
        world.clock.sleep(1800)
        late = [sweeps.late_s(world.clients, known) for known in ({}, {"report": part})]
        USERS.put(world.clients, "ada", EVERY_TEN, greet_user.bind("ada"))
        world.clock.sleep(900)
        late.append(sweeps.late_s(world.clients, {"users": USERS}))

    assert late[:2] == [0, 1800]
    assert 300 <= late[2] < 900
