"""Schedules: each tick's work is enqueued once, also under faults and after a downtime."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb

import main
from pipelines.registry import APP
from rollforward.datastore.transactions import transact
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.schedules import BadScheduleError, Schedule, UserSchedules, schedule, ticks
from rollforward.schedules.cron import Missed
from rollforward.schedules.entities import ScheduleRow, row_key
from rollforward.schedules.sweep import STALE_S
from rollforward.tasks import task
from rollforward.tasks.attempts import current_task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.testing.injection import KINDS, OVERLAP
from tests.infra.faults.explorer import ALL, Explorer
from tests.infra.world import Services, World
from tests.rollforward.tasks.reminders import one_emulator

SWEEP = "/cron/schedules/sweep"
MINUTE_S, DAY_S = 60.0, 24 * 3600.0


class TickRun(ndb.Model):
    """That a task of a tick ran: a row for each task."""

    tag = ndb.TextProperty()
    at = ndb.DateTimeProperty(indexed=False)


def note(tag: str, at: datetime.datetime | None = None) -> None:
    TickRun(id=current_task(), tag=tag, at=at.replace(tzinfo=None) if at else None).put()


@schedule("*/10 * * * *", tz="Europe/Berlin")
def report(clients: Clients, at: datetime.datetime) -> None:
    """Note that it ran."""
    note("report", at)


@task("/tasks/tests/greet-user", queue="default")
def greet_user(clients: Clients, user: str) -> None:
    """Note that it ran."""
    note(user)


USERS = UserSchedules("users", greet_user)


def world_of(services: Services, *parts: Any) -> World:
    world = World(services, schedules=parts)
    # The clock stands at a time that is not a tick of */10.
    seconds = world.clock.now().timestamp()
    world.clock.sleep(600 - seconds % 600 + 30)
    return world


def pass_time(world: World, seconds: float, *, sweeps_every_s: float = MINUTE_S) -> None:
    """Let time pass in steps of ten seconds, with sweeps and deliveries."""
    end_s = world.clock.time_s + seconds
    swept_s = -sweeps_every_s
    while world.clock.time_s < end_s:
        if world.clock.time_s - swept_s >= sweeps_every_s:
            world.sweep(SWEEP)
            swept_s = world.clock.time_s
        world.deliver_due()
        world.clock.sleep(min(10.0, end_s - world.clock.time_s))


def times_here() -> list[datetime.datetime]:
    return sorted(ran.at for ran in TickRun.query().fetch())


@pytest.mark.parametrize("sweeps_every_s", [MINUTE_S, 1_800.0])
def test_each_tick_runs_once_and_to_the_minute(services: Services, sweeps_every_s: float) -> None:
    """T1: also if the sweep comes every half an hour."""
    world = world_of(services, report)
    pass_time(world, 3_600, sweeps_every_s=sweeps_every_s)
    with world.context():
        times = times_here()
        assert len(times) == len(set(times)) == 6
        assert {at.minute % 10 for at in times} == {0}
        assert len(ScheduleRow.query().fetch()) == 1


@pytest.mark.parametrize(("missed", "count"), [("once", 1), ("all", 120), ("skip", 0)])
@one_emulator
def test_a_downtime_is_made_up_for_as_declared(
    services: Services, missed: Missed, count: int
) -> None:
    """T2: once, for each tick, or not at all; then the next tick has its time."""
    part = Schedule("report", report.task, missed, "*/10 * * * *", "Europe/Berlin")
    world = world_of(services, part)
    world.sweep(SWEEP)
    world.clock.sleep(120 * 600 + 400)  # Six minutes after the 120th tick.
    world.settle(patience_s=0)
    with world.context():
        assert len(times_here()) == count
    pass_time(world, 600)
    with world.context():
        assert len(times_here()) == count + 1


def test_missed_ticks_with_large_arguments_run_in_commits_that_have_room(
    services: Services,
) -> None:
    """T2: 60 times 90 kB are more than the emulators take at a time."""
    part = UserSchedules("users", greet_user, "all")
    world = world_of(services, part)
    with world.context():
        part.put(world.clients, "u1", "*/10 * * * *", greet_user.bind("x" * 90_000))
    world.clock.sleep(60 * 600)
    world.settle(patience_s=0)

    with world.context():
        assert len(TickRun.query().fetch(keys_only=True)) == 60


@one_emulator
def test_a_tick_whose_task_is_lost_is_made_up_for_by_the_sweep(services: Services) -> None:
    """T1: the queue was purged."""
    world = world_of(services, report)
    world.sweep(SWEEP)
    world.engine.purge_queue(world.engine.place.queue_name("default"))
    pass_time(world, 1_200 + STALE_S + MINUTE_S)
    with world.context():
        assert len(times_here()) == 2


@one_emulator
def test_a_changed_expression_counts_from_then_on(services: Services) -> None:
    """T1: ticks of the old one are enqueued no more, though their task still comes."""
    world = world_of(services, report)
    world.sweep(SWEEP)
    hourly = Schedule("report", report.task, "once", "30 * * * *", "Europe/Berlin")
    changed = World(services, schedules=[hourly])
    with changed.context():
        changed.sweep(SWEEP)
        pass_time(changed, 3_600)
        assert [at.minute for at in times_here()] == [30]
        assert DeadTask.query().fetch() == []


def test_users_have_schedules_of_their_own(services: Services) -> None:
    """T3: set, changed and removed, alone and in a transaction."""
    world = world_of(services, USERS)
    clients = world.clients
    with world.context():
        USERS.put(clients, "u1", "*/10 * * * *", greet_user.bind("u1"))
        USERS.put(clients, "u2", "*/10 * * * *", greet_user.bind("u2"), tz="Asia/Tokyo")
        USERS.put(clients, "u2", "*/10 * * * *", greet_user.bind("u2"), tz="Asia/Tokyo")
        with pytest.raises(LookupError):
            transact(lambda: _put_and_fail(clients))
        pass_time(world, 600)
        assert sorted(ran.tag for ran in TickRun.query().fetch()) == ["u1", "u2"]
        transact(lambda: USERS.remove("u1"))
        USERS.put(clients, "u2", "*/10 * * * *", greet_user.bind("u2 again"), tz="Asia/Tokyo")
        pass_time(world, 600)
        assert sorted(ran.tag for ran in TickRun.query().fetch()) == ["u1", "u2", "u2 again"]


def test_the_last_change_of_a_schedule_in_a_transaction_counts(services: Services) -> None:
    """T3: a form that removes all of a user's schedules and puts them again loses none."""
    world = world_of(services, USERS)
    daily, hourly = "0 9 * * *", "0 * * * *"

    def put(user: str, cron: str) -> None:
        USERS.put(world.clients, user, cron, greet_user.bind(user))

    def change() -> None:
        for user in ("again", "gone"):
            USERS.remove(user)
        put("again", daily)
        put("back", hourly)
        put("back", daily)
        put("gone", daily)
        USERS.remove("gone")

    with world.context():
        for user in ("again", "back", "gone"):
            put(user, daily)
        transact(change)
        rows = {row.key.id(): row.cron for row in ScheduleRow.query().fetch()}
        assert rows == {"users|again": daily, "users|back": daily}
    pass_time(world, DAY_S, sweeps_every_s=2 * DAY_S)
    with world.context():
        assert sorted(run.tag for run in TickRun.query().fetch()) == ["again", "back"]


@task("/tasks/tests/greet-user", queue="default")
def greet_person(clients: Clients, person: str) -> None:
    """Note that it ran: the same task in the next version, with its parameter renamed."""
    note(person)


@one_emulator
def test_a_tick_whose_arguments_only_the_next_version_can_read_waits_for_it(
    services: Services,
) -> None:
    """T3: it is not dead, and neither this tick nor the next one is lost."""
    world, following = world_of(services, USERS), UserSchedules("users", greet_person)
    with world.context():
        following.put(world.clients, "u1", "*/10 * * * *", greet_person.bind("u1"))
        pass_time(world, 600)
        untouched = TickRun.query().fetch()
        registry = Registry(*APP.declared, following)
        world.app = main.create_app(world.settings, world.clients, registry)
        pass_time(world, 900)
        assert untouched == []
        assert [ran.tag for ran in TickRun.query().fetch()] == ["u1", "u1"]
        assert DeadTask.query().fetch() == []


def _put_and_fail(clients: Clients) -> None:
    USERS.put(clients, "u3", "*/10 * * * *", greet_user.bind("u3"))
    raise LookupError


@one_emulator
def test_an_id_or_an_expression_that_cannot_be_stored_is_refused(services: Services) -> None:
    """Nothing is written."""
    world = world_of(services, USERS)
    with world.context():
        for row_id, cron in (("", "0 9 * * *"), ("x" * 501, "0 9 * * *"), ("u", "nonsense")):
            with pytest.raises(BadScheduleError):
                USERS.put(world.clients, row_id, cron, greet_user.bind("u"))
        assert ScheduleRow.query().fetch() == []


@one_emulator
def test_a_sweep_costs_the_rows_that_are_due(services: Services) -> None:
    """T3: however many wait for their tick."""
    world = world_of(services, USERS)
    with world.context():
        idle = _reads(world)
        for number in range(40):
            USERS.put(world.clients, f"u{number}", "0 0 1 1 *", greet_user.bind("u"))
        assert _reads(world) == idle


def _reads(world: World) -> int:
    before = world.clients.meter.cost()
    world.sweep(SWEEP)
    return int((world.clients.meter.cost() - before).reads)


@dataclass
class TickScenario:
    """Set a schedule for a user, and let its tick come."""

    world: World

    leaves = ("OutboxLease",)

    def begin(self, tag: str) -> None:
        call = greet_user.bind(tag)
        USERS.put(self.world.clients, tag, "*/10 * * * *", call)
        with self.world.plan.unwatched():
            tick_s = row_key("users", tag).get().next_at.replace(tzinfo=datetime.UTC).timestamp()
            self.world.clock.sleep(max(0.0, tick_s - self.world.clock.now().timestamp()))

    def is_done(self, tag: str) -> bool:
        return tag in self.ran(tag)

    def ran(self, tag: str) -> list[str]:
        return [ran.tag for ran in TickRun.query().fetch() if ran.tag == tag]

    def check(self, tag: str, fault: str) -> None:
        assert self.ran(tag) == [tag], fault
        USERS.remove(tag)


@pytest.fixture
def scenario(services: Services) -> TickScenario:
    return TickScenario(world_of(services, USERS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tick_runs_once_with_a_fault_at_any_call(scenario: TickScenario, kind: str) -> None:
    """T1: in one task."""
    assert Explorer(scenario.world, scenario).explore([kind])


def test_a_tick_runs_once_when_deliveries_overlap_at_any_call(scenario: TickScenario) -> None:
    """T1: in one task."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario).explore([OVERLAP], at_most=ALL)


def test_a_tick_runs_once_in_any_order(scenario: TickScenario) -> None:
    """T1: each task delivered twice, in a shuffled order."""
    scenario.world.doubles = True
    scenario.world.order = random.Random(1)
    Explorer(scenario.world, scenario).play()


def _unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ticks._advance

    def advance(clients: Clients, declared: Any, tick: ticks.Tick) -> int:
        row = ndb.Key(ScheduleRow, tick.row).get()
        at = row.next_at.replace(tzinfo=datetime.UTC)
        return sound(clients, declared, ticks.Tick(tick.row, at, row.revision))

    monkeypatch.setattr(ticks, "_advance", advance)


@pytest.mark.parametrize("plant", [_unguarded])
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """With one of its proofs taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = TickScenario(world_of(services, USERS))
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario).explore(at_most=ALL)
