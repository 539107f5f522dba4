"""Moments that a guard of lanes is for, each by hand: `test_planted_bugs.py` takes it out."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward import outbox
from rollforward.datastore import transact
from rollforward.datastore.commit import Commit
from rollforward.lanes import Lane, adding
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key, task_key, waiting
from rollforward.lanes.runs import claims, ends
from rollforward.lanes.runs.delivery import deliver
from rollforward.runtime import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sharing import conditional_writes, optimistic_transaction
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Retry
from rollforward.testing.opening import ProcessMemory
from rollforward.testing.world import apart
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, SHARED, TWO, LaneLetter, send, write


def wake(world: World, lane: Lane, clients: Clients | None = None, **options: Any) -> None:
    """Deliver a hint for Ada here and now."""
    deliver(lane, clients or world.clients, LaneArgs(f"{lane.name}|ada", **options))


def drop_hints(world: World) -> None:
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def take(world: World, lane: Lane) -> tuple[claims.Holder, claims.Claimed]:
    """Claim tasks of Ada here and now."""
    claimed = claims.take(world.clients, lane, f"{lane.name}|ada", watches=False)
    assert isinstance(claimed, claims.Claimed)
    lane_id = f"{lane.name}|ada"
    return claims.Holder(world.clients, lane, lane_id, claimed.claim, claimed.asked_s), claimed


def remove_claims(world: World, holder: claims.Holder) -> None:
    write = partial(claims.put_without_claim, world.clients, holder.lane)
    states.remove_claims(world.clients, holder.lane_id, [holder.claim], write)


def once(act: Callable[[], None]) -> Callable[[str], None]:
    """Return what happens before the first letter is written."""
    left = [act]
    return lambda name: left.pop()() if left else None


# Adding


def test_a_place_is_chosen_when_the_work_of_a_transaction_is_over(world: World) -> None:
    """K3: what was committed after the call, and which this transaction has read, comes first."""
    row_key = LaneLetter(id="shared", person="").put()

    def write_down(text: str) -> None:
        row = row_key.get()
        row.person += text
        row.put()

    def add_and_write(text: str) -> None:
        add(text)
        write_down(text)

    def rival() -> None:
        with world.clients.context():
            transact(lambda: add_and_write("1"))

    def add(text: str) -> None:
        outbox.enqueue(world.clients, write, write.bind("ada", text), lane=IN_ORDER("ada"))

    rivals = [threading.Thread(target=rival)]

    def body() -> None:
        add("2")
        for thread in rivals[:1]:
            rivals.clear()
            world.clock.sleep(1)
            thread.start()
            thread.join()
        write_down("2")

    transact(body)
    world.settle()
    assert "".join(DESK.of("ada")) == row_key.get().person == "12"


def test_who_adds_a_task_is_told_if_it_is_not_there(world: World) -> None:
    """K1: an insert in doubt is looked up."""
    world.plan.break_next("Commit", "error:UNAVAILABLE", 20)
    is_added = False
    with contextlib.suppress(rpc_errors.GoogleAPICallError):
        send(world.clients, SHARED, "ada", 0)
        is_added = True
    world.plan.pending = []
    world.settle()
    assert is_added == (DESK.of("ada") == ["0"])


def test_an_insert_in_doubt_brings_no_task_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2: it was made, and the task has run since."""
    sound = conditional_writes.apply_together

    def apply(*args: Any) -> None:
        monkeypatch.setattr(adding, "apply_together", sound)
        sound(*args)
        wake(world, SHARED)
        raise rpc_errors.ServiceUnavailable("made by the test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(adding, "apply_together", apply)
    with contextlib.suppress(rpc_errors.GoogleAPICallError):
        send(world.clients, SHARED, "ada", 0)
    world.settle()
    assert DESK.begun == ["ada:0"]


def test_a_transaction_that_is_given_up_in_doubt_leaves_a_hint(world: World) -> None:
    """K5: all its replies were lost, and one of its commits was made."""

    def body() -> None:
        outbox.enqueue(world.clients, write, write.bind("ada", "0"), lane=SHARED("ada"))

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE", 20)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact(body, sleep=lambda seconds: None)
    world.plan.pending = []
    world.deliver_due()
    assert DESK.of("ada") == ["0"]


# Claims


def test_a_claim_whose_reply_was_lost_is_this_delivery_s(world: World) -> None:
    """K5: the second attempt of its commit finds it."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    wake(world, SHARED)
    assert DESK.of("ada") == ["0"]
    assert LaneState.query().fetch() == []


def test_a_claim_that_was_written_unheard_is_taken_at_once_in_its_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: its delivery ended with an error, and began no task."""
    sound = claims.transact_by_version

    def unheard(*args: Any) -> None:
        monkeypatch.setattr(claims, "transact_by_version", sound)
        assert sound(*args)
        raise rpc_errors.ServiceUnavailable("made by the test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(claims, "transact_by_version", unheard)
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, SHARED)
    began_s = world.clock.time_s
    wake(world, SHARED)
    assert DESK.begun == ["ada:0"]
    assert world.clock.time_s - began_s < 1
    assert LaneState.query().fetch() == []


def test_two_deliveries_never_claim_by_the_same_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: each change of it has a stamp of its own, so the third one looks again."""
    send(world.clients, TWO, "ada", 0, 1, 2, 3)
    drop_hints(world)
    take(world, TWO)
    sound = claims._plan

    def plan(*args: Any) -> Any:
        monkeypatch.setattr(claims, "_plan", sound)
        planned = sound(*args)
        take(world, TWO)
        return planned

    monkeypatch.setattr(claims, "_plan", plan)
    wake(world, TWO)
    assert DESK.begun == []
    assert len(state_key("test-two|ada").get().claims) == 2


def test_a_task_that_another_delivery_has_claimed_is_not_begun(world: World) -> None:
    """K2: the next free one is."""
    send(world.clients, TWO, "ada", 0, 1)
    drop_hints(world)
    _, claimed = take(world, TWO)
    wake(world, TWO)
    texts = [json.loads(task.body)["text"] for task in claimed.tasks]
    assert [f"ada:{text}" for text in texts] + DESK.begun in (
        ["ada:0", "ada:1"],
        ["ada:1", "ada:0"],
    )


def test_a_claim_that_has_beaten_since_it_was_watched_is_not_taken(world: World) -> None:
    """K4: the beat came between the watch and the burial."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    holder, _ = take(world, SHARED)
    holder._confirm()
    remove_claims(world, holder)
    holder._confirm()
    assert not holder.is_lost


def test_a_delivery_that_has_lost_its_claim_gives_back_no_other_one(world: World) -> None:
    """K4, K8: its key is at its limit, by the delivery that has taken its place."""
    send(world.clients, SHARED, "ada", 0, 1)
    drop_hints(world)
    late, _ = take(world, SHARED)
    remove_claims(world, late)

    def come_late() -> None:
        with world.clients.context():
            late.release(set(), None, begun=0, pace_ms=0)
            wake(world, SHARED)

    DESK.before = once(lambda: apart(come_late))
    wake(world, SHARED)
    assert sorted(DESK.begun) == ["ada:0", "ada:1"]


@pytest.mark.parametrize("end", ["later", "never"])
def test_a_delivery_that_has_lost_its_claim_ends_no_task(world: World, end: str) -> None:
    """K2, K4, K7: it neither lets it wait, nor keeps it as a dead task, beside its run."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    late, claimed = take(world, SHARED)
    remove_claims(world, late)

    def come_late() -> None:
        if end == "later":
            ends.reschedule(late, claimed.tasks[0], ends.Later(5, "its service is away"))
        else:
            ends.give_up(late, claimed.tasks[0], write, "nobody is in")

    DESK.before = once(come_late)
    wake(world, SHARED)
    world.settle()
    assert DESK.begun == ["ada:0"]
    assert open_dead_tasks().fetch() == []


@pytest.mark.parametrize("is_over", [False, True], ids=["dead", "over"])
@pytest.mark.parametrize("end", ["later", "never"])
def test_a_claim_that_is_taken_while_a_task_ends_leaves_the_task_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str, *, is_over: bool
) -> None:
    """K2, K4, K7: the commit writes no state, and it is refused all the same."""
    send(world.clients, SHARED, "ada", 0, 1, 2)
    drop_hints(world)
    late, claimed = take(world, SHARED)
    ends.finish(late, claimed.tasks[0])
    sound = ends._owned

    def mine(*args: Any) -> Any:
        monkeypatch.setattr(ends, "_owned", sound)
        rows = sound(*args)
        if is_over:
            states.over_in(world.clients).add(late.claim.owner)
        apart(take_away)
        return rows

    def take_away() -> None:
        with world.clients.context():
            remove_claims(world, late)

    monkeypatch.setattr(ends, "_owned", mine)
    if end == "later":
        assert not ends.reschedule(late, claimed.tasks[1], ends.Later(5, "its service is away"))
    else:
        ends.give_up(late, claimed.tasks[1], write, "nobody is in")
    left = waiting(late.lane_id).fetch(keys_only=True)
    assert left == [task.key for task in claimed.tasks[1:]]
    assert open_dead_tasks().fetch() == []


@pytest.mark.parametrize("end", ["later", "never"])
def test_a_commit_that_comes_late_ends_no_task_that_was_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """K2, K4, K7: its delivery has waited in vain for the reply, and gave its claim back."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    late, claimed = take(world, SHARED)
    [ada] = claimed.tasks
    sound, under_way = optimistic_transaction.apply_together, list[Commit]()

    def unheard(clients: Clients, commit: Commit) -> Any:
        under_way.append(commit)
        raise rpc_errors.DeadlineExceeded("made by the test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(optimistic_transaction, "apply_together", unheard)
    acts = {
        "later": lambda: ends.reschedule(late, ada, ends.Later(5, "its service is away")),
        "never": lambda: ends.give_up(late, ada, write, "nobody is in"),
    }
    with pytest.raises(rpc_errors.DeadlineExceeded):
        acts[end]()
    monkeypatch.setattr(optimistic_transaction, "apply_together", sound)
    late.release(set(), ada.key.id(), begun=1, pace_ms=0)

    def come_late() -> None:
        for commit in under_way:
            with pytest.raises(rpc_errors.GoogleAPICallError):
                sound(world.clients, commit)

    DESK.before = once(come_late)
    wake(world, SHARED)
    world.settle()
    assert DESK.begun == ["ada:0"]
    assert waiting(late.lane_id).fetch() == open_dead_tasks().fetch() == []


def test_a_beat_that_took_too_long_lets_no_task_begin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: others may have watched the claim since the beat was sent."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    holder, _ = take(world, SHARED)
    sound, now_s = claims.transact_by_version, [1_000.0]

    def slow(*args: Any, **options: Any) -> Any:
        now_s[0] += claims.CONFIRMED_FOR_S + 1
        return sound(*args, **options)

    monkeypatch.setattr(claims, "transact_by_version", slow)
    holder.monotonic = lambda: now_s[0]
    holder._confirmed_s = 0.0
    assert not holder.can_start()
    assert not holder.is_lost


def test_a_death_counts_for_the_one_task_that_is_left(world: World) -> None:
    """K7: no other one can have been at work."""
    send(world.clients, SHARED, "ada", 0, 1)
    drop_hints(world)
    holder, claimed = take(world, SHARED)
    ends.finish(holder, claimed.tasks[0])
    remove_claims(world, holder)
    assert claimed.tasks[1].key.get().failures == 1


def test_a_state_that_has_changed_is_not_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: a delivery saw no task; since then one was added, and is at work."""
    LaneState(key=state_key("test-shared|ada"), stamp="s").put()
    sound, holders = claims._plan, []

    def plan(*args: Any) -> Any:
        monkeypatch.setattr(claims, "_plan", sound)
        planned = sound(*args)
        send(world.clients, SHARED, "ada", 0)
        holders.append(take(world, SHARED)[0])
        return planned

    monkeypatch.setattr(claims, "_plan", plan)
    wake(world, SHARED)
    [holder] = holders
    holder._confirm()
    assert not holder.is_lost


def test_a_task_that_could_not_be_put_off_stays_the_first_of_its_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K3: it has begun, so one whose commit was late, at an earlier place, comes later."""
    sound = ends.reschedule

    def wait_once(name: str) -> None:
        if DESK.begun == ["ada:0", "ada:1"]:
            raise Retry("not yet")

    def reschedule(*args: Any) -> bool:
        monkeypatch.setattr(ends, "reschedule", sound)
        raise rpc_errors.ServiceUnavailable("made by the test")  # type: ignore[no-untyped-call]

    DESK.before = wait_once
    send(world.clients, IN_ORDER, "ada", 0, 1)
    drop_hints(world)
    monkeypatch.setattr(ends, "reschedule", reschedule)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, IN_ORDER)
    early_id = "test-in-order|ada|0000000000000017-early"
    body = write.message(write.bind("ada", "early")).body.decode()
    added = naive_utc(world.clients.clock.now())
    LaneTask(key=task_key(early_id), place=early_id, path=write.path, body=body, added=added).put()
    wake(world, IN_ORDER)
    assert DESK.of("ada") == ["0", "1", "early"]


def test_a_process_that_dies_while_it_is_watched_is_not_watched_to_the_end(world: World) -> None:
    """K5: its hint comes again at once, and its neighbours know of its death a second later."""
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    take(world, SHARED)
    began_s = world.clock.time_s
    processes = SimpleNamespace(
        is_dead=lambda owner: world.clock.time_s > began_s + 2, sign=lambda id_: id_
    )
    wake(world, SHARED, replace(world.clients, processes=processes), is_check=True)
    assert DESK.begun == ["ada:0"]
    assert world.clock.time_s - began_s < 5
    assert LaneTask.query().fetch() == []


def test_a_claim_that_another_process_could_not_give_back_is_taken_at_once(world: World) -> None:
    """K5: memcached says why it is silent. Its task has not failed: Datastore was away."""
    DESK.before = lambda name: world.plan.break_next("datastore", "error", 99)
    send(world.clients, SHARED, "ada", 0)
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, SHARED)
    failures: list[int] = []
    world.plan.pending, began_s = [], world.clock.time_s
    DESK.before = lambda name: failures.extend(row.failures for row in LaneTask.query())
    wake(world, SHARED, replace(world.clients, process_state=ProcessMemory()), is_check=True)
    assert failures == [0]
    assert world.clock.time_s - began_s < 1
    assert LaneTask.query().fetch() == []
