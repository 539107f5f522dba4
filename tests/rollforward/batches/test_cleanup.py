"""Clean-up: after its time a batch goes, and nothing that comes late brings it back."""

from __future__ import annotations

import datetime

import pytest

from rollforward.batches import TaskBatch, UnknownBatchError, current_member, sweep
from rollforward.batches.adding import populate
from rollforward.batches.completion import End, end_members
from rollforward.batches.entities import COMPLETED, REMOVED, BatchState, state_key
from rollforward.fork_join.entities import WorkPack
from rollforward.runtime import Clients
from rollforward.tasks import task
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    Branch,
    Note,
    branch,
    deliver_all,
    deliver_next,
    mend,
    note,
    notes,
    rows_here,
    rows_of,
    told,
)

DAY_S = datetime.timedelta(days=1).total_seconds()
WEEK_S = datetime.timedelta(days=7).total_seconds()
# A task may be scheduled for a month ahead, and is delivered for a day more.
LAST_TASK_S = datetime.timedelta(days=31).total_seconds()
MONTH_S = datetime.timedelta(days=33).total_seconds()


def complete(world: World) -> None:
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "bad"), seal=True)
    world.settle()


def test_a_batch_is_removed_after_its_time(world: World) -> None:
    """F5: not before; at first its rows, and the mark of it when no task can come any more."""
    complete(world)
    world.clock.sleep(WEEK_S - 60)
    world.sweep()
    with world.context():
        assert rows_of("notes:b").total() == 4
    world.clock.sleep(61)
    world.sweep()
    world.settle()
    with world.context():
        assert rows_of("notes:b") == {
            "BatchState": 1, "BatchPage": 0, "BatchWork": 0, "BatchResults": 0
        }  # fmt: skip
        with pytest.raises(UnknownBatchError):
            NOTES.progress("b")
    world.clock.sleep(LAST_TASK_S)
    world.sweep()
    with world.context():
        assert rows_of("notes:b").total() == 1
    world.clock.sleep(MONTH_S - LAST_TASK_S)
    world.sweep()
    with world.context():
        assert rows_of("notes").total() == 0


def test_what_comes_late_brings_nothing_back(world: World) -> None:
    """F5: an end, a member, a populate, a seal, another run."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "bad"), seal=True)
    deliver_next(world, "default")
    due = world.engine.due(world.engine.place.queue_name("fan-out"))
    late = [world.engine.begin_attempt(task.task_name) for task in due]
    for attempt in late:
        assert world.answer(attempt) in (200, 204)
        world.end(attempt, 500)  # The queue did not hear it.
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    with world.context():
        assert NOTES.progress("b").is_complete
    world.clock.sleep(WEEK_S + 1)
    world.sweep()
    world.deliver_due()
    ran = dict(RAN)
    with world.context():
        end_members.insert(world.clients, "notes:b", End("notes:b:x:000000", 0, 1, is_done=True))
        with pytest.raises(UnknownBatchError):
            NOTES.populate(world.clients, "b", notes("a", "bad"), seal=True)
        with pytest.raises(UnknownBatchError):
            NOTES.seal(world.clients, "b")
        with pytest.raises(UnknownBatchError):
            NOTES.run_again(world.clients, "b")
    world.settle()

    assert dict(RAN) == ran
    with world.context():
        assert rows_of("notes:b").total() == 1
        assert WorkPack.query().get() is None
        assert len(told(NOTES, "b")) == 1


def test_a_batch_of_more_rows_than_a_task_deletes_goes_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: one task after the other, until only the mark is left."""
    for name, most in (("MAX_DELETED", 3), ("CALLS_PER_TASK", 1)):
        monkeypatch.setattr(sweep, name, most)
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 1)
    with world.context():
        NOTES.populate(world.clients, "b", notes(*"abcde"), seal=True)
    world.settle()
    with world.context():
        before = rows_of("notes:b").total()
    world.clock.sleep(WEEK_S + 1)
    world.sweep()
    world.settle()

    with world.context():
        assert before > 3 * sweep.MAX_DELETED
        assert rows_of("notes:b").total() == 1


def test_rows_whose_deletion_was_lost_are_deleted_before_their_mark(world: World) -> None:
    """F5: else a new batch of this id would take their members for its own, and add none."""
    complete(world)
    world.clock.sleep(WEEK_S + 1)
    world.sweep()
    world.engine.purge_queue(world.engine.place.queue_name("default"))
    world.clock.sleep(MONTH_S)
    world.sweep()
    world.settle()
    with world.context():
        assert rows_of("notes:b") == {
            "BatchState": 1, "BatchPage": 0, "BatchWork": 0, "BatchResults": 0
        }  # fmt: skip
    world.clock.sleep(DAY_S)
    world.sweep()
    with world.context():
        assert rows_of("notes").total() == 0
        assert NOTES.populate(world.clients, "b", notes("a", "bad"), seal=True) == 2


def test_a_batch_that_is_run_again_is_kept_anew(world: World) -> None:
    """F5: a sweep that comes at the same time removes nothing that runs."""
    complete(world)
    world.clock.sleep(WEEK_S + 1)
    with world.context():
        assert NOTES.run_again(world.clients, "b") == 1
    world.sweep()
    world.settle()

    with world.context():
        assert len(told(NOTES, "b")) == 2
        assert NOTES.progress("b").failed == 1


def test_how_long_a_batch_is_kept_is_declared() -> None:
    for days in (0, 366):
        with pytest.raises(ValueError, match="keep must"):
            TaskBatch("x1", members=[], keep=datetime.timedelta(days=days))


def test_what_is_to_be_removed_holds_up_nothing_to_wake(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: however many batches are due before; and what is to be woken holds up no removal."""
    monkeypatch.setattr(sweep, "MAX_WOKEN", 1)
    monkeypatch.setattr(sweep, "MAX_REMOVED", 2)
    with world.context():
        for number in range(50):
            NOTES.populate(world.clients, f"old{number:02d}", [], seal=True)
    world.settle()
    world.clock.sleep(WEEK_S - 60)
    with world.context():
        NOTES.populate(world.clients, "lost", notes("a"))
        NOTES.populate(world.clients, "open", [])
    world.clock.sleep(WEEK_S)

    with world.context():
        assert sweep.wake(world.clients) == 1
        assert [sweep.remove(world.clients) for _ in range(26)] == [2] * 25 + [0]
        assert sweep.wake(world.clients) == 0  # Nothing is lost of the one that has no member.
        assert NOTES.progress("open").waiting == 0


@one_emulator
def test_batches_are_removed_as_fast_as_they_were_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: one sweep hands over what is more than it takes itself; the next one adds no tasks."""
    monkeypatch.setattr(sweep, "REMOVED_PER_TASK", 3)
    with world.context():
        for number in range(10):
            NOTES.populate(world.clients, f"old{number}", [], seal=True)
    world.settle()
    world.clock.sleep(WEEK_S + 1)

    with world.context():
        assert [sweep.remove(world.clients) for _ in range(2)] == [10, 10]
        assert {row.state for row in rows_here(BatchState)} == {COMPLETED}
        assert len(world.engine.due()) == 4
    world.settle()
    with world.context():
        assert [row.state for row in rows_here(BatchState)] == [REMOVED] * 10
        assert sweep.remove(world.clients) == 0


def test_each_batch_says_for_what_it_is_looked_at(world: World) -> None:
    """F1, F3, F5: to be woken until its callback is acknowledged; to be removed once complete."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("bad"))
        state = state_key("notes:b")
        assert (state.get().due is None, state.get().remove_at is None) == (False, True)
        NOTES.cancel(world.clients, "b")
        assert (state.get().due is None, state.get().remove_at is None) == (False, False)
    world.settle()
    with world.context():
        assert (state.get().due is None, state.get().remove_at is None) == (True, False)
        NOTES.run_again(world.clients, "b")
        assert (state.get().due is None, state.get().remove_at is None) == (False, True)


def test_a_nested_batch_is_kept_as_long_as_its_parent_can_be_run_again(world: World) -> None:
    """F5: although it completed long before; then both go."""
    with world.context():
        NOTES.populate(world.clients, "b", [(branch, Branch("t", 2, bad=1))])
    world.settle()
    world.clock.sleep(WEEK_S + DAY_S)
    world.sweep()
    world.settle()
    with world.context():
        NOTES.seal(world.clients, "b")
    world.settle()
    world.clock.sleep(WEEK_S - 60)
    world.sweep()
    world.settle()
    with world.context():
        mend()
        assert NOTES.run_again(world.clients, "b") == 1
    world.settle()

    with world.context():
        assert [completion["outcome"] for completion in told(NOTES, "b")] == ["failed", "succeeded"]
        [child] = NOTES.nested("b")
    assert (child.done, child.generation) == (2, 2)
    assert {times for name, times in RAN.items() if name.endswith("/leaft.1")} == {1}
    world.clock.sleep(WEEK_S + 1)
    for _ in range(2):
        world.sweep()
    world.settle()
    with world.context():
        assert {row.state for row in rows_here(BatchState)} == {REMOVED}


LONG = TaskBatch("long", members=[note], keep=datetime.timedelta(days=90))


@task("/tasks/sprout", queue="fan-out")
def sprout(clients: Clients, args: Note) -> None:
    current_member().nest(LONG, notes(args.label))


SHORT = TaskBatch("short", members=[sprout], keep=datetime.timedelta(days=1))


def test_the_id_of_a_batch_is_not_free_while_one_that_was_nested_in_it_is_kept(
    services: Services,
) -> None:
    """F5: a new batch of this id would take that for its own, and run none of its members."""
    world = World(services, batches=[SHORT, LONG])
    RAN.clear()

    def populate_again() -> int:
        with world.context():
            count = SHORT.populate(world.clients, "b", [(sprout, Note("leaf"))], seal=True)
        world.settle()
        return count

    def pass_days(days: int) -> None:
        world.clock.sleep(days * DAY_S + 1)
        world.sweep()
        world.settle()

    assert populate_again() == 1
    for days in (1, 33):
        pass_days(days)
    with pytest.raises(UnknownBatchError):
        populate_again()
    for days in (60, 33, 1):
        pass_days(days)
    assert populate_again() == 1

    [times] = RAN.values()
    assert times == 2
    with world.context():
        assert SHORT.progress("b").done == 1
