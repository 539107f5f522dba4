"""Lanes in rare moments: what each guard of a claim, a hint and a place is for."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import Lane, Rate, hints
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    id_at,
    place_of,
    state_key,
    task_key,
)
from rollforward.lanes.runs import claims, lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.runtime import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Retry
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.lanes.office import (
    DESK,
    IN_ORDER,
    PARCEL,
    SHARED,
    SWEEP,
    TWO,
    LaneLetter,
    send,
    write,
)

DAY = datetime.timedelta(days=1)


def wake(world: World, lane: Lane, clients: Clients | None = None, **options: Any) -> None:
    """Deliver a hint for Ada here and now."""
    deliver(lane, clients or world.clients, LaneArgs(f"{lane.name}|ada", **options))


def drop_hints(world: World) -> None:
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def rows() -> list[Any]:
    return [*LaneTask.query().fetch(), *LaneState.query().fetch()]


def once(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Let something happen after the first call of a function of claims."""
    sound = getattr(claims, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        result = sound(*args, **options)
        if getattr(claims, name) is wrapped:
            monkeypatch.setattr(claims, name, sound)
            act()
        return result

    monkeypatch.setattr(claims, name, wrapped)


# Claims


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED, TWO], ids=lambda lane: lane.name)
def test_a_task_that_another_delivery_has_done_meanwhile_is_not_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K2: the state of a key is gone with its last task, as it was before the first one."""
    send(world.clients, lane, "ada", 0)
    drop_hints(world)
    once(monkeypatch, "_plan", lambda: wake(world, lane))
    wake(world, lane)
    assert DESK.begun == ["ada:0"]
    assert rows() == []


def test_a_process_that_froze_after_its_claim_begins_nothing_when_it_was_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: what others may have watched began with the commit, and not with its reply."""
    earlier = SimpleNamespace(monotonic=lambda: time.monotonic() - 20)
    monkeypatch.setattr(claims, "time", earlier)
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    once(monkeypatch, "_existing", lambda: wake(world, SHARED, is_check=True))
    wake(world, SHARED)
    assert DESK.begun == ["ada:0"]


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_claim_that_could_not_be_given_back_is_taken_at_once_in_its_process(
    world: World, lane: Lane
) -> None:
    """K5: nobody waits for the end of a claim whose work is known to be over."""
    DESK.before = lambda name: world.plan.break_next("Lookup", "error", 99)
    send(world.clients, lane, "ada", 0, 1)
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, lane)
    world.plan.pending, DESK.before = [], lambda name: None
    began_s = world.clock.time_s
    wake(world, lane)
    assert sorted(DESK.of("ada")) == ["0", "1"]
    assert world.clock.time_s - began_s < 1
    assert rows() == []


def test_a_claim_that_beats_is_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """K4: whoever watches sees a sign of life, however wrong its clock is."""
    send(world.clients, SHARED, "ada", 0)
    claimed = claims.take(world.clients, SHARED, "test-shared|ada", watches=False)
    assert isinstance(claimed, claims.Claimed)
    holder = claims.Holder(world.clients, SHARED, "test-shared|ada", claimed.claim, claimed.asked_s)
    sleep = world.clock.sleep
    slept: list[float] = []

    def sleep_and_beat(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)
        if len(slept) % 3 == 0:
            holder._confirm()

    monkeypatch.setattr(type(world.clock), "sleep", lambda clock, seconds: sleep_and_beat(seconds))
    wake(world, SHARED, ahead(world.clients, 3600), is_check=True)
    assert not holder.is_lost
    assert DESK.begun == []
    monkeypatch.setattr(type(world.clock), "sleep", lambda clock, seconds: sleep(seconds))
    wake(world, SHARED, ahead(world.clients, -50), is_check=True)
    assert DESK.begun == ["ada:0"]
    holder._confirm()
    assert holder.is_lost


def test_all_claims_of_a_key_fit_into_its_row() -> None:
    """K8: fifty deliveries claim hundreds of tasks in all, and not thousands."""
    fast = LaneState(pace_ms=1)
    for limit in (1, 2, 10, 50):
        size = lookups.size_of(Lane("many", limit=limit), fast)
        assert 10 <= size <= lookups.MAX_TASKS
        assert size * limit <= lookups.MAX_CLAIMED


# Hints


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED, TWO], ids=lambda lane: lane.name)
def test_the_hints_of_a_key_do_not_grow_in_number(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K9: a key that gets more tasks all the time has four hints at most: others have turns."""
    monkeypatch.setattr(lookups, "SLICE_S", 0.0)
    numbers = iter(range(2, 22))

    def add_another(name: str) -> None:
        if (number := next(numbers, None)) is not None:
            send(world.clients, lane, "ada", number)

    DESK.before = add_another
    send(world.clients, lane, "ada", 0, 1)
    most = 0
    while due := world.engine.due():
        most = max(most, len(due))
        world.deliver(due[0].task_name)
    assert sorted(map(int, DESK.of("ada"))) == list(range(22))
    assert most <= 4
    assert rows() == []


def test_a_task_of_a_clock_that_is_ahead_is_found_when_the_claim_is_given_back(
    world: World,
) -> None:
    """K5: its hint was saved, because another one had not looked yet."""

    def add_ahead(name: str) -> None:
        if name == "ada:0":
            world.clients.cache.set(hints._mark(world.clients, "test-shared|ada"), b"1", 60)
            send(ahead(world.clients, 30), SHARED, "ada", 1)

    DESK.before = add_ahead
    send(world.clients, SHARED, "ada", 0)
    world.settle()
    assert DESK.of("ada") == ["0", "1"]


def test_a_hint_that_comes_too_early_by_the_clock_is_followed_by_another(world: World) -> None:
    """K5: a delivery whose clock is behind leaves a hint for the time of the task."""
    write.enqueue(world.clients, write.bind("ada", "0"), lane=SHARED("ada"), delay_s=30)
    drop_hints(world)
    world.clock.sleep(31)
    wake(world, SHARED, ahead(world.clients, -5))
    assert DESK.begun == []
    world.settle()
    assert DESK.of("ada") == ["0"]


def test_a_delayed_task_does_not_begin_early(world: World) -> None:
    """K6: another task of its key runs at once, and it at its time."""
    times: dict[str, float] = {}
    DESK.before = lambda name: times.update({name: world.clock.time_s})
    began_s = world.clock.time_s
    write.enqueue(world.clients, write.bind("ada", "late"), lane=SHARED("ada"), delay_s=30)
    send(world.clients, SHARED, "ada", 0)
    world.settle()
    assert times["ada:0"] - began_s < 1
    assert times["ada:late"] - began_s >= 30
    assert rows() == []


# Places


def test_of_two_transactions_the_one_that_is_committed_later_is_later_in_the_order(
    world: World,
) -> None:
    """K3: also if an earlier attempt of it had no reply, and its clock is minutes behind."""
    row_key = LaneLetter(id="shared", person="").put()

    def body(clients: Clients, text: str) -> None:
        row = row_key.get()
        row.person += text
        row.put()
        outbox.enqueue(clients, write, write.bind("ada", text), lane=IN_ORDER("ada"))

    others = iter(["1", "2"])

    def rival(seconds: float) -> None:
        if (text := next(others, None)) is not None:
            transact(lambda: body(ahead(world.clients, 300), text))

    world.plan.break_next("Commit", "error:UNAVAILABLE")
    transact(lambda: body(ahead(world.clients, -300), "3"), sleep=rival)
    transact(lambda: body(world.clients, "4"))
    world.settle()
    committed = row_key.get().person
    assert sorted(committed) == ["1", "3", "4"]
    assert "".join(DESK.of("ada")) == committed == "134"


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_commit_whose_reply_was_lost_adds_no_task_twice(world: World, lane: Lane) -> None:
    def body() -> None:
        for text in ("0", "1"):
            outbox.enqueue(world.clients, write, write.bind("ada", text), lane=lane("ada"))

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    transact(body, sleep=world.clock.sleep)
    world.settle()
    assert sorted(DESK.begun) == ["ada:0", "ada:1"]


def test_a_body_that_finds_its_receipt_leaves_a_hint_all_the_same(world: World) -> None:
    """K5: the first attempt was committed without a reply, and the second one adds nothing."""

    def body() -> None:
        if LaneLetter.get_by_id("receipt") is None:
            LaneLetter(id="receipt", person="").put()
            outbox.enqueue(world.clients, write, write.bind("ada", "0"), lane=SHARED("ada"))

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    transact(body)
    world.settle()
    assert DESK.of("ada") == ["0"]


def test_many_large_tasks_are_added_at_once(world: World) -> None:
    """K1: more than a commit may hold."""
    many = [write.bind("ada", f"{number:03}{'x' * 95_000}") for number in range(45)]
    write.enqueue_many(world.clients, many, lane=IN_ORDER("ada"))
    world.settle()
    assert [text[:3] for text in DESK.of("ada")] == [f"{number:03}" for number in range(45)]


# Ends


def test_a_task_that_waits_keeps_its_hint_when_a_reply_is_lost(world: World) -> None:
    """K5: in a lane without an order it has moved to another row."""

    def wait_once(name: str) -> None:
        if len(DESK.begun) == 1:
            world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
            raise Retry("later", after_s=30)

    DESK.before = wait_once
    send(world.clients, SHARED, "ada", 0)
    world.settle()
    assert DESK.of("ada") == ["0"]


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_failure_whose_reply_was_lost_counts_once(world: World, lane: Lane) -> None:
    """K7: four failures, and not two, are too many."""

    def fail(name: str) -> None:
        world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
        raise ValueError("broken")

    DESK.before = fail
    send(world.clients, lane, "ada", 0)
    world.settle()
    assert DESK.begun == ["ada:0"] * 4


def test_a_handler_that_fails_is_called_again_and_holds_up_nobody(world: World) -> None:
    """K7: a task that was given up waits for its handler, like one that failed."""
    left = [2]

    def fail(name: str) -> None:
        if name == "return" and left[0]:
            left[0] -= 1
            raise ValueError("broken")

    DESK.before = fail
    PARCEL.enqueue(world.clients, PARCEL.bind("ada"), lane=SHARED("ada"))
    send(world.clients, SHARED, "ada", 1)
    world.settle()
    assert DESK.written == ["ada:1", "return"]
    assert rows() == []


def test_a_handler_that_fails_for_ever_leaves_a_dead_task(world: World) -> None:
    """K7: no key is held up for ever."""

    def fail(name: str) -> None:
        if name == "return":
            raise ValueError("broken")

    DESK.before = fail
    PARCEL.enqueue(world.clients, PARCEL.bind("ada"), lane=IN_ORDER("ada"))
    send(world.clients, IN_ORDER, "ada", 1)
    world.settle()
    assert DESK.written == ["ada:1"]
    assert "its handler failed" in open_dead_tasks().fetch()[0].reason


def test_a_task_that_nobody_can_read_holds_up_nobody(world: World) -> None:
    """K7: no version has known it for long, and its handler could not read it either."""
    now_utc = world.clients.clock.now()
    row_id = id_at("test-in-order|ada", place_of(now_utc), "c0ffee")
    LaneTask(
        key=task_key(row_id),
        place=row_id,
        path=PARCEL.path,
        body='{"bird": 1}',
        added=naive_utc(now_utc),
        unknown_since=naive_utc(now_utc - DAY),
    ).put()
    send(world.clients, IN_ORDER, "ada", 1)
    world.settle()
    assert DESK.written == ["ada:1"]
    assert len(open_dead_tasks().fetch()) == 1


# The sweep


def test_a_dead_claim_beside_one_that_lives_is_found(world: World) -> None:
    """K5: the first task of the key belongs to a worker that is gone."""
    send(world.clients, TWO, "ada", 0, 1)
    drop_hints(world)
    first, second = (row.key.id() for row in LaneTask.query().fetch())
    world.clock.sleep(3600)
    now_s = world.clock.time_s
    state = LaneState(key=state_key("test-two|ada"), stamp="s")
    state.set_claims(
        [
            Claim("dead", (first,), beats=7, began=now_s - 3600),
            Claim("alive", (second,), began=now_s),
        ]
    )
    state.put()
    world.sweep(SWEEP)
    assert len(world.live_tasks("default")) == 1


def test_a_state_that_dead_workers_have_left_is_deleted(world: World) -> None:
    """K10: nobody looks at a key without tasks, so its claims are not taken by anyone."""
    state = LaneState(key=state_key("test-two|ada"), stamp="s")
    state.set_claims([Claim("dead", ("gone",))])
    state.expires = naive_utc(world.clients.clock.now() + DAY)
    state.put()
    for days, is_there in ((2, True), (6, False)):
        world.clock.sleep(days * 24 * 3600)
        world.sweep("/cron/tasks/sweep", SWEEP)
        assert (state.key.get() is not None) == is_there


def test_a_worker_that_died_after_its_last_task_leaves_no_state(world: World) -> None:
    """K10: its hint comes again, and finds neither a task nor a live claim."""
    state = LaneState(key=state_key("test-in-order|ada"), stamp="s", head="gone")
    state.set_claims([Claim("dead", ("gone",))])
    state.put()
    wake(world, IN_ORDER, is_check=True)
    assert rows() == []


# The rate


def test_a_clock_that_is_far_ahead_does_not_stop_a_key() -> None:
    """K6: an arrival time that no clock within a minute can give lets one task begin."""
    rate = Rate(10, burst=3)
    now_ms = 1_000_000
    assert rate.allowed(now_ms + 3_600_000, now_ms) == 1
    assert rate.moved(now_ms + 3_600_000, now_ms, 1) == now_ms + 300
    assert rate.allowed(rate.moved(now_ms + 3_600_000, now_ms, 1), now_ms) == 0


def test_a_clock_that_is_a_little_ahead_is_waited_for() -> None:
    """K6: no more tasks begin than the rate allows, by the clock that is ahead."""
    rate = Rate(10, burst=3)
    now_ms = 1_000_000
    arrival_ms = rate.moved(0, now_ms + 5_000, 3)
    assert rate.allowed(arrival_ms, now_ms) == 0
    assert rate.next_at(arrival_ms, now_ms).timestamp() * 1000 == pytest.approx(now_ms + 5_100)
