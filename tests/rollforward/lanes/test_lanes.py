"""Lanes: the order of a key, its limit, its rate, and what becomes of tasks that fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.lanes import BadLaneError, Lane, Rate, debounced, throttled
from rollforward.lanes.rows.entities import LaneState, LaneTask, quoted
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import (
    MAX_DELAY_S,
    BadArgumentsError,
    Reject,
    Retry,
    UnknownTaskError,
)
from tests.infra.faults.partly_done import run_again
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.lanes.office import (
    BLOCKING,
    DESK,
    IN_ORDER,
    PACED,
    SHARED,
    SWEEP,
    LaneLetter,
    send,
    write,
)

DAY_S = 24 * 3600


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


@pytest.mark.fast
@one_emulator
def test_a_transaction_whose_body_is_a_tasklet_adds_its_tasks(world: World) -> None:
    """What a hook writes last is written once the tasklet has run to its end."""

    @ndb.tasklet  # type: ignore[untyped-decorator]
    def body() -> Any:
        letter: Any = yield LaneLetter.get_or_insert_async("seal", person="bob")
        outbox.enqueue(world.clients, write, write.bind("ada", "1"), lane=IN_ORDER("ada"))
        letter.person = "ada"
        yield letter.put_async()
        return letter.person

    assert transact(body) == "ada"
    world.settle()
    assert DESK.of("ada") == ["1"]


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
    assert dead.reason.startswith("gave up after 4 failures: ValueError: broken\n")


def test_a_long_reason_of_a_task_that_is_tried_again_keeps_the_error_that_ends_it(
    world: World,
) -> None:
    world.fails_fast = False

    def fail(name: str) -> None:
        raise ValueError("the printer " + "x" * 5_000 + " is broken")

    DESK.before = fail
    send(world.clients, IN_ORDER, "ada", 0)
    world.deliver_due()
    [task] = LaneTask.query().fetch()
    assert "ValueError: the printer " in task.reason[:100]
    assert task.reason.rstrip().endswith(" is broken")


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


@pytest.mark.parametrize("letter", ["x", "~", "é", "\N{GRINNING FACE}"])
def test_a_key_of_a_lane_is_as_long_as_its_quoted_form(letter: str) -> None:
    """Limit `key-name`, 1,500 bytes: that form is in names, and a letter makes up to 12 of it."""
    most = 200 // len(quoted(letter))
    assert IN_ORDER(letter * most).key == letter * most
    with pytest.raises(BadLaneError, match="1 to 200 bytes, quoted"):
        IN_ORDER(letter * (most + 1))


def test_bad_keys_and_options_are_refused_and_nothing_waits(world: World) -> None:
    with pytest.raises(BadLaneError):
        IN_ORDER("")
    with pytest.raises(BadLaneError):
        IN_ORDER("x" * 300)
    with pytest.raises(BadLaneError, match="unpaired surrogate"):
        IN_ORDER("x\ud800")
    for key in (None, ("ada", 1), 1.5):  # All of whom nothing is known would wait in one line.
        with pytest.raises(BadLaneError, match="must be a text or a number, got"):
            IN_ORDER(key)  # type: ignore[arg-type]
    with pytest.raises(BadLaneError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=IN_ORDER("ada"), delay_s=5)
    with pytest.raises(BadLaneError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=IN_ORDER("ada"), name=["a"])
    other = type(IN_ORDER)("test-unregistered")
    with pytest.raises(UnknownTaskError):
        write.enqueue(world.clients, write.bind("ada", "0"), lane=other("ada"))
    for delay_s in (11 * 366 * DAY_S, math.inf, math.nan):
        with pytest.raises(BadArgumentsError, match=r"due within 3660 days|a number of seconds"):
            write.enqueue(
                *(world.clients, write.bind("ada", "0")), lane=SHARED("ada"), delay_s=delay_s
            )
    assert LaneTask.query().fetch() == []


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Rate(0),
        lambda: Rate(math.nan),
        lambda: Rate(math.inf),
        lambda: Rate(1e308, per_s=1e-308),
        lambda: Rate(1, per_s=367 * DAY_S),
        lambda: Rate(1, burst=0),
        lambda: Lane("bad", limit=51),
        lambda: Lane("bad", limit=2.5),  # type: ignore[arg-type]
        lambda: Lane("bad", rate=10),  # type: ignore[arg-type]
        lambda: Lane("bad", weight=math.nan),
        lambda: Lane("bad", deadline_s=5),
        lambda: debounced("bad", wait_s=8 * DAY_S),
        lambda: throttled("bad", every_s=math.nan),
    ],
)
def test_settings_that_no_lane_can_keep_are_refused_where_they_are_made(
    declare: Callable[[], object],
) -> None:
    with pytest.raises(ValueError, match=r"must be .*, got "):
        declare()


@one_emulator
def test_a_task_is_due_in_more_days_than_cloud_tasks_takes(world: World) -> None:
    """K5, K6: the sweep finds it, and in a lane there is no hint for it before."""
    write.enqueue(
        *(world.clients, write.bind("ada", "late")), lane=SHARED("ada"), delay_s=40 * DAY_S
    )
    assert world.live_tasks("default") == []
    for wait_s, begun in ((40 * DAY_S - 60, []), (120, ["ada:late"])):
        world.clock.sleep(wait_s)
        world.sweep(SWEEP)
        world.settle()
        assert DESK.begun == begun


@one_emulator
@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_task_may_wait_for_as_long_as_a_task_can_ask(world: World, lane: Lane) -> None:
    """K3, K6: thirty days; a time beyond them is an error of the task, which says so."""
    world.fails_fast = False

    def wait(name: str) -> None:
        if DESK.begun == ["ada:0"]:
            raise Retry("not yet", after_s=MAX_DELAY_S)
        if DESK.begun.count("ada:0") == 2 and name == "ada:0":
            raise Retry("never", after_s=MAX_DELAY_S + 1)

    DESK.before = wait
    send(world.clients, lane, "ada", 0)
    world.settle()
    world.clock.sleep(MAX_DELAY_S - 60)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.begun == ["ada:0"]
    send(world.clients, lane, "ada", 1)
    world.clock.sleep(120)
    world.sweep(SWEEP)
    world.deliver_due()
    [task] = LaneTask.query().fetch()[:1]
    assert "after_s must be 0 to 2592000 seconds" in task.reason
    world.settle()
    assert DESK.of("ada") == (["0", "1"] if lane.order else ["1", "0"])


def test_keys_may_have_any_characters(world: World) -> None:
    for key in ("auth0|7", "~", "a~b", "é ü", "a|", "x/y"):
        send(world.clients, IN_ORDER, key, 0, 1)
    world.settle()
    for key in ("auth0|7", "~", "a~b", "é ü", "a|", "x/y"):
        assert DESK.of(key) == ["0", "1"]


@pytest.mark.parametrize("size", [1, 400_000])
@one_emulator
def test_a_second_run_that_finds_a_part_done_adds_the_rest_once(world: World, size: int) -> None:
    """B6: and each task has its own arguments, however large."""
    texts = [letter * size for letter in "abcc"]
    run_again(world, *[adding(world, IN_ORDER, text) for text in texts])
    world.settle()
    assert DESK.of("ada") == texts


@one_emulator
def test_what_a_second_run_adds_alone_is_behind_what_the_first_one_has_added(world: World) -> None:
    """B6, K1: the first one was committed."""
    first, *others = [adding(world, IN_ORDER, text) for text in ("9", "1", "2")]
    run_again(world, first, *others, then=True)
    world.settle()
    assert DESK.of("ada") == ["9", "1", "2"]


def adding(world: World, lane: Lane, text: str) -> Callable[[], None]:
    """Return a part of a transaction that adds a letter."""
    return lambda: outbox.enqueue(world.clients, write, write.bind("ada", text), lane=lane("ada"))
