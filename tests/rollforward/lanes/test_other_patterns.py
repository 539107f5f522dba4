"""Tasks of other patterns in lanes: members of batches, steps of flows, cancellable ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import rollforward as rf
from rollforward import outbox
from rollforward.batches import TaskBatch
from rollforward.batches.adding import creation, populate
from rollforward.batches.errors import BadWorkError, UnknownBatchError
from rollforward.datastore.partitions import PARTITIONS
from rollforward.flows import Steps, flow
from rollforward.flows.errors import UnknownFlowError
from rollforward.lanes import Lane
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.operations import delete_dead_task, replay_dead_task
from rollforward.outbox.cancellable import enqueue_cancellable, enqueue_tracked, tracked_handle
from rollforward.runtime.process.current import use_clients
from rollforward.schedules import UserSchedules, schedule
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import BadArgumentsError, Reject, UnknownTaskError
from rollforward.tasks.stored.cancellation import cancel
from rollforward.tasks.stored.entities import (
    CANCELLED,
    GIVEN_UP,
    WAITING,
    CancellableTask,
    handle_key,
)
from rollforward.tasks.stored.sweep import EXPIRED
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World
from tests.rollforward.lanes.office import (
    BLOCKING,
    DESK,
    IN_ORDER,
    LANES,
    PARCEL,
    SHARED,
    send,
    write,
)

LETTERS = TaskBatch("test-lane-letters", members=[write])


@flow("test-lane-flow", members=[write])
def post(step: Steps, person: str) -> Any:
    """Write two letters by a commit, and two by a batch."""
    step.commit("first", _enqueue_two, person)
    members = [(write, write.bind(person, text), IN_ORDER(person)) for text in ("2", "3")]
    return step.batch("letters", members).done


def _enqueue_two(person: str) -> None:
    for text in ("0", "1"):
        rf.enqueue(write, write.bind(person, text), lane=IN_ORDER(person))


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """The app with lanes, a batch and a flow, and the context of a request open."""
    DESK.__init__()  # type: ignore[misc]
    world = World(services, lanes=LANES, tasks=[write, PARCEL], batches=[LETTERS], flows=[post])
    with world.clients.context():
        yield world


def members(person: str, count: int) -> list[Any]:
    return [(write, write.bind(person, str(number)), IN_ORDER(person)) for number in range(count)]


BAD_LANES: dict[str, Any] = {
    "task": lambda lane: write.enqueue(write.bind("ada", "0"), lane=lane),
    "tasks": lambda lane: write.enqueue_many([write.bind("ada", "0")], lane=lane),
    "outbox": lambda lane: rf.transact(
        lambda: rf.enqueue(write, write.bind("ada", "0"), lane=lane)
    ),
    "cancellable": lambda lane: enqueue_cancellable(write, write.bind("ada", "0"), lane=lane),
    "batch": lambda lane: LETTERS.populate(
        rf.clients(), "b1", [(write, write.bind("ada", "0"), lane)]
    ),
    "schedule": lambda lane: schedule("* * * * *", lane=lane),
    "schedules": lambda lane: UserSchedules("bad", write, lane=lambda id_: lane).put(
        "ada", "0 8 * * *", write.bind("ada", "0")
    ),
}


@one_emulator
@pytest.mark.parametrize("call", BAD_LANES)
@pytest.mark.parametrize("lane", [SHARED, "ada"])
def test_a_lane_without_its_key_is_refused_and_nothing_is_stored(
    world: World, call: str, lane: Any
) -> None:
    with (
        use_clients(world.clients),
        pytest.raises(BadArgumentsError, match=r'a lane, as .*\("ada"\)'),
    ):
        BAD_LANES[call](lane)

    assert ndb.Query().fetch(keys_only=True) == []


def test_members_of_a_batch_run_in_their_order_and_complete_it(world: World) -> None:
    """Keys side by side, and a member without a lane; one that fails is counted as failed."""

    def refuse(name: str) -> None:
        if name == "ada:3":
            raise Reject("no such address")

    DESK.before = refuse
    many = [*members("ada", 6), *members("bob", 4), (write, write.bind("eve", "alone"))]
    assert LETTERS.populate(world.clients, "b1", many, seal=True) == 11
    world.settle(patience_s=120)

    progress = LETTERS.progress("b1")
    assert (progress.outcome, progress.done, progress.failed) == ("failed", 10, 1)
    assert DESK.of("ada") == ["0", "1", "2", "4", "5"]
    assert DESK.of("bob") == ["0", "1", "2", "3"]
    assert DESK.of("eve") == ["alone"]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_members_of_all_pages_run_in_the_order_of_their_addition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member has its place by all members before it, not by those of its own page."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 2)
    IN_ORDER("ada").pause(world.clients)
    LETTERS.populate(world.clients, "b9", members("ada", 5), seal=True)
    world.settle(patience_s=120)
    IN_ORDER("ada").resume(world.clients)
    world.settle(patience_s=120)

    assert DESK.of("ada") == ["0", "1", "2", "3", "4"]


def test_a_member_waits_behind_what_came_before_its_addition(world: World) -> None:
    """However old its batch is, and although all of its tasks are created later."""
    IN_ORDER("ada").pause(world.clients)
    for number, text in enumerate(("first", "between", "last")):
        if text == "between":
            send(world.clients, IN_ORDER, "ada", text)
        else:
            member = (write, write.bind("ada", text), IN_ORDER("ada"))
            LETTERS.populate(world.clients, "b5", [member], idempotency_key=str(number))
        world.clock.sleep(10)
    world.settle(patience_s=120)
    IN_ORDER("ada").resume(world.clients)
    world.settle(patience_s=120)

    assert DESK.of("ada") == ["first", "between", "last"]


def test_a_walk_that_is_repeated_adds_no_member_twice(world: World) -> None:
    """Nor does the sweep of a batch whose members wait for long."""
    IN_ORDER("ada").pause(world.clients)
    LETTERS.populate(world.clients, "b2", members("ada", 3), seal=True)
    world.settle()
    walk = creation.Create("test-lane-letters:b2", "test-lane-letters:b2", 1)
    creation.create.enqueue(world.clients, walk)
    world.settle()
    for _ in range(3):
        world.clock.sleep(3600)
        world.sweep()
        world.settle()
    assert len(LaneTask.query().fetch()) == 3

    IN_ORDER("ada").resume(world.clients)
    world.settle(patience_s=120)
    assert LETTERS.progress("b2").done == 3
    assert DESK.of("ada") == ["0", "1", "2"]


def test_members_that_were_drained_are_created_anew(world: World) -> None:
    """As those whose tasks were purged."""
    IN_ORDER("ada").pause(world.clients)
    LETTERS.populate(world.clients, "b3", members("ada", 3), seal=True)
    world.settle()
    assert IN_ORDER("ada").drain(world.clients).deleted == 3
    IN_ORDER("ada").resume(world.clients)
    world.clock.sleep(3600)
    world.sweep()
    world.settle(patience_s=120)
    assert LETTERS.progress("b3").done == 3


def test_a_member_in_a_lane_that_the_app_does_not_declare_is_refused(world: World) -> None:
    """And nothing is added."""
    other = rf.Lane("test-nowhere")
    with pytest.raises(BadWorkError, match="declares no lane"):
        LETTERS.populate(world.clients, "b4", [(write, write.bind("ada", "0"), other("ada"))])
    with pytest.raises(UnknownBatchError):
        LETTERS.progress("b4")


def test_a_cancelled_batch_runs_no_member_that_waits(world: World) -> None:
    """Their rows go when their turn comes."""
    IN_ORDER("ada").pause(world.clients)
    LETTERS.populate(world.clients, "b5", members("ada", 3), seal=True)
    world.settle()
    LETTERS.cancel(world.clients, "b5")
    IN_ORDER("ada").resume(world.clients)
    world.settle(patience_s=120)
    assert DESK.written == []
    assert LaneTask.query().fetch() == []


def test_a_flow_enqueues_into_a_lane_and_waits_for_members_there(world: World) -> None:
    """The letters of its commit come before those of its batch."""
    post.start(world.clients, "f1", "ada")
    world.settle(patience_s=240)
    assert post.state("f1").result == 2
    assert DESK.of("ada") == ["0", "1", "2", "3"]


def test_a_flow_in_a_lane_that_the_app_does_not_declare_is_not_started(world: World) -> None:
    """Its start says what to add."""
    nowhere = rf.Lane("test-nowhere")
    with pytest.raises(UnknownTaskError, match=r"'test-nowhere' is in no registry.*add the lane"):
        post.start_in(world.clients, nowhere("ada"), "f2", "ada")
    with pytest.raises(UnknownFlowError):
        post.state("f2")


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_task_that_waits_in_a_lane_is_cancelled_until_it_begins(
    world: World, *, is_in_transaction: bool
) -> None:
    """A second call of its name enqueues nothing."""

    def enqueue(text: str, *name: str) -> str:
        call = write.bind("ada", text)
        lane = SHARED("ada")
        return enqueue_cancellable(world.clients, write, call, name=name or None, lane=lane)

    def begin() -> list[str]:
        return [enqueue("0"), enqueue("1", "n"), enqueue("2")]

    SHARED("ada").pause(world.clients)
    handles = rf.transact(begin) if is_in_transaction else begin()
    assert enqueue("1", "n") == handles[1]
    assert cancel(handles[0])
    SHARED("ada").resume(world.clients)
    world.settle()
    assert sorted(DESK.of("ada")) == ["1", "2"]
    assert not cancel(handles[2])
    assert LaneTask.query().fetch() == []


def pass_days(world: World, days: int) -> None:
    """Let days pass, and delete what has expired in each partition."""
    world.clock.sleep(days * 24 * 3600)
    for partition in PARTITIONS:
        EXPIRED.delete_page(world.clients, partition)


def test_a_cancelled_task_does_not_run_however_long_its_key_was_paused(world: World) -> None:
    """Its handle stays until its turn, and then says for 32 days that it was cancelled."""

    def enqueue(text: str, *name: str) -> str:
        call, lane = write.bind("ada", text), SHARED("ada")
        return enqueue_cancellable(world.clients, write, call, name=name or None, lane=lane)

    SHARED("ada").pause(world.clients)
    handles = [enqueue("0"), enqueue("1", "once"), enqueue("2")]
    assert cancel(handles[0])
    for _ in range(2):
        pass_days(world, 40)
        world.sweep("/cron/lanes/sweep")
    assert cancel(handles[2])
    SHARED("ada").resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["1"]
    assert [cancel(handle) for handle in handles] == [True, False, True]
    assert {row.key.id() for row in CancellableTask.query().fetch()} == set(handles)
    pass_days(world, 40)
    assert CancellableTask.query().fetch() == []


def test_the_name_of_a_task_that_is_given_up_is_free_after_32_days(world: World) -> None:
    """Its handler takes it back, so no dead task keeps the row."""
    name, lane = ("parcel",), SHARED("ada")

    def enqueue() -> str:
        return enqueue_cancellable(world.clients, PARCEL, PARCEL.bind("ada"), name=name, lane=lane)

    enqueue()
    world.settle()
    assert (DESK.written, DESK.begun) == (["return"], ["ada:parcel"])
    pass_days(world, 40)
    assert CancellableTask.query().fetch() == []
    enqueue()
    world.settle()
    assert DESK.written == ["return", "return"]


def test_a_drained_task_leaves_no_handle_for_ever(world: World) -> None:
    SHARED("ada").pause(world.clients)
    enqueue_cancellable(world.clients, write, write.bind("ada", "0"), lane=SHARED("ada"))
    assert SHARED("ada").drain(world.clients).deleted == 1
    pass_days(world, 40)
    assert CancellableTask.query().fetch() == []


def handle_of(world: World, task: Any, args: Any, *, lane: Lane = SHARED) -> Any:
    """Return the row of a tracked task in a lane, whose key has just been settled; None: gone."""
    rf.transact(lambda: enqueue_tracked(world.clients, task, args, name=("n",), lane=lane("ada")))
    world.settle()
    return handle_key(tracked_handle(task.path, ("n",))).get()


def waiting_for_months(world: World, task: Any, args: Any, *, lane: Lane = SHARED) -> Any:
    """Return the row of a tracked task whose key has been paused for longer than a row lasts."""
    lane("ada").pause(world.clients)
    row = handle_of(world, task, args, lane=lane)
    for _ in range(2):
        pass_days(world, 40)
    row = row.key.get()
    assert row is not None
    assert row.state == WAITING
    return row


def test_the_row_of_a_tracked_task_goes_when_it_has_ended(world: World) -> None:
    assert handle_of(world, write, write.bind("ada", "0")) is None
    assert DESK.of("ada") == ["0"]


def test_a_tracked_task_that_its_declaration_gives_up_says_so(world: World) -> None:
    """No dead task keeps it, so its row alone can."""
    row = handle_of(world, PARCEL, PARCEL.bind("ada"))
    assert DESK.written == ["return"]
    assert row is not None
    assert (row.state, row.dead_id) == (GIVEN_UP, None)


def test_a_tracked_task_names_its_dead_task_until_that_is_deleted(world: World) -> None:
    """It may still be replayed, so it waits."""

    def refuse(name: str) -> None:
        raise Reject("no such address")

    DESK.before = refuse
    row = handle_of(world, write, write.bind("ada", "0"))
    [dead] = open_dead_tasks().fetch()
    assert row is not None
    assert (row.state, row.dead_id) == (WAITING, dead.key.id())


def test_a_tracked_task_that_is_drained_is_never_done(world: World) -> None:
    SHARED("ada").pause(world.clients)
    row = handle_of(world, write, write.bind("ada", "0"))
    assert row is not None
    assert row.state == WAITING
    assert SHARED("ada").drain(world.clients).deleted == 1
    assert row.key.get().state == CANCELLED


@one_emulator
def test_the_row_of_a_tracked_task_stays_for_as_long_as_it_waits(world: World) -> None:
    """K7: and it goes when the task has ended, which has its effect once."""
    row = waiting_for_months(world, write, write.bind("ada", "0"))
    SHARED("ada").resume(world.clients)
    world.settle()
    assert DESK.of("ada") == ["0"]
    assert row.key.get() is None


@one_emulator
def test_a_tracked_task_that_is_given_up_after_months_says_so_for_32_days(world: World) -> None:
    row = waiting_for_months(world, PARCEL, PARCEL.bind("ada"))
    SHARED("ada").resume(world.clients)
    world.settle()
    pass_days(world, 31)
    assert row.key.get().state == GIVEN_UP
    pass_days(world, 2)
    assert row.key.get() is None


@one_emulator
def test_a_tracked_task_that_is_drained_after_months_says_so_for_32_days(world: World) -> None:
    row = waiting_for_months(world, write, write.bind("ada", "0"))
    assert SHARED("ada").drain(world.clients).deleted == 1
    pass_days(world, 31)
    assert row.key.get().state == CANCELLED
    pass_days(world, 2)
    assert row.key.get() is None


@one_emulator
@pytest.mark.parametrize("lane", [SHARED, BLOCKING], ids=lambda lane: lane.name)
def test_a_tracked_task_names_its_dead_task_for_as_long_as_that_is_open(
    world: World, lane: Lane
) -> None:
    """K7: it may be replayed, or deleted, months later."""

    def refuse(name: str) -> None:
        raise Reject("no such address")

    row = waiting_for_months(world, write, write.bind("ada", "0"), lane=lane)
    DESK.before = refuse
    lane("ada").resume(world.clients)
    world.settle()
    pass_days(world, 40)
    [dead] = open_dead_tasks().fetch()
    row = row.key.get()
    assert (row.state, row.dead_id) == (WAITING, dead.key.id())

    replay_dead_task(world.clients, dead.key.id())
    world.settle()
    pass_days(world, 40)
    [again] = open_dead_tasks().fetch()
    assert row.key.get().dead_id == again.key.id()

    delete_dead_task(world.clients, again.key.id())
    assert row.key.get().state == CANCELLED
    pass_days(world, 33)
    assert row.key.get() is None


def test_the_outbox_and_a_lane_share_a_commit(world: World) -> None:
    """A task beside the lane, and one in it."""

    def body() -> None:
        outbox.enqueue(world.clients, write, write.bind("ada", "0"), lane=IN_ORDER("ada"))
        outbox.enqueue(world.clients, write, write.bind("bob", "0"))

    rf.transact(body)
    send(world.clients, IN_ORDER, "ada", 1)
    world.settle()
    assert DESK.of("ada") == ["0", "1"]
    assert DESK.of("bob") == ["0"]
