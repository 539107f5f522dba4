"""Declarations and limits of schedules: each at its last good value, and one beyond."""

from __future__ import annotations

import datetime

import pytest

from rollforward.runtime import Clients
from rollforward.schedules import BadScheduleError, schedule
from rollforward.schedules import sweep as sweeps
from rollforward.schedules.entities import ScheduleRow
from rollforward.schedules.listing import schedule_state, user_schedules
from rollforward.schedules.pattern import Schedules
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
RAN: list[str] = []


@schedule(EVERY_TEN)
def _tidy_the_yard() -> None:
    """Note that it ran, without a time."""
    RAN.append("yard")


@schedule(EVERY_TEN, queue="outbox")
def tidy_the_house(clients: Clients) -> None:
    """Note that it ran, with the clients alone."""
    RAN.append("house")


def test_a_function_declares_a_schedule_by_its_name() -> None:
    """By the wall clock of UTC, once after a downtime and in the default queue, unless it says."""
    yard, house = _tidy_the_yard, tidy_the_house

    assert (yard.name, yard.task.path) == ("tidy-the-yard", "/tasks/schedules/tidy-the-yard")
    assert (yard.tz, yard.missed, yard.lane, yard.task.queue) == ("UTC", "once", None, "default")
    assert (house.name, house.task.queue) == ("tidy-the-house", "outbox")


@one_emulator
def test_a_function_may_take_no_time(services: Services) -> None:
    """T1: nor anything else; each tick runs it."""
    RAN.clear()
    world = world_of(services, _tidy_the_yard, tidy_the_house)
    world.sweep(SWEEP)
    world.clock.sleep(600)
    world.deliver_due()

    assert sorted(RAN) == ["house", "yard"]


@one_emulator
def test_an_id_has_up_to_five_hundred_bytes(services: Services) -> None:
    """T3: it is stored and found; one byte more is refused, and never looked for."""
    world = world_of(services, USERS)
    longest, work = "é" * 250, greet_user.bind("u")
    with world.context():
        USERS.put(world.clients, longest, EVERY_TEN, work)
        with pytest.raises(BadScheduleError, match="an id must have 1 to 500 bytes"):
            USERS.put(world.clients, f"{longest}e", EVERY_TEN, work)
        for change in (USERS.remove, lambda id_: USERS.put(world.clients, id_, EVERY_TEN, work)):
            with pytest.raises(BadScheduleError, match="unpaired surrogate"):
                change("\ud800")
        [stored] = user_schedules(world.clients, USERS, limit=5).schedules
        one = schedule_state(world.clients, USERS, longest, runs=5)
        others = [schedule_state(world.clients, USERS, id_, runs=5) for id_ in ("", "e", "\ud800")]
        others.append(schedule_state(world.clients, USERS, f"{longest}e", runs=5))

    assert one == stored
    assert (stored.id, stored.cron, stored.tz) == (longest, EVERY_TEN, "UTC")
    assert others == [None] * 4


@one_emulator
def test_a_schedule_of_the_code_is_seen_before_its_first_sweep(services: Services) -> None:
    """T1: as it is declared, and without a tick; it has no users."""
    world = world_of(services, report)
    with world.context():
        before = schedule_state(world.clients, report, "", runs=5)
        of_a_user = schedule_state(world.clients, report, "ada", runs=5)
        world.sweep(SWEEP)
        after = schedule_state(world.clients, report, "", runs=5)

    assert before is not None
    assert after is not None
    assert (before.cron, before.tz, before.missed) == (EVERY_TEN, "Europe/Berlin", "once")
    assert (before.next, before.last, before.runs, of_a_user) == (None, None, (), None)
    assert (after.cron, after.tz, after.last, after.runs) == (report.cron, report.tz, None, ())
    assert after.next is not None


@one_emulator
def test_a_sweep_moves_what_has_been_due_for_a_minute(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: not before; so many rows, the first to be due first, and the next one more."""
    monkeypatch.setattr(sweeps, "MAX_PER_SWEEP", 2)
    world = world_of(services, USERS)
    pattern = Schedules()
    with world.context():
        for user in "abc":
            USERS.put(world.clients, user, EVERY_TEN, greet_user.bind(user))
        tick = ScheduleRow.query().get().next_at.replace(tzinfo=datetime.UTC)
        world.engine.purge_queue(world.engine.place.queue_name("default"))
        sleep_s = (tick - world.clock.now()).total_seconds() + sweeps.STALE_S - 0.5
        early = late_s(world)
        world.clock.sleep(sleep_s)
        swept = [pattern.sweep(world.clients, [USERS])["overdue"]]
        late = late_s(world)
        world.clock.sleep(1)
        swept += [pattern.sweep(world.clients, [USERS])["overdue"] for _ in range(3)]

    assert swept == [0, 2, 1, 0]
    assert early == 0
    assert late == pytest.approx(sweeps.STALE_S - 0.5, abs=0.1)


def late_s(world: World) -> float:
    [gauge] = Schedules().gauges(world.clients, [USERS])
    assert gauge.name == "schedules_late_seconds"
    return gauge.value


@one_emulator
def test_a_tick_that_is_late_runs_at_its_own_time(services: Services) -> None:
    """T1: its work is told the tick's time, whenever its task is delivered."""
    world = world_of(services, report)
    world.sweep(SWEEP)
    world.clock.sleep(600 + 240)
    world.deliver_due()
    with world.context():
        assert [(at.minute % 10, at.second) for at in times_here()] == [(0, 0)]
