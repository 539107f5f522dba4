"""Keys paused, resumed and drained, and dead tasks that go back into their key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from rollforward.datastore import transact
from rollforward.lanes import Lane, listing, reading
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.reading import backlog_of, cached_oldest, note_oldest
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.runs import claims, delivery
from rollforward.lanes.runs.delivery import deliver
from rollforward.operations import (
    UnknownDeadTaskError,
    delete_dead_task,
    replay_dead_task,
    start_bulk,
)
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.dead_tasks import ReplayDeadTask
from rollforward.tasks.errors import Reject
from tests.infra.world import World
from tests.rollforward.lanes.office import (
    BLOCKING,
    DESK,
    IN_ORDER,
    LANES,
    PACED,
    SWEEP,
    send,
    write,
)


def refuse(*names: str) -> Callable[[str], None]:
    """Return what refuses some letters."""

    def before(name: str) -> None:
        if name in names:
            raise Reject("no such address")

    return before


def block(world: World) -> str:
    """Let a dead task block Ada's key, behind which two letters wait; return its id."""
    DESK.before = refuse("ada:0")
    send(world.clients, BLOCKING, "ada", 0, 1, 2)
    world.settle()
    DESK.before = lambda name: None
    [dead] = open_dead_tasks().fetch()
    assert BLOCKING("ada").state().blocked_by == dead.key.id()
    return str(dead.key.id())


def test_a_paused_key_begins_nothing_until_it_is_resumed(world: World) -> None:
    """Other keys go on, and neither hints nor sweeps begin it."""
    IN_ORDER("ada").pause(world.clients)
    IN_ORDER("ada").pause(world.clients)
    send(world.clients, IN_ORDER, "ada", 0, 1)
    send(world.clients, IN_ORDER, "bob", 0)
    world.settle()
    world.clock.sleep(120)
    world.sweep(SWEEP)
    world.settle()
    assert DESK.written == ["bob:0"]
    assert IN_ORDER("ada").state().is_paused

    IN_ORDER("ada").resume(world.clients)
    IN_ORDER("ada").resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["0", "1"]
    assert not IN_ORDER("ada").state().is_paused


@pytest.mark.parametrize("lane", [IN_ORDER, BLOCKING], ids=["paused", "blocked"])
def test_a_delivery_that_watches_begins_nothing_of_a_key_that_rests(
    world: World, lane: Lane
) -> None:
    """A hint of the sweep, or one that comes again, may be on its way when the key is stopped."""
    if lane is BLOCKING:
        block(world)
    else:
        send(world.clients, lane, "ada", 1, 2)
        lane("ada").pause(world.clients)
    deliver(lane, world.clients, LaneArgs(f"{lane.name}|ada", is_check=True))
    assert DESK.written == []
    assert lane("ada").state().waiting == 2


def test_a_pause_that_comes_while_a_delivery_sees_no_task_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10: a state is deleted only if nothing has changed since no task was seen."""
    LaneState(key=state_key("test-in-order|ada"), stamp="s").put()
    plan_of = claims._plan

    def plan(*args: object) -> object:
        result = plan_of(*args)  # type: ignore[arg-type]
        IN_ORDER("ada").pause(world.clients)
        return result

    monkeypatch.setattr(claims, "_plan", plan)
    deliver(IN_ORDER, world.clients, LaneArgs("test-in-order|ada"))
    assert IN_ORDER("ada").state().is_paused


def test_no_key_is_changed_within_a_transaction(world: World) -> None:
    """The change would not be part of it."""
    for change in (IN_ORDER("ada").pause, IN_ORDER("ada").drain):
        send(world.clients, IN_ORDER, "ada", 0)
        with pytest.raises(NotImplementedError, match="nested"):
            transact(lambda: change(world.clients))  # noqa: B023
    world.settle()
    assert DESK.of("ada") == ["0", "0"]


def test_a_key_that_was_resumed_leaves_nothing(world: World) -> None:
    """Its state expires, as that of any key without work."""
    IN_ORDER("ada").pause(world.clients)
    IN_ORDER("ada").resume(world.clients)
    world.settle()
    world.clock.sleep(25 * 3600)
    world.sweep(SWEEP)
    assert LaneState.query().fetch() == []


def test_a_blocked_key_goes_on_without_its_dead_task_when_it_is_resumed(world: World) -> None:
    """The dead task stays, and a later replay of it waits behind the others."""
    dead_id = block(world)
    BLOCKING("ada").resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["1", "2"]

    send(world.clients, BLOCKING, "ada", 3)
    replay_dead_task(world.clients, dead_id)
    world.settle()
    assert DESK.of("ada") == ["1", "2", "3", "0"]


def test_a_replay_of_the_task_that_blocks_runs_first_and_unblocks(world: World) -> None:
    """Once, however often it is asked for."""
    dead_id = block(world)
    replay_dead_task(world.clients, dead_id)
    replay_dead_task(world.clients, dead_id)
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2"]
    assert LaneTask.query().fetch() == open_dead_tasks().fetch() == []


def test_a_replay_that_dies_again_blocks_again(world: World) -> None:
    """By a dead task of its own, which can be replayed in its turn."""
    first_id = block(world)
    DESK.before = refuse("ada:0")
    replay_dead_task(world.clients, first_id)
    world.settle()
    [dead] = open_dead_tasks().fetch()
    assert dead.key.id() != first_id
    assert DESK.written == []

    DESK.before = lambda name: None
    replay_dead_task(world.clients, dead.key.id())
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2"]


@pytest.mark.parametrize("fault", ["", "reply-lost:UNAVAILABLE"])
def test_a_dead_task_that_is_deleted_lets_the_next_one_pass(world: World, fault: str) -> None:
    """What it was to do is not done; and no sweep is waited for, if a reply was lost."""
    dead_id = block(world)
    with world.plan.watched():
        world.plan.reset()
        if fault:
            world.plan.break_next("Commit", fault)
        delete_dead_task(world.clients, dead_id)
    assert world.plan.pending == []
    for gone in (dead_id, "\ud800"):
        with pytest.raises(UnknownDeadTaskError):
            delete_dead_task(world.clients, gone)
    world.settle()
    assert DESK.of("ada") == ["1", "2"]


def test_a_bulk_replay_and_the_task_that_replays_go_back_into_the_lane(world: World) -> None:
    """The same way as a replay by hand."""
    dead_id = block(world)
    start_bulk(world.clients, "replay", run_id="r1")
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2"]

    DESK.__init__()  # type: ignore[misc]
    dead_id = block(world)
    replay = world.registry.tasks["/tasks/dead/replay"]
    replay.enqueue(world.clients, ReplayDeadTask(dead_id))
    world.settle()
    assert DESK.of("ada") == ["0", "1", "2"]


def test_a_drain_deletes_what_waits_and_counts_it(world: World) -> None:
    """In parts, and nothing of another key."""
    IN_ORDER("ada").pause(world.clients)
    many = [write.bind("ada", str(number)) for number in range(130)]
    write.enqueue_many(world.clients, many, lane=IN_ORDER("ada"))
    send(world.clients, IN_ORDER, "bob", 0)

    part = IN_ORDER("ada").drain(world.clients, limit=10)
    rest = IN_ORDER("ada").drain(world.clients)
    again = IN_ORDER("ada").drain(world.clients)

    assert (part.deleted, part.has_more) == (10, True)
    assert (rest.deleted, rest.has_more) == (120, False)
    assert (again.deleted, again.has_more) == (0, False)
    IN_ORDER("ada").resume(world.clients)
    world.settle()
    assert DESK.written == ["bob:0"]


def test_a_drain_leaves_what_is_at_work_and_says_so(world: World) -> None:
    """A claimed task ends by itself, and one that was not claimed never begins."""
    drained = []

    def drain(name: str) -> None:
        if name == "ada:0":
            send(world.clients, IN_ORDER, "ada", "later")
            drained.append(IN_ORDER("ada").drain(world.clients))

    DESK.before = drain
    send(world.clients, IN_ORDER, "ada", 0, 1)
    world.settle()

    [answer] = drained
    assert (answer.deleted, answer.at_work, answer.has_more) == (1, 2, False)
    assert DESK.of("ada") == ["0", "1"]


def test_a_delivery_that_has_read_tasks_cannot_claim_what_was_drained(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can one that has read them before another delivery's whole turn."""
    plan_of = claims._plan
    planned: list[str] = []

    def plan(*args: object) -> object:
        result = plan_of(*args)  # type: ignore[arg-type]
        planned.append("x")
        if len(planned) == 1:
            IN_ORDER("ada").drain(world.clients)
        return result

    monkeypatch.setattr(claims, "_plan", plan)
    send(world.clients, IN_ORDER, "ada", 0, 1)
    world.settle()
    assert DESK.written == []


def test_a_turn_that_was_read_before_another_whole_turn_is_not_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is missing before and after that turn, and looks the same."""
    plan_of = claims._plan
    planned: list[str] = []

    def plan(*args: object) -> object:
        result = plan_of(*args)  # type: ignore[arg-type]
        planned.append("x")
        if len(planned) == 1:
            IN_ORDER.task.enqueue(world.clients, IN_ORDER.task.args("test-in-order|ada"))
            world.settle()
        return result

    send(world.clients, IN_ORDER, "ada", 0, 1)
    monkeypatch.setattr(claims, "_plan", plan)
    world.settle()
    assert DESK.begun == ["ada:0", "ada:1"]


def test_keys_are_listed_by_pages_at_a_bounded_cost(world: World) -> None:
    """A hot key costs as much as 100 of its tasks."""
    for key in ("ada", "bob", "eve", "a|b ~"):
        IN_ORDER(key).pause(world.clients)
        many = [write.bind(key, str(number)) for number in range(250 if key == "bob" else 2)]
        write.enqueue_many(world.clients, many, lane=IN_ORDER(key))

    first = IN_ORDER.keys(limit=3)
    second = IN_ORDER.keys(start_after=first.next_after or "", limit=3)

    keys = [*first.keys, *second.keys]
    assert {state.key: state.waiting for state in keys} == {
        "a|b ~": 2,
        "ada": 2,
        "bob": 100,
        "eve": 2,
    }
    assert second.next_after is None
    assert all(state.is_paused for state in keys)
    assert IN_ORDER("bob").state().waiting == 250
    resting = [state.key for state in IN_ORDER.resting().keys]
    assert set(resting) == {"a|b ~", "ada", "bob", "eve"}


def test_a_backlog_has_the_oldest_task_that_should_run(world: World) -> None:
    """Keys that rest are counted for themselves."""
    send(world.clients, IN_ORDER, "ada", 0)
    IN_ORDER("ada").pause(world.clients)
    world.clock.sleep(100)
    send(world.clients, IN_ORDER, "bob", 0)
    world.clock.sleep(10)
    backlog = backlog_of(world.clients, IN_ORDER)
    assert (backlog.waiting, backlog.paused, backlog.blocked) == (2, 1, 0)
    assert 10 <= backlog.oldest_s < 100


def test_a_key_knows_about_how_long_its_tasks_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim takes as many as fit into a turn by this: the mean of those that it has begun."""
    states: list[LaneState | None] = []

    def take_100_ms(name: str) -> None:
        world.clock.sleep(0.1)
        states.append(state_key(IN_ORDER("ada").id).get())

    monkeypatch.setattr(claims, "time", SimpleNamespace(monotonic=lambda: world.clock.time_s))
    monkeypatch.setattr(
        delivery, "Holder", partial(claims.Holder, monotonic=lambda: world.clock.time_s)
    )
    send(world.clients, IN_ORDER, "ada", *range(12))
    DESK.before = take_100_ms
    world.settle()
    DESK.before = lambda name: None

    paces_ms = {state.pace_ms for state in states if state is not None and state.pace_ms}
    assert paces_ms == {100}


def test_the_page_of_a_paced_key_says_when_its_next_task_may_begin(world: World) -> None:
    """Two a second, one at once: half a second after the last one."""
    send(world.clients, PACED, "ada", 0)
    world.deliver_due()
    began = world.clock.now()
    next_at = listing.next_at(world.clients, PACED("ada"))

    assert next_at is not None
    assert 0 < (next_at - began).total_seconds() <= 0.5
    world.clock.sleep(1)
    assert listing.next_at(world.clients, PACED("ada")) is None


def test_a_long_backlog_is_as_old_as_the_oldest_of_some_keys_behind_its_first_ids(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K9: a gauge reads so many ids, and then the first task of each further key."""
    for key in ("dan", "cleo", "bob", "ada"):
        send(world.clients, IN_ORDER, key, 0, 1)
        world.clock.sleep(10)
    monkeypatch.setattr(reading, "MAX_BACKLOG", 3)
    ages_s = []
    for hops in (0, 1, 2, 3):
        monkeypatch.setattr(reading, "MAX_HOPS", hops)
        ages_s.append(round(backlog_of(world.clients, IN_ORDER).oldest_s))

    assert ages_s == [20, 30, 40, 40]  # Ada and Bob; and Cleo; and Dan.
    assert backlog_of(world.clients, IN_ORDER).waiting == 3


def test_the_oldest_task_that_sweeps_have_seen_is_known_while_it_waits(world: World) -> None:
    """K9: a backlog beyond what a gauge reads is as old as that; each sweep sees a part of it."""
    tasks = []
    for key in ("ada", "bob"):
        send(world.clients, IN_ORDER, key, 0)
        world.clock.sleep(10)
        [task] = [row.key for row in LaneTask.query() if row.key not in tasks]
        tasks.append(task)
    oldest, younger = (task.id() for task in tasks)
    known = []
    for seen in (younger, oldest, younger):
        note_oldest(world.clients, IN_ORDER.name, seen)
        known.append(cached_oldest(world.clients, IN_ORDER.name))
    assert known == [younger, oldest, oldest]
    tasks[0].delete()
    assert cached_oldest(world.clients, IN_ORDER.name) is None


def test_a_dead_task_of_a_lane_that_is_gone_is_refused(world: World) -> None:
    """Its order and its limit would be lost."""
    dead_id = block(world)
    LANES.remove(BLOCKING)
    try:
        other = World(world.services, lanes=LANES, tasks=[write])
    finally:
        LANES.insert(1, BLOCKING)
    paths = other.registry.tasks
    assert "/tasks/lanes/test-blocking" not in paths
    world.clients.__dict__["task_paths"] = paths
    with pytest.raises(Exception, match="no lane is declared for test-blocking"):
        replay_dead_task(world.clients, dead_id)
    assert transact(lambda: BLOCKING("ada").state().blocked_by) == dead_id
