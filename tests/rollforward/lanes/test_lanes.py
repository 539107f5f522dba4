"""Lanes: the order of a key, its limit, its rate, and what becomes of tasks that fail."""

from __future__ import annotations

import itertools

import pytest

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import BadLaneError
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject, Retry, UnknownTaskError
from tests.infra.world import World
from tests.rollforward.lanes.office import (
    BLOCKING,
    DESK,
    IN_ORDER,
    PACED,
    SHARED,
    SWEEP,
    send,
    write,
)


def test_the_tasks_of_a_key_run_in_their_order_and_leave_nothing(world: World) -> None:
    send(world.clients, IN_ORDER, "ada", *range(5))
    send(world.clients, IN_ORDER, "bob", *range(3))
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2", "3", "4"]
    assert DESK.of("bob") == ["0", "1", "2"]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_many_are_added_at_once_in_their_order(world: World) -> None:
    many = [write.bind("ada", str(number)) for number in range(450)]
    assert write.enqueue_many(world.clients, many, lane=IN_ORDER("ada")) == [True] * 450
    world.settle()
    assert DESK.of("ada") == [str(number) for number in range(450)]


def test_a_transaction_adds_all_of_its_tasks_or_none(world: World) -> None:
    def body(*, fails: bool) -> None:
        for text in ("1", "2"):
            outbox.enqueue(world.clients, write, write.bind("ada", text), lane=IN_ORDER("ada"))
        if fails:
            raise ValueError("rolled back")

    with pytest.raises(ValueError, match="rolled back"):
        transact(lambda: body(fails=True))
    assert LaneTask.query().fetch() == []
    transact(lambda: body(fails=False))
    world.settle()
    assert DESK.of("ada") == ["1", "2"]


def test_a_task_that_fails_holds_up_the_others_of_its_key_in_an_order(world: World) -> None:
    left = [2]

    def fail_twice(name: str) -> None:
        if name == "ada:0" and left[0]:
            left[0] -= 1
            raise Retry("later", after_s=30)

    DESK.before = fail_twice
    send(world.clients, IN_ORDER, "ada", 0, 1, 2)
    send(world.clients, IN_ORDER, "bob", 0)
    world.settle()
    assert DESK.begun == ["ada:0", "bob:0", "ada:0", "ada:0", "ada:1", "ada:2"]


def test_a_task_that_fails_lets_others_pass_without_an_order(world: World) -> None:
    left = [1]

    def fail_once(name: str) -> None:
        if name == "ada:0" and left[0]:
            left[0] -= 1
            raise Retry("later", after_s=30)

    DESK.before = fail_once
    send(world.clients, SHARED, "ada", 0, 1, 2)
    world.settle()
    assert sorted(DESK.of("ada")) == ["0", "1", "2"]
    assert DESK.of("ada")[-1] == "0"
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_a_task_that_can_never_work_becomes_a_dead_task_and_the_next_passes(world: World) -> None:
    def refuse(name: str) -> None:
        if name == "ada:0":
            raise Reject("no such address")

    DESK.before = refuse
    send(world.clients, IN_ORDER, "ada", 0, 1)
    world.settle()
    assert DESK.of("ada") == ["1"]
    [dead] = open_dead_tasks().fetch()
    assert dead.reason == "Reject: no such address"
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []  # Nothing blocks the key.


def test_a_dead_task_blocks_its_key_if_the_lane_says_so(world: World) -> None:
    def refuse(name: str) -> None:
        if name == "ada:0":
            raise Reject("no such address")

    DESK.before = refuse
    send(world.clients, BLOCKING, "ada", 0, 1)
    send(world.clients, BLOCKING, "bob", 0)
    world.settle()
    world.clock.sleep(120)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.written == ["bob:0"]


def test_errors_are_counted_and_a_task_is_given_up_after_its_attempts(world: World) -> None:
    world.fails_fast = False

    def fail(name: str) -> None:
        if name == "ada:0":
            raise ValueError("broken")

    DESK.before = fail
    send(world.clients, IN_ORDER, "ada", 0, 1)
    world.settle()
    assert DESK.begun == ["ada:0"] * 4 + ["ada:1"]
    [dead] = open_dead_tasks().fetch()
    assert "gave up after 4 failures" in dead.reason


def test_a_key_keeps_its_rate(world: World) -> None:
    times: list[float] = []
    DESK.before = lambda name: times.append(world.clock.time_s)
    send(world.clients, PACED, "ada", *range(5))
    world.settle()
    assert sorted(DESK.of("ada")) == ["0", "1", "2", "3", "4"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= 0.499 for pause in pauses), pauses
    assert sum(pauses) < 3


def test_a_hint_that_is_lost_is_made_good_by_the_sweep(world: World) -> None:
    send(world.clients, IN_ORDER, "ada", 0, 1)
    send(world.clients, IN_ORDER, "bob", 0)
    world.engine.purge_queue(world.engine.place.queue_name("default"))
    world.clock.sleep(61)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.of("ada") == ["0", "1"]
    assert DESK.of("bob") == ["0"]


def test_bad_keys_and_options_are_refused_and_nothing_waits(world: World) -> None:
    with pytest.raises(BadLaneError):
        IN_ORDER("")
    with pytest.raises(BadLaneError):
        IN_ORDER("x" * 300)
    with pytest.raises(BadLaneError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=IN_ORDER("ada"), delay_s=5)
    with pytest.raises(BadLaneError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=IN_ORDER("ada"), name=["a"])
    other = type(IN_ORDER)("test-unregistered")
    with pytest.raises(UnknownTaskError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=other("ada"))
    assert LaneTask.query().fetch() == []


def test_keys_may_have_any_characters(world: World) -> None:
    for key in ("auth0|7", "~", "a~b", "é ü", "a|", "x/y"):
        send(world.clients, IN_ORDER, key, 0, 1)
    world.settle()
    for key in ("auth0|7", "~", "a~b", "é ü", "a|", "x/y"):
        assert DESK.of(key) == ["0", "1"]
