"""Lanes with many tasks at once: none is lost, and neither hints nor reads grow with them."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.lanes import Lane, Rate
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, _claim_of, state_key, task_key
from rollforward.lanes.runs import claims, delivery, ends, lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.lanes.sweep import remove_expired, wake_stale
from rollforward.runtime import Clients, Cost
from rollforward.tasks.errors import Retry
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.lanes.office import BLOCKING, DESK, IN_ORDER, SHARED, TWO, send, write


def drop_hints(world: World) -> None:
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def take(world: World, lane: Lane, clients: Clients | None = None) -> claims.Holder:
    """Claim tasks of Ada here and now."""
    clients = clients or world.clients
    claimed = claims.take(clients, lane, f"{lane.name}|ada", watches=False)
    assert isinstance(claimed, claims.Claimed)
    return claims.Holder(clients, lane, f"{lane.name}|ada", claimed.claim, claimed.asked_s)


def test_tasks_that_wait_for_the_same_moment_are_all_kept(world: World) -> None:
    """K1: the clock stands still, so all of them wait until the same microsecond."""
    failed: set[str] = set()

    def fail_once(name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise Retry("later", after_s=3)

    DESK.before = fail_once
    many = [write.bind("ada", str(number)) for number in range(12)]
    write.enqueue_many(world.clients, many, lane=SHARED("ada"))
    world.settle()
    assert sorted(map(int, DESK.of("ada"))) == list(range(12))


def test_tasks_that_are_delayed_to_one_second_share_a_hint(world: World) -> None:
    """K9: ten thousand reminders of one tenant are no ten thousand hints at noon."""
    many = [write.bind("ada", str(number)) for number in range(30)]
    write.enqueue_many(world.clients, many, lane=SHARED("ada"), delay_s=30)
    for number in range(30, 40):
        text = str(number)
        write.enqueue(world.clients, write.bind("ada", text), lane=SHARED("ada"), delay_s=30)
    assert len(world.live_tasks("default")) == 1
    world.settle()
    assert sorted(map(int, DESK.of("ada"))) == list(range(40))


def test_a_flood_without_memcached_has_a_hint_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K9: its hints are named by their second."""
    cache = type(world.clients.cache)
    monkeypatch.setattr(cache, "add", lambda *args: False)
    monkeypatch.setattr(cache, "get", lambda *args: None)
    send(world.clients, SHARED, "ada", *range(20))
    assert len(world.live_tasks("default")) <= 2
    world.settle()
    assert sorted(map(int, DESK.of("ada"))) == list(range(20))


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_task_that_a_wrong_clock_has_added_runs_at_once(world: World, lane: Lane) -> None:
    """K5: only a task that was delayed waits, however far ahead its place is."""
    send(ahead(world.clients, 3600), lane, "ada", 0)
    world.settle()
    assert DESK.of("ada") == ["0"]


def test_a_beat_disturbs_no_other_delivery(world: World) -> None:
    """K8: what others plan does not depend on it, so the state keeps its stamp."""
    send(world.clients, TWO, "ada", 0, 1)
    holder = take(world, TWO)
    stamp = state_key("test-two|ada").get().stamp
    holder._confirm()
    state = state_key("test-two|ada").get()
    assert (state.stamp, state.claims[0].beats) == (stamp, 1)


@pytest.mark.parametrize("together_s", [0.0, 60.0])
def test_a_task_whose_deletion_failed_stays_the_first_of_its_order(
    world: World, monkeypatch: pytest.MonkeyPatch, together_s: float
) -> None:
    """K3: it runs once more before one whose commit was late, and whose place is earlier."""
    sound, release = ends.finish, claims.Holder.release

    def fail_at_one(holder: Any, *tasks: LaneTask) -> None:
        if len(DESK.written) == 2:
            raise rpc_errors.ServiceUnavailable("made by the test")  # type: ignore[no-untyped-call]
        sound(holder, *tasks)

    def fail(*args: Any, **options: Any) -> Any:
        world.plan.break_next("Commit", "error", 99)
        return release(*args, **options)

    send(world.clients, IN_ORDER, "ada", 0, 1, 2)
    drop_hints(world)
    monkeypatch.setattr(lookups, "SLICE_S", 60.0)  # A turn has time on a busy machine, too.
    with monkeypatch.context() as patch:
        patch.setattr(delivery, "TOGETHER_S", together_s)
        patch.setattr(ends, "finish", fail_at_one)
        patch.setattr(claims.Holder, "release", fail)
        with pytest.raises(rpc_errors.ServiceUnavailable):
            deliver(IN_ORDER, world.clients, LaneArgs("test-in-order|ada"))
    world.plan.pending = []
    first = LaneTask.query().order(LaneTask.place).get()
    early_id = "test-in-order|ada|0000000000000017-early"
    body = write.message(write.bind("ada", "early")).body.decode()
    LaneTask(
        key=task_key(early_id), place=early_id, path=write.path, body=body, added=first.added
    ).put()
    deliver(IN_ORDER, world.clients, LaneArgs("test-in-order|ada"))
    before = ["0", "1"] if together_s == 0 else ["0", "1", "2"]
    assert DESK.of("ada") == [*before, "1", "early", "2"]


SLOW = Lane("test-slow", rate=Rate(1, per_s=7 * 24 * 3600))
QUICK = Lane("test-quick", limit=2, rate=Rate(10))


def add_row(world: World, lane: Lane, number: int) -> None:
    """Add a task to a lane that the app has not registered."""
    row_id = f"{lane.name}|ada|{1_000_000_000_000_000 + number}-c0ffee"
    added = world.clients.clock.now().replace(tzinfo=None)
    LaneTask(key=task_key(row_id), place=row_id, path=write.path, body="{}", added=added).put()


def test_a_slow_rate_is_remembered_for_as_long_as_it_holds_tasks_up(world: World) -> None:
    """K6: one task a week, and not one a day."""
    add_row(world, SLOW, 0)
    take(world, SLOW).release(set(), None, begun=1, pace_ms=1)
    state = state_key("test-slow|ada").get()
    now_utc = world.clients.clock.now().replace(tzinfo=None)
    assert state.expires - now_utc >= datetime.timedelta(days=7)


def test_a_charge_that_has_passed_is_not_given_back(world: World) -> None:
    """K6: a task that took a minute leaves no burst to those that follow."""
    LaneState(key=state_key("test-quick|ada"), stamp="s", pace_ms=1).put()
    for number in range(12):
        add_row(world, QUICK, number)
    holder = take(world, QUICK)
    assert len(holder.claim.tasks) == 10
    world.clock.sleep(60)
    arrival_ms = state_key("test-quick|ada").get().arrival_ms
    holder.release(set(), None, begun=1, pace_ms=1)
    assert state_key("test-quick|ada").get().arrival_ms == arrival_ms


def test_the_pace_of_a_key_follows_its_turns_by_a_quarter(world: World) -> None:
    """K8: the next delivery claims as many tasks as fit into its time, about."""
    send(world.clients, SHARED, "ada", 0, 1)
    paces = []
    for pace_ms in (8, 16, 0):
        holder, goes_on = take(world, SHARED), world.clients.new_id()
        holder.release(set(), None, begun=1, pace_ms=pace_ms, goes_on=goes_on)
        paces.append(state_key("test-shared|ada").get().pace_ms)
    assert paces == [8, 10, 10]


def test_a_claim_of_a_newer_version_is_read() -> None:
    """K11: a field that this version does not know is left out."""
    claim = _claim_of({"owner": "o", "tasks": ["t"], "beats": 3, "began": 1.0, "colour": "red"})
    assert (claim.owner, claim.tasks, claim.beats) == ("o", ("t",), 3)


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED, TWO], ids=lambda lane: lane.name)
def test_a_task_of_a_backlog_costs_few_writes_and_reads(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K9: 2.2 writes a task and three rows read at most, however many wait."""
    written, read = [0], [0]
    put, look = claims._put, lookups._unclaimed

    def counted_put(clients: Clients, state: LaneState) -> None:
        written[0] += 1
        put(clients, state)

    def counted_look(*args: Any) -> list[LaneTask]:
        tasks = look(*args)
        read[0] += len(tasks)
        return tasks

    monkeypatch.setattr(claims, "_put", counted_put)
    monkeypatch.setattr(lookups, "_unclaimed", counted_look)
    monkeypatch.setattr(lookups, "SLICE_S", 60.0)  # A turn ends with its tasks.
    many = [write.bind("ada", str(number)) for number in range(300)]
    write.enqueue_many(world.clients, many, lane=lane("ada"))
    world.settle()
    assert len(DESK.written) == 300
    # Beside the states, each task costs the write of its row and the deletion.
    assert written[0] <= 0.2 * 300
    assert read[0] <= 3 * 300


@pytest.mark.parametrize("lane", [IN_ORDER, BLOCKING, SHARED, TWO], ids=lambda lane: lane.name)
def test_keys_that_have_run_leave_the_store_as_it_was(world: World, lane: Lane) -> None:
    """K10: so however many there were, nothing costs more than without them."""

    def rows() -> set[Any]:
        return {key for key in ndb.Query().fetch(keys_only=True) if key.kind() != "LaneLetter"}

    def sweep() -> Cost:
        before = world.clients.meter.total()
        wake_stale(world.clients, [lane])
        remove_expired(world.clients)
        return world.clients.meter.total() - before

    sweep()  # It begins anywhere, since memcached knows no place.
    rows_before, cost_before = rows(), sweep()
    for number in range(20):
        send(world.clients, lane, f"key-{number}", 0, 1)
    world.settle()
    assert len(DESK.written) == 40
    assert rows() == rows_before
    assert sweep() == cost_before
