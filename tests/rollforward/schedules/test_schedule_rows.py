"""Rows of schedules: what a change, a tick and a sweep leave of them, before a sweep heals it."""

from __future__ import annotations

import datetime

import pytest

from rollforward.datastore.transactions import transact
from rollforward.runtime import naive_utc
from rollforward.schedules import Schedule, UserSchedules, cron, entities, ticks
from rollforward.schedules import sweep as sweeps
from rollforward.schedules.entities import ScheduleRow, overdue_rows, row_key
from rollforward.schedules.ticks import Tick
from tests.infra.clocks import ahead
from tests.infra.mutation.lines import Bug
from tests.infra.world import Services, World
from tests.rollforward.schedules.test_schedules import (
    DAY_S,
    SWEEP,
    USERS,
    TickRun,
    greet_user,
    report,
    world_of,
)
from tests.rollforward.tasks.reminders import one_emulator

EVERY_TEN, NINE = "*/10 * * * *", "0 9 * * *"
# A second schedule beside the first: its name begins like that one's, and it has the same ids.
OTHERS = UserSchedules("users-2", greet_user)


@pytest.fixture
def world(services: Services) -> World:
    world = world_of(services, report, USERS, OTHERS)
    with world.context():
        OTHERS.put(world.clients, "u1", EVERY_TEN, greet_user.bind("other"))
        world.sweep(SWEEP)
    return world


def put(world: World, row_id: str = "u1", tag: str = "u1", *, rule: str = EVERY_TEN) -> None:
    USERS.put(world.clients, row_id, rule, greet_user.bind(tag))


def greet_body(tag: str) -> str:
    return greet_user.message(greet_user.bind(tag)).body.decode()


def row_of(row_id: str = "u1", name: str = "users") -> ScheduleRow:
    row = row_key(name, row_id).get(use_cache=False)
    assert isinstance(row, ScheduleRow)
    return row


def tick_of(row: ScheduleRow) -> Tick:
    return Tick(row.key.id(), row.next_at.replace(tzinfo=datetime.UTC), row.revision)


def advance(world: World, tick: Tick) -> int:
    return ticks.advance(world.clients, {"users": USERS}, tick)


def sleep_until(world: World, at: datetime.datetime, *, early_s: float = 0.0) -> None:
    seconds = (at.replace(tzinfo=datetime.UTC) - world.clock.now()).total_seconds()
    world.clock.sleep(seconds - early_s + 0.001)  # Times are floats.


@one_emulator
def test_another_zone_is_another_schedule(world: World) -> None:
    """T3: nine o'clock is at another time there, although the expression is the same."""
    with world.context():
        put(world, rule=NINE)
        before = row_of()
        USERS.put(world.clients, "u1", NINE, greet_user.bind("u1"), tz="Asia/Tokyo")
        after = row_of()

        assert (after.tz, after.next_at.hour) == ("Asia/Tokyo", 0)
        assert after.revision != before.revision


@one_emulator
def test_other_arguments_are_another_schedule(world: World) -> None:
    """T3: at the same times, and without a change of any other schedule."""
    with world.context():
        put(world)
        put(world, "u2")
        before, other = row_of(), row_of("u2")
        put(world, tag="u1 again")
        after = row_of()

        assert (before.body, after.body) == (other.body, greet_body("u1 again"))
        assert after.next_at == before.next_at
        assert after.revision != before.revision
        assert row_of("u2") == other


@one_emulator
def test_the_sweep_sees_that_the_code_has_another_zone(world: World) -> None:
    """T1: once, and the ticks count by the new one."""
    parts = {"nine": Schedule("nine", report.task, "once", NINE, "UTC")}
    moved = {"nine": Schedule("nine", report.task, "once", NINE, "Asia/Tokyo")}
    with world.context():
        written = [sweeps.sweep(world.clients, each)["written"] for each in (parts, moved, moved)]

        assert written == [1, 1, 0]
        assert row_of("", "nine").next_at.hour == 0


@one_emulator
def test_a_tick_that_is_decades_ahead_is_moved_by_the_sweep_and_holds_up_no_schedule(
    world: World,
) -> None:
    """T1: no task can be so far ahead, and the fifth Monday of a February comes in 2044."""
    rare = Schedule("rare", report.task, "once", "0 0 * 2 1#5", "UTC")
    nine = Schedule("nine", report.task, "once", NINE, "UTC")
    with world.context():
        written = sweeps.sweep(world.clients, {"rare": rare, "nine": nine})["written"]
        put(world, rule=rare.cron)
        tick = row_of("", "rare").next_at
        late_s = (tick - naive_utc(world.clock.now())).total_seconds() + 2 * sweeps.STALE_S
        sweeps.sweep(ahead(world.clients, late_s), {"rare": rare, "users": USERS})

        assert (written, tick.year) == (2, 2044)
        for moved in (row_of("", "rare"), row_of()):
            assert [recent.at for recent in moved.recent_ticks] == [
                tick.replace(tzinfo=datetime.UTC)
            ]
            assert moved.next_at.year == 2072


@one_emulator
def test_a_change_keeps_what_the_row_knows_of_its_runs(world: World) -> None:
    """T3: an operator still sees them, the newest first."""
    with world.context():
        put(world)
        for _ in range(2):
            tick = tick_of(row_of())
            sleep_until(world, tick.at)
            assert advance(world, tick) == 1
        put(world, tag="another")

        at = [recent.at for recent in row_of().recent_ticks]
        assert at == [tick.at, tick.at - datetime.timedelta(minutes=10)]


@one_emulator
def test_a_tick_moves_its_row_although_the_clock_here_is_behind_the_queue_s(world: World) -> None:
    """T1: else the same tick would run for as long as it is."""
    with world.context():
        put(world)
        tick = tick_of(row_of())
        sleep_until(world, tick.at, early_s=20)

        assert advance(world, tick) == 1
        assert tick_of(row_of()).at == tick.at + datetime.timedelta(minutes=10)


@one_emulator
def test_a_tick_of_the_past_moves_nothing(world: World) -> None:
    """T1: it comes again, or it is of a revision that was changed."""
    with world.context():
        put(world)
        tick = tick_of(row_of())
        sleep_until(world, tick.at)
        assert advance(world, tick) == 1
        moved = row_of()
        assert advance(world, tick) == 0
        assert advance(world, Tick(tick.row, tick_of(moved).at, "earlier")) == 0

        assert row_of() == moved


@one_emulator
def test_a_schedule_that_is_changed_twice_within_a_tick_needs_no_sweep(world: World) -> None:
    """T3: its tick's task is there, whatever tasks of the revisions before are."""
    with world.context():
        put(world)
        put(world, tag="changed")
        put(world)
        sleep_until(world, row_of().next_at)
        world.deliver_due()

        assert sorted(run.tag for run in TickRun.query().fetch()) == ["other", "report", "u1"]


def test_a_call_without_its_work_says_what_is_missing(world: World) -> None:
    """T4: as mypy does; it was a ValueError about unpacking."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'work'"):
        USERS.put(world.clients, "u1", EVERY_TEN)  # type: ignore[call-arg]


@one_emulator
def test_the_lane_of_a_row_is_told_its_whole_id(world: World) -> None:
    """T4: which may have a bar in it."""
    asked: list[str] = []
    users = UserSchedules("users", greet_user, lane=lambda row_id: asked.append(row_id))  # type: ignore[arg-type, func-returns-value]
    with world.context():
        users.put(world.clients, "a|b", EVERY_TEN, greet_user.bind("u1"))
        asked.clear()
        tick = tick_of(row_of("a|b"))
        sleep_until(world, tick.at)

        assert ticks.advance(world.clients, {"users": users}, tick) == 1
        assert set(asked) == {"a|b"}


@one_emulator
def test_a_row_without_a_tick_is_never_overdue(world: World) -> None:
    """T1: its expression comes no more."""
    with world.context():
        put(world)
        row = row_of()
        row.next_at = None
        row.put()
        world.clock.sleep(DAY_S)

        overdue = overdue_rows(naive_utc(world.clock.now())).fetch()
        assert sorted(found.key.id() for found in overdue) == ["report|", "users-2|u1"]


@one_emulator
def test_a_row_that_no_code_knows_is_looked_at_once_an_hour(world: World) -> None:
    """T1: it waits for its version, and starves no other row."""
    with world.context():
        put(world)
        due = row_of().next_at
        sleep_until(world, due)
        looks = []
        for minutes in (10, 49, 2):
            world.clock.sleep(60 * minutes)
            sweeps.sweep(world.clients, {"report": report, "users-2": OTHERS})
            looks.append((row_of().next_at, naive_utc(world.clock.now())))

        assert [at for at, _ in looks] == [due, due, looks[-1][1]]


@one_emulator
def test_a_row_that_its_version_has_moved_meanwhile_is_not_put_off(world: World) -> None:
    """T1: the sweep of a version that does not know it has read it before."""
    with world.context():
        put(world)
        seen, tick = row_of(), tick_of(row_of())
        sleep_until(world, tick.at)
        advance(world, tick)
        moved = row_of()
        now_utc = naive_utc(world.clock.now())
        transact(lambda: sweeps._put_off(seen, now_utc))

        assert row_of() == moved


def test_no_tick_is_late_within_five_minutes_and_a_commit_takes_a_hundred() -> None:
    """T2: to the second, and to the tick."""
    since = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    for seconds, count in ((300, 1), (301, 0)):
        until = since + datetime.timedelta(seconds=seconds)
        assert len(cron.ticks_to_run("0 0 * * *", "UTC", since, until, "skip")) == count
    until = since + datetime.timedelta(days=1)
    for early_s, tick in ((0, until), (1, since)):
        now_utc = until - datetime.timedelta(seconds=early_s)
        assert cron.ticks_to_run("0 0 * * *", "UTC", since, now_utc, "once") == [tick]
    assert len(cron.ticks_to_run("* * * * *", "UTC", since, until, "all")) == cron.MAX_MISSED == 100


BUGS = (
    Bug(ticks, "put_row", "(row.cron, row.tz, row.body) == (cron, tz, body)",
        "(row.cron, row.body) == (cron, body)", test_another_zone_is_another_schedule),
    Bug(ticks, "put_row", "(row.cron, row.tz, row.body) == (cron, tz, body)",
        "(row.cron, row.tz) == (cron, tz)", test_other_arguments_are_another_schedule),
    Bug(sweeps, "_write_rows", "(row.cron, row.tz) != (schedule.cron, schedule.tz)",
        "row.cron != schedule.cron", test_the_sweep_sees_that_the_code_has_another_zone),
    Bug(ticks, "put_row", "row.recent if row is not None else None", "None",
        test_a_change_keeps_what_the_row_knows_of_its_runs),
    Bug(entities.ScheduleRow, "note_ticks", "[*pairs, *json.loads(self.recent or \"[]\")]",
        "[*json.loads(self.recent or \"[]\"), *pairs]",
        test_a_change_keeps_what_the_row_knows_of_its_runs),
    Bug(ticks, "_advance", "max(clients.clock.now(), tick.at)", "clients.clock.now()",
        test_a_tick_moves_its_row_although_the_clock_here_is_behind_the_queue_s),
    Bug(ticks, "_advance", " or row.next_at != naive_utc(tick.at)", "",
        test_a_tick_of_the_past_moves_nothing),
    Bug(ticks, "_advance", " or row.revision != tick.revision", "",
        test_a_tick_of_the_past_moves_nothing),
    Bug(ticks, "name_of", "tick.row, tick.revision, tick.at", "tick.row, \"\", tick.at",
        test_a_schedule_that_is_changed_twice_within_a_tick_needs_no_sweep),
    Bug(ticks, "_enqueue_work", "partition", "rpartition",
        test_the_lane_of_a_row_is_told_its_whole_id),
    Bug(entities, "overdue_rows", "next_at > EPOCH, ", "",
        test_a_row_without_a_tick_is_never_overdue),
    Bug(sweeps, "_move", "if row.next_at < now_utc - UNKNOWN:", "if True:",
        test_a_row_that_no_code_knows_is_looked_at_once_an_hour),
    Bug(sweeps, "_put_off", " and stored.next_at == row.next_at", "",
        test_a_row_that_its_version_has_moved_meanwhile_is_not_put_off),
    Bug(cron, "ticks_to_run", "until - newest <= GRACE", "until - newest < GRACE",
        test_no_tick_is_late_within_five_minutes_and_a_commit_takes_a_hundred),
    Bug(cron, "_last_tick", "datetime.timedelta(seconds=1)", "datetime.timedelta(0)",
        test_no_tick_is_late_within_five_minutes_and_a_commit_takes_a_hundred),
    Bug(cron, "ticks_to_run", "len(ticks) == MAX_MISSED", "len(ticks) > MAX_MISSED",
        test_no_tick_is_late_within_five_minutes_and_a_commit_takes_a_hundred),
)  # fmt: skip


@one_emulator
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_guard_that_is_taken_out_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    """T1, T2, T3, T4: each guard of a row, a tick and the sweep is for something."""
    bug.check_noticed(monkeypatch, world=world)
