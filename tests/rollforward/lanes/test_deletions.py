"""Tasks that are deleted together, and what is known when a worker dies over them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.lanes import Lane
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.runs import claims, delivery, lookups
from rollforward.lanes.runs.delivery import deliver
from rollforward.tasks.errors import Reject, Retry
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, SHARED, TWO, write


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tasks be quick, however slow the machine is."""
    monkeypatch.setattr(delivery, "TOGETHER_S", 60.0)
    monkeypatch.setattr(lookups, "SLICE_S", 60.0)


def send(world: World, lane: Lane, count: int) -> None:
    """Let letters wait in the order of their numbers; their hint is lost."""
    many = [write.bind("ada", str(number)) for number in range(count)]
    write.enqueue_many(world.clients, many, lane=lane("ada"))
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def wake(world: World, lane: Lane, *, is_check: bool = False) -> None:
    deliver(lane, world.clients, LaneArgs(f"{lane.name}|ada", is_check=is_check))


def claimed(world: World, lane: Lane) -> claims.Holder:
    """Claim tasks of Ada here and now; the first one is done and deleted."""
    plan = claims.take(world.clients, lane, f"{lane.name}|ada", watches=False)
    assert isinstance(plan, claims.Claimed)
    return claims.Holder(world.clients, lane, f"{lane.name}|ada", plan.claim, plan.asked_s)


def beat(holder: claims.Holder) -> None:
    """Beat on another thread, as the heart does."""
    with ThreadPoolExecutor(1) as heart:
        heart.submit(holder.beat).result()


def rows() -> list[LaneTask]:
    return list(LaneTask.query().order(LaneTask.place).fetch())


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_quick_tasks_are_deleted_with_the_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K2: the first one at once, the others by one commit."""
    left: list[int] = []
    DESK.before = lambda name: left.append(len(rows()))
    send(world, lane, 5)
    wake(world, lane)
    assert left == [5, 4, 4, 4, 4]
    assert rows() == [] == LaneState.query().fetch()


def test_a_task_that_takes_a_moment_is_deleted_before_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: a worker that dies repeats no more than the task at work."""
    monkeypatch.setattr(delivery, "TOGETHER_S", 0.0)
    left: list[int] = []
    DESK.before = lambda name: left.append(len(rows()))
    send(world, IN_ORDER, 4)
    wake(world, IN_ORDER)
    assert left == [4, 3, 2, 1]


@pytest.mark.parametrize("error", [Retry("later", after_s=5), Reject("never")], ids=repr)
@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_tasks_are_deleted_before_the_end_of_one_that_fails_is_written(
    world: World, lane: Lane, error: Exception
) -> None:
    """K3: a worker that dies then repeats nothing that had ended before it."""
    left: list[list[int]] = []
    ended: set[str] = set()

    def before(name: str) -> None:
        if name == "ada:2" and name not in ended:
            ended.add(name)
            raise error
        if name == "ada:3":
            left.append([int(row.body[-3]) for row in rows()])

    DESK.before = before
    send(world, lane, 4)
    wake(world, lane)
    world.settle()
    repeats = ["2"] if isinstance(error, Retry) else []
    assert sorted(DESK.of("ada")) == sorted(["0", "1", "3", *repeats])
    assert all(0 not in numbers and 1 not in numbers for numbers in left)


def test_what_is_done_is_deleted_although_the_claim_cannot_be_given_back(world: World) -> None:
    """K2: the deletion reads nothing."""
    DESK.before = lambda name: world.plan.break_next("Lookup", "error", 99)
    send(world, SHARED, 3)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, SHARED)
    world.plan.pending, DESK.before = [], lambda name: None
    wake(world, SHARED)
    assert sorted(DESK.of("ada")) == ["0", "1", "2"]


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_quick_tasks_whose_deletion_was_committed_without_a_reply_do_not_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """K2: nor does anybody wait for the claim that went with them."""
    sound = claims.Holder._release

    def release(*args: Any) -> Any:
        result = sound(*args)
        monkeypatch.setattr(claims.Holder, "_release", sound)
        world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
        world.plan.break_next("Lookup", "error:UNAVAILABLE", 99)
        return result

    monkeypatch.setattr(claims.Holder, "_release", release)
    send(world, lane, 3)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, lane)
    world.plan.pending, began_s = [], world.clock.time_s
    wake(world, lane)
    assert DESK.begun == ["ada:0", "ada:1", "ada:2"]
    assert rows() == [] == LaneState.query().fetch()
    assert world.clock.time_s - began_s < 1


def test_a_delivery_that_has_lost_its_claim_deletes_what_it_has_done(world: World) -> None:
    """K2: no other one runs it again, unless it had begun to."""
    send(world, SHARED, 2)
    holder = claimed(world, SHARED)
    state_key("test-shared|ada").delete()
    assert holder.release(set(), None, begun=2, pace_ms=1, done=rows()) is None
    assert rows() == []


# Locks


@pytest.mark.parametrize("lane", [IN_ORDER, TWO], ids=lambda lane: lane.name)
def test_a_turn_locks_no_row_between_two_round_trips(world: World, lane: Lane) -> None:
    """K5: a worker that dies leaves no lock, and deliveries of a key do not wait for each other."""
    DESK.before = lambda name: beat(holder) if name == "ada:0" else None
    send(world, lane, 3)
    holder = claimed(world, lane)
    with world.plan.watched():
        wake(world, lane, is_check=True)
    assert DESK.of("ada")[0] == "0"
    assert "Commit" in world.plan.calls
    assert "BeginTransaction" not in world.plan.calls


# Deaths


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_death_over_tasks_that_are_deleted_together_counts_for_none_of_them(
    world: World, lane: Lane
) -> None:
    """K7: one may be done and there; the next claim deletes each before the next one begins."""
    send(world, lane, 4)
    claimed(world, lane)
    rows()[0].key.delete()  # It was done.
    seen: list[tuple[int, bool, int]] = []

    def before(name: str) -> None:
        state = state_key(f"{lane.name}|ada").get()
        failures = sum(row.failures for row in rows())
        seen.append((len(rows()), state.claims[0].is_careful, failures))

    DESK.before = before
    wake(world, lane, is_check=True)
    assert seen == [(3, True, 0), (2, True, 0), (1, True, 0)]
    assert DESK.of("ada") == ["1", "2", "3"]
    assert rows() == [] == LaneState.query().fetch()


@pytest.mark.parametrize("lane", [IN_ORDER, SHARED], ids=lambda lane: lane.name)
def test_a_task_that_kills_its_worker_is_given_up_and_no_other_one(
    world: World, lane: Lane
) -> None:
    """K7: it dies over the same task for ever, which stands behind others in its turn."""
    send(world, lane, 4)
    poison = rows()[2].key
    for _ in range(10):
        if poison.get().failures >= 4:  # Its declaration's attempts.
            break
        holder = claimed(world, lane)
        if holder.claim.is_careful:
            for task_id in holder.claim.tasks[: holder.claim.tasks.index(poison.id())]:
                LaneTask.get_by_id(task_id).key.delete()
        elif rows()[0].key.id() == holder.claim.tasks[0] != poison.id():
            rows()[0].key.delete()
        state = state_key(f"{lane.name}|ada").get()
        write = partial(claims.put_without_claim, world.clients, lane)
        states.remove_claims(world.clients, f"{lane.name}|ada", state.claims, write)
    assert poison.get().failures == 4
    assert [row.failures for row in rows() if row.key != poison] == [0]
    wake(world, lane)
    assert DESK.of("ada") == ["3"]


def test_a_careful_claim_that_is_given_back_is_the_last_one(world: World) -> None:
    """K7: its worker lives, so tasks are deleted together again."""
    LaneState(key=state_key("test-shared|ada"), stamp="s", is_careful=True, arrival_ms=1).put()
    send(world, SHARED, 2)
    holder = claimed(world, SHARED)
    assert holder.claim.is_careful
    assert holder.release(set(), None, begun=0, pace_ms=0, goes_on="next") == frozenset()
    assert not state_key("test-shared|ada").get().is_careful


def test_a_beat_gives_back_no_task_that_is_done_and_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2, K8: the time of the turn is over, and its second task is still at work."""
    LaneState(key=state_key("test-two|ada"), stamp="s", pace_ms=1).put()
    send(world, TWO, 5)
    holder = claimed(world, TWO)
    ids = holder.claim.tasks
    assert len(ids) == 5
    assert holder.begin(ids[0])
    assert holder.begin(ids[1])
    monkeypatch.setattr(lookups, "SLICE_S", 0.0)
    beat(holder)
    assert state_key("test-two|ada").get().claims[0].tasks == ids[:2]
    assert not holder.begin(ids[2])
    assert len(world.live_tasks("default")) == 1


def test_a_turn_whose_tasks_were_given_back_begins_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: the beat's thread and the turn's decide one after the other."""
    LaneState(key=state_key("test-two|ada"), stamp="s", pace_ms=1).put()
    send(world, TWO, 3)
    holder = claimed(world, TWO)
    assert holder.begin(holder.claim.tasks[0])
    with monkeypatch.context() as patch:
        patch.setattr(lookups, "SLICE_S", 0.0)
        beat(holder)
    assert not holder.has_time
    assert not holder.begin(holder.claim.tasks[1])


def test_a_beat_that_loses_the_race_for_its_row_tries_again(world: World) -> None:
    """K8: each claim and each end of the key writes that row, so a beat may lose several times."""
    send(world, TWO, 1)
    holder = claimed(world, TWO)
    world.plan.break_next("Commit", "error", claims.BEAT_ATTEMPTS - 1)
    beat(holder)
    assert not world.plan.pending
    assert state_key("test-two|ada").get().claims[0].beats == 1
