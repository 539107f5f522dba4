"""Callbacks of batches: whatever a queue loses, each completion is called back, and once if it is
acknowledged.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from rollforward import outbox
from rollforward.batches import Completed, TaskBatch, callbacks
from rollforward.batches.declaration import message_task
from rollforward.batches.entities import BatchState, state_key
from rollforward.runtime.clock import naive_utc
from rollforward.tasks import Reject, Task, task
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask
from rollforward.testing.world import in_threads
from tests.infra.runs import sampling
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import (
    BEST,
    CALLED,
    NOTES,
    RAN,
    Branch,
    branch,
    deliver_all,
    deliver_next,
    is_acknowledged,
    mend,
    note,
    notes,
    rows_of,
    tell,
    told,
)

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S


def test_a_callback_of_other_arguments_is_refused() -> None:
    """When it is declared: each batch would end in a callback that fails, and a dead task."""

    @task
    def bind_book(batch_id: str) -> None: ...

    with pytest.raises(TypeError, match=r"/tasks/bind-book is called with Completed .*: declare"):
        TaskBatch("books", members=[note], on_complete=bind_book)  # type: ignore[arg-type]


def complete(world: World, batches: TaskBatch, batch_id: str, *labels: str) -> None:
    """Complete a batch whose callback is not delivered yet."""
    with world.context():
        batches.populate(world.clients, batch_id, notes(*labels), seal=True)
    deliver_next(world, "default")
    deliver_all(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    with world.context():
        assert batches.progress(batch_id).is_complete


def complete_empty(world: World, batches: TaskBatch, batch_id: str) -> None:
    with world.context():
        batches.populate(world.clients, batch_id, [], seal=True)


def purge(world: World) -> None:
    world.engine.purge_queue(world.engine.place.queue_name(tell.queue))
    assert not world.live_tasks(tell.queue)


def sweep_in(world: World, seconds: float) -> None:
    """Let cron sweep, twice, in some seconds; deliver what that creates."""
    world.clock.sleep(seconds)
    world.sweep()
    world.sweep()
    world.settle()


def test_a_callback_that_its_queue_lost_is_called_after_an_hour(world: World) -> None:
    """F1: not before, and once; a batch beside it whose callback has run is not called again."""
    complete(world, BEST, "b", "a")
    deliver_all(world, tell.queue)
    complete(world, NOTES, "b", "a", "bad")
    purge(world)
    sweep_in(world, HOUR_S - 10)
    assert CALLED == {"best:b:1": 1}
    sweep_in(world, 20)

    assert CALLED == {"best:b:1": 1, "notes:b:1": 1}
    with world.context():
        assert told(NOTES, "b") == [
            {"outcome": "failed", "members": 2, "done": 1, "failed": 1, "cancelled": 0}
        ]
        assert is_acknowledged(NOTES, "b")
        assert is_acknowledged(BEST, "b")
    for _ in range(3):
        sweep_in(world, 24 * HOUR_S)
    assert set(CALLED.values()) == {1}


@sampling.long
@pytest.mark.parametrize("ran_days", [0, 3])
def test_a_callback_that_is_lost_again_and_again_is_called_ever_more_rarely(
    world: World, ran_days: int
) -> None:
    """F1: until its batch is removed, by the time since its completion, however long it ran."""
    with world.context():
        NOTES.populate(world.clients, "b", [])
    world.clock.sleep(ran_days * 24 * HOUR_S)
    complete_empty(world, NOTES, "b")
    waits = []
    while True:
        purge(world)
        with world.context():
            state = state_key("notes:b").get()
        if state.due is None or state.due > state.remove_at:
            break
        waits.append((state.due - naive_utc(world.clock.now())).total_seconds() / HOUR_S)
        world.clock.sleep(waits[-1] * HOUR_S)
        world.sweep()
        assert len(world.live_tasks(tell.queue)) == 1
    for wait_s in ((state.remove_at - naive_utc(world.clock.now())).total_seconds(), WEEK_S):
        sweep_in(world, wait_s)

    assert waits == [1, 1, 2, 4, 8, 16, 24, 24, 24, 24, 24]
    with world.context():
        assert rows_of("notes:b").total() == 1
        assert state_key("notes:b").get().due is None
    assert not CALLED


def test_a_batch_that_is_kept_for_less_than_an_hour_is_called_before_its_end(
    services: Services,
) -> None:
    """F1: the callback finds the results."""
    results: list[str] = []

    def work(clients: Any, args: Completed) -> None:
        results.extend(member.outcome for member in short.results(args.batch_id))

    short = declared(work, keep=datetime.timedelta(minutes=10))
    world = World(services, batches=[short])
    complete(world, short, "b", "a")
    purge(world)
    sweep_in(world, 301)

    assert results == ["done"]


def test_a_lost_callback_of_a_nested_batch_is_called(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: also when the batch above has ended with it, so that nobody waits for it any more."""
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "_enqueue", lambda *args: None)
        with world.context():
            NOTES.populate(world.clients, "b", [(branch, Branch("t", 2))], seal=True)
        world.settle()
    with world.context():
        [child] = NOTES.nested("b")
        assert NOTES.progress("b").outcome == child.outcome == "succeeded"
    assert not CALLED
    sweep_in(world, HOUR_S + 1)

    assert {"notes:b:1": 1, f"trees:{child.batch_id}:1": 1} == CALLED


def test_a_callback_that_is_delivered_again_does_nothing(world: World) -> None:
    """F1: behind the acknowledgement, also when the batch is removed."""
    complete_empty(world, NOTES, "b")
    [attempt] = [
        world.engine.begin_attempt(due.task_name) for due in world.engine.due() if due.task_name
    ]
    assert [world.answer(attempt), world.answer(attempt)] == [204, 204]
    sweep_in(world, WEEK_S + 1)
    with world.context():
        assert rows_of("notes:b").total() == 1
    assert world.answer(attempt) == 204

    assert CALLED == {"notes:b:1": 1}


def test_a_callback_that_comes_after_the_removal_is_called(world: World) -> None:
    """F1: once; its queue stood still for as long as the batch was kept."""
    complete_empty(world, NOTES, "b")
    world.clock.sleep(WEEK_S + 1)
    world.sweep()
    with world.context():
        assert rows_of("notes:b").total() == 1
    world.doubles = True
    world.settle()

    assert CALLED == {"notes:b:1": 1}


def test_a_callback_whose_batch_is_gone_is_called(world: World) -> None:
    """F1: nothing says that it has run."""
    complete_empty(world, NOTES, "b")
    with world.context():
        state_key("notes:b").delete()
    world.settle()

    assert CALLED == {"notes:b:1": 1}
    with world.context():
        assert state_key("notes:b").get() is None


def test_a_callback_inside_itself_is_acknowledged_once(services: Services) -> None:
    """F1: the outer delivery finds the acknowledgement of the inner one, and changes nothing."""
    rows: list[Any] = []
    answers: list[int | None] = []

    def work(clients: Any, args: Completed) -> None:
        if not rows:
            rows.append(None)
            in_threads(lambda: answers.append(world.answer(world.current)))
            rows.append(state_key("called:b").get())

    batches = declared(work)
    world = World(services, batches=[batches])
    complete_empty(world, batches, "b")
    assert deliver_next(world, tell.queue) == 204

    assert answers == [204]
    [_, inner] = rows
    with world.context():
        assert inner == state_key("called:b").get()
        assert is_acknowledged(batches, "b")


def test_a_callback_may_run_its_batch_again(services: Services) -> None:
    """F1, F3: its acknowledgement is of its own generation, and the next one is swept for."""
    called: list[int] = []

    def work(clients: Any, args: Completed) -> None:
        called.append(args.generation)
        if args.generation == 1:
            mend()
            assert batches.run_again(clients, args.batch_id) == 1

    batches = declared(work)
    world = World(services, batches=[batches])
    RAN.clear()
    complete(world, batches, "b", "bad")
    deliver_all(world, tell.queue)
    with world.context():
        state = state_key("called:b").get()
        assert (state.generation, state.unacked) == (2, {})
        assert state.due is not None
    world.settle()

    assert called == [1, 2]
    assert RAN == {"b/bad": 2}
    with world.context():
        assert is_acknowledged(batches, "b")


@pytest.mark.parametrize("loses", ["the first", "both"])
def test_each_generation_is_called_back(world: World, loses: str) -> None:
    """F1: also one whose callback was lost when the next generation began."""
    complete(world, NOTES, "b", "bad")
    purge(world)
    with world.context():
        mend()
        assert NOTES.run_again(world.clients, "b") == 1
    deliver_next(world, "default")
    deliver_all(world, "fan-out")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    if loses == "both":
        purge(world)
    world.settle()
    assert ("notes:b:2" in CALLED, "notes:b:1" in CALLED) == (loses == "the first", False)
    sweep_in(world, HOUR_S + 1)

    assert CALLED == {"notes:b:1": 1, "notes:b:2": 1}
    with world.context():
        assert [completion["failed"] for completion in told(NOTES, "b")] == [1, 0]
        assert is_acknowledged(NOTES, "b")


def test_a_generation_that_stands_still_does_not_hide_a_lost_callback(world: World) -> None:
    """F1: the sweep that wakes its members calls back, too."""
    complete(world, NOTES, "b", "bad")
    purge(world)
    with world.context():
        NOTES.run_again(world.clients, "b")
    world.engine.reset("")
    with world.context():
        world.clock.sleep(HOUR_S)
        state = state_key("notes:b").get()
        assert state.state == "running"
    world.sweep("/cron/batches/sweep")
    deliver_all(world, tell.queue)

    assert CALLED["notes:b:1"] == 1


def test_a_callback_that_fails_for_good_is_a_dead_task_that_can_be_replayed(world: World) -> None:
    """F1, H1: one, however long the sweep goes on; replayed, it is the callback itself."""
    complete_empty(world, NOTES, "fails")
    for _ in range(3):
        sweep_in(world, 24 * HOUR_S)
    with world.context():
        [dead] = DeadTask.query().fetch()
        assert (dead.path, dead.queue, dead.count) == (tell.path, tell.queue, 1)
        assert "the callback of fails is rejected" in dead.reason
        assert is_acknowledged(NOTES, "fails")
    assert CALLED == {"notes:fails:1": 1}
    with world.context():
        mend()
        replay = world.registry.tasks["/tasks/dead/replay"]
        replay.enqueue(world.clients, ReplayDeadTask(dead.key.id()))
    world.settle()

    assert CALLED == {"notes:fails:1": 2}
    with world.context():
        assert len(told(NOTES, "fails")) == 1
        assert DeadTask.query().get().resolved


@pytest.mark.parametrize("second", [0, 1])
def test_two_deliveries_of_which_one_fails_are_acknowledged_once(
    services: Services, second: int
) -> None:
    """F1, H1: there is a dead task if, and only if, the one that failed acknowledged first."""
    calls: list[int] = []
    answers: list[int | None] = []

    def work(clients: Any, args: Completed) -> None:
        calls.append(len(calls))
        number = calls[-1]
        if number == 0:
            in_threads(lambda: answers.append(world.answer(world.current)))
        if number == second:
            raise Reject("it fails")

    batches = declared(work)
    world = World(services, batches=[batches])
    complete_empty(world, batches, "b")
    assert deliver_next(world, tell.queue) == 204

    assert answers == [204]
    with world.context():
        assert is_acknowledged(batches, "b")
        assert len(DeadTask.query().fetch()) == second


def test_a_callback_that_cares_for_its_own_failure_has_no_dead_task(services: Services) -> None:
    """F1, H1: it gets the reason, once."""
    reasons: list[str] = []

    def work(clients: Any, args: Completed) -> None:
        raise ValueError("it fails")

    batches = declared(
        work, max_attempts=2, on_give_up=lambda clients, args, reason: reasons.append(reason)
    )
    world = World(services, batches=[batches])
    complete_empty(world, batches, "b")
    world.doubles = True
    world.settle()

    [reason] = reasons
    assert "ValueError: it fails" in reason
    with world.context():
        assert is_acknowledged(batches, "b")
        assert DeadTask.query().get() is None


def test_what_an_older_version_has_completed_is_called_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: by its own task, which acknowledges nothing, so the sweep lets it be."""
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "enqueue", enqueue_as_before)
        complete(world, NOTES, "b", "bad")
    for _ in range(3):
        sweep_in(world, 24 * HOUR_S)
    assert CALLED == {"notes:b:1": 1}
    with world.context():
        assert is_acknowledged(NOTES, "b")
        NOTES.run_again(world.clients, "b")
    world.settle()

    assert CALLED == {"notes:b:1": 1, "notes:b:2": 1}


def test_what_an_older_version_runs_again_is_called_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: while the callback of the newer version is still to come."""
    complete(world, NOTES, "b", "bad")
    with monkeypatch.context() as patch:
        patch.setattr(callbacks, "enqueue", enqueue_as_before)
        with world.context():
            NOTES.run_again(world.clients, "b")
        world.settle()

    assert CALLED == {"notes:b:1": 1, "notes:b:2": 1}
    with world.context():
        assert is_acknowledged(NOTES, "b")


def test_an_acknowledgement_costs_two_round_trips(world: World) -> None:
    """F1: a read and a commit, of one row."""
    complete_empty(world, NOTES, "b")
    cost_before = world.clients.meter.total()
    with world.context():
        row = state_key("notes:b").get()
        callbacks.call(silent(), world.clients, callbacks.completed(row))
    cost = world.clients.meter.total() - cost_before

    assert (cost.reads, cost.writes, cost.round_trips) == (2, 1, 3)  # One read is the test's own.


def declared(
    work: Callable[[Any, Completed], None],
    keep: datetime.timedelta = datetime.timedelta(days=7),
    **options: Any,
) -> TaskBatch:
    """Declare batches with a callback of a test's own."""
    callback = Task("/tasks/call", tell.queue, Completed, work, **options)
    return TaskBatch("called", members=[note], on_complete=callback, keep=keep)


def silent() -> Task[Completed]:
    return Task("/tasks/silent", tell.queue, Completed, lambda clients, args: None)


def enqueue_as_before(clients: Any, state: BatchState) -> None:
    """Enqueue the callback as the version did that knew no acknowledgements."""
    task = message_task(str(state.callback_path), str(state.callback_queue), Completed)
    outbox.enqueue(clients, task, callbacks.completed(state))
