"""Moments at which a guard of flows decides: between two writes, or for a delivery of the past."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.batches import Completed
from rollforward.datastore.transactions import transact
from rollforward.flows import FlowRefusedError, RetryPolicy, Steps, changes, sweep
from rollforward.flows.errors import LeasedError, Suspended
from rollforward.flows.rows.entities import FlowRun, FlowValue, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.flows.steps import delivery, waits
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.flows.wakes import FlowArgs
from rollforward.runtime import naive_utc
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    RUN_ID,
    counted,
    deliver_again,
    in_transaction,
    probe,
    reject,
    run,
    settle,
)
from tests.rollforward.flows.shop import mail
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

CALL = StepRecord("outside", began=1.0)


def row() -> FlowRun:
    """Return the flow as it is stored."""
    stored = run_key(RUN_ID).get(use_cache=False)
    assert isinstance(stored, FlowRun)
    return stored


def opened(world: World) -> FlowAttempt:
    """Return a delivery that has read the flow."""
    attempt = FlowAttempt(world.clients, probe.task, RUN_ID)
    assert attempt.open()
    return attempt


def leased(world: World) -> FlowAttempt:
    """Return a delivery that makes a call outside."""
    attempt = opened(world)
    attempt.lease(lambda row: row.note("call", CALL))
    return attempt


# Changes by others


@one_emulator
def test_a_second_transaction_starts_no_second_flow(world: World) -> None:
    """W7: its caller learns that there is one."""
    assert in_transaction(lambda: probe.start(world.clients, ID)) == [True]
    assert in_transaction(lambda: probe.start(world.clients, ID)) == [False]


@one_emulator
@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_a_start_in_doubt_that_was_made_waits_for_no_sweep(
    world: World, is_in_transaction: bool
) -> None:
    """W11: its caller gets an error, and a task is there all the same."""

    def start() -> bool:
        return probe.start(world.clients, ID)

    CODE.run = lambda step: "done"
    world.plan.break_next("Commit", "reply-lost", 1)
    # What would tell the caller that it was made: the row, or the next attempt.
    world.plan.break_next("Commit" if is_in_transaction else "Lookup", "error", 20)
    with pytest.raises(rpc_errors.GoogleAPICallError):
        transact(start) if is_in_transaction else start()
    world.plan.pending = []
    assert settle(world).result == "done"


@one_emulator
def test_a_bulk_retry_leaves_a_flow_that_was_retried_meanwhile(world: World) -> None:
    """W16: it has failed again, and a person has yet to look at it."""
    CODE.fails["a"] = 6
    run(world, lambda step: step.outside("a", CODE.act, "a"))
    probe.retry(world.clients, ID)
    assert settle(world).state == "failed"
    with pytest.raises(FlowRefusedError, match="was retried meanwhile"):
        changes.retry(world.clients, probe, ID, "", generation=1)
    assert changes.retry(world.clients, probe, ID, "", generation=2)


@one_emulator
def test_a_flow_that_is_being_undone_runs_no_step_again(world: World) -> None:
    """W16: not even if a person names one, once an undo has failed."""

    def code(step: Steps) -> None:
        step.outside("a", CODE.act, "a")
        step.undo("undo", CODE.act, "undo")
        step.wait_for("go")

    CODE.fails["undo"] = 3
    run(world, code)
    probe.cancel(world.clients, ID)
    assert settle(world).state == "failed"
    with pytest.raises(FlowRefusedError, match="is being undone: retry it as it is"):
        probe.retry(world.clients, ID, from_step="a")


# Deliveries of the past, and others beside


@one_emulator
def test_a_delivery_of_a_flow_that_has_ended_changes_nothing(world: World) -> None:
    """W6: as of a task that comes twice."""
    run(world, lambda step: step.outside("a", CODE.act, "a"))
    before = row()
    world.clock.sleep(60)
    deliver_again(world)
    assert row() == before


@one_emulator
def test_a_delivery_that_has_read_the_flow_before_waits_for_the_lease_of_another(
    world: World,
) -> None:
    """W5: it would take the lease of a call at work away."""
    probe.start(world.clients, ID)
    early = opened(world)
    leased(world)
    with pytest.raises(LeasedError):
        early.change(lambda row: row.note("early", CALL))
    assert row().owner is not None


@one_emulator
def test_the_lease_of_a_dead_process_is_taken_at_once(world: World) -> None:
    """W5: nobody waits for its end."""
    probe.start(world.clients, ID)
    dead = leased(world).row.owner
    processes: Any = SimpleNamespace(is_dead=lambda owner: owner == dead, sign=str)
    clients = replace(world.clients, processes=processes)
    assert FlowAttempt(clients, probe.task, RUN_ID).open()


@one_emulator
def test_a_write_whose_reply_is_lost_is_none_of_a_flow_that_was_retried_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W16: it is there, and its delivery is of the past all the same."""
    probe.start(world.clients, ID)
    attempt = leased(world)
    sound = attempt._write

    def write(values: Any, *, is_alone: bool) -> None:
        sound(values, is_alone=is_alone)
        retried = row()
        retried.generation += 1
        retried.put()
        raise rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(attempt, "_write", write)
    with pytest.raises(Suspended):
        attempt.change(lambda row: row.note("late", CALL))


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_a_step_that_another_delivery_has_ended_is_not_made(world: World, kind: str) -> None:
    """W2, W5: the other one came after this one had read the flow, and before it wrote."""
    others: list[str] = []

    def code(step: Steps) -> None:
        if not others:
            others.append("inner")
            attempt = world.current
            in_threads(lambda: world.answer(attempt))
        if kind == "commit":
            step.commit("a", CODE.act_in_store, "a")
        else:
            step.outside("a", CODE.act, "a")
        step.sleep("a little", seconds=30)

    assert run(world, code).state == "succeeded"
    assert (counted("a") == 1) if kind == "commit" else (CODE.done == ["a"])


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_a_step_does_not_begin_in_a_flow_that_was_cancelled_just_before(
    world: World, kind: str
) -> None:
    """W14: by code between two steps, or by anyone; or its commit is rolled back."""

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        probe.cancel(world.clients, ID)
        if kind == "commit":
            step.commit("a", CODE.act_in_store, "a")
        step.outside("a", CODE.act, "a")

    assert run(world, code).state == "cancelled"
    assert counted("a") == 0
    assert kind == "commit" or CODE.done == ["undo"]


@one_emulator
def test_a_mistake_of_a_flow_that_was_cancelled_just_before_does_not_fail_it(
    world: World,
) -> None:
    """W14: it is undone."""

    def code(step: Steps) -> None:
        step.outside("a", CODE.act, "a")
        step.undo("undo", CODE.act, "undo")
        probe.cancel(world.clients, ID)
        step.outside("a", CODE.act, "a")

    assert run(world, code).state == "cancelled"
    assert CODE.done == ["a", "undo"]


@one_emulator
def test_a_task_that_is_given_up_fails_no_flow_at_work(world: World) -> None:
    """W16: another delivery makes a call; nor does it fail a flow that has ended."""
    CODE.run = lambda step: "done"
    probe.start(world.clients, ID)
    attempt = leased(world)
    with pytest.raises(LeasedError):
        delivery.give_up(world.clients, FlowArgs(RUN_ID), "gave up")
    assert row().state == "running"
    attempt.release()
    assert settle(world).state == "succeeded"
    delivery.give_up(world.clients, FlowArgs(RUN_ID), "gave up")
    assert row().state == "succeeded"


# Steps


@one_emulator
def test_a_step_that_pauses_is_not_called_by_a_delivery_for_nothing(world: World) -> None:
    """W3: its service has its pause."""
    policy = RetryPolicy(first_s=40, longest_s=40)
    CODE.run = lambda step: step.retrying(policy).outside("a", CODE.act, "a")
    CODE.fails["a"] = 1
    probe.start(world.clients, ID)
    world.deliver_due()
    probe.task.enqueue(world.clients, FlowArgs(RUN_ID))
    world.deliver_due()
    assert CODE.done == ["a"]
    assert settle(world).result == "a"
    assert row().records()["a"].doubts == 0


@one_emulator
@pytest.mark.parametrize("is_undone", [False, True])
def test_a_long_delivery_goes_on_in_another_one(world: World, is_undone: bool) -> None:
    """W6: before the time of its task is over; so does one that undoes."""
    deliveries: list[float] = []

    def code(step: Steps) -> None:
        deliveries.append(world.clock.time_s)
        for number in range(5):
            call = step.undo if is_undone else step.outside
            call(f"{number}", world.clock.sleep, 100)
        if is_undone:
            reject("not wanted")

    assert run(world, code).state == ("rejected" if is_undone else "succeeded")
    assert len(deliveries) == 2


@one_emulator
def test_a_sleep_that_is_over_is_over_for_a_clock_that_is_behind(world: World) -> None:
    """W10: a later step has begun after its end."""

    def code(step: Steps) -> str:
        step.sleep("a little", seconds=10)
        step.outside("a", CODE.act, "a")
        step.wait_for("go")
        return "done"

    run(world, code)
    ahead = row()
    until = world.clock.time_s + 50
    ahead.note("a little", replace(ahead.records()["a little"], until=until))
    ahead.note("a", replace(ahead.records()["a"], began=until + 1))
    ahead.put()
    probe.signal(world.clients, ID, "go")
    world.deliver_due()
    assert probe.state(ID).result == "done"


@one_emulator
def test_a_large_result_whose_rows_were_deleted_fails_its_flow(world: World) -> None:
    """W17: with a text that says so, and no call is made again."""

    def code(step: Steps) -> None:
        step.outside("a", lambda: (CODE.act("a"), "x" * 200_000)[1])
        step.wait_for("go")

    run(world, code)
    for value in FlowValue.query().fetch(keys_only=True):
        value.delete()
    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, "the rows of a result were deleted" in state.reason) == ("failed", True)
    assert CODE.done == ["a"]


# Batches


def mails(step: Steps) -> int:
    return step.batch("mails", [(mail, mail.bind("o", number)) for number in range(2)]).done


def begin_batch(world: World) -> str:
    """Let a flow wait for a batch that has begun; return the batch's id."""
    CODE.run = mails
    probe.start(world.clients, ID)
    world.deliver(world.engine.due()[0].task_name)
    return row().records()["mails"].batch


@one_emulator
def test_the_end_of_another_batch_is_no_end_of_a_flows_batch(world: World) -> None:
    """W12: as of one that the flow has waited for before it was retried."""
    batch_id = begin_batch(world)
    before = row()
    for other in (f"mails|{'0' * 12}", f"mails|{'z' * 12}", f"others|{'0' * 12}"):
        ended = Completed("flow-test-probe", f"{ID}|{other}", 1, "succeeded", 2, 2, 0, 0)
        waits.note_batch(world.clients, "test-probe", probe.task, ended)
    assert row() == before
    assert settle(world).result == 2

    before = row()
    ended = Completed("flow-test-probe", batch_id, 1, "failed", 2, 0, 2, 0)
    waits.note_batch(world.clients, "test-probe", probe.task, ended)
    assert row() == before, "it has ended already"


@one_emulator
def test_a_batch_has_the_members_that_it_was_started_with(world: World) -> None:
    """W12: a new version that names others waits for those."""
    begin_batch(world)
    CODE.run = lambda step: step.batch("mails", [(mail, mail.bind("o", 7))]).done
    again = row()
    again.due = naive_utc(world.clock.now())
    again.put()
    probe.task.enqueue(world.clients, FlowArgs(RUN_ID))
    assert settle(world).result == 2


@one_emulator
def test_a_batch_that_is_retried_runs_again(world: World) -> None:
    """W16: under an id of its own."""
    begin_batch(world)
    first = settle(world).steps["mails"].batch
    probe.retry(world.clients, ID, from_step="mails")
    state = settle(world)
    assert (state.state, state.result) == ("succeeded", 2)
    assert state.steps["mails"].batch != first


# The sweep


@one_emulator
def test_the_sweep_leaves_a_flow_that_is_due_no_more(world: World) -> None:
    """W11: a delivery has changed it since it was found."""
    run(world, lambda step: step.sleep("long", days=45))
    before = row()
    now_utc = naive_utc(world.clock.now())
    assert transact(lambda: sweep._reschedule([run_key(RUN_ID)], now_utc)) == []
    assert row() == before


@one_emulator
def test_a_flow_that_is_retried_after_its_time_is_not_deleted(world: World) -> None:
    """W16: it has no time any more, or another one."""

    def code(step: Steps) -> None:
        step.outside("a", lambda: "x" * 200_000)
        step.wait_for("go", timeout_s=DAY_S)

    run(world, code)
    probe.signal(world.clients, ID, "go")
    assert settle(world).state == "succeeded"
    expires = row().expires
    assert expires is not None
    sweep._remove(run_key(RUN_ID), expires)
    assert row().expires == expires, "its time is not over"
    probe.retry(world.clients, ID, from_step="go")
    sweep._remove(run_key(RUN_ID), expires + "~")
    assert row().generation == 2
    assert len(FlowValue.query().fetch(keys_only=True)) == 1


@one_emulator
def test_flows_that_sleep_cost_an_hour_of_sweeps_nothing(world: World) -> None:
    """W10: neither reads nor writes nor tasks, nor do those that wait for an event."""

    def hour() -> Any:
        before = world.clients.meter.total()
        for _ in range(60):
            world.clock.sleep(60)
            world.sweep("/cron/flows/sweep")
        return world.clients.meter.total() - before

    empty = hour()
    run(world, lambda step: step.sleep("long", days=45))
    values = row().to_dict()
    sleepers = [FlowRun(key=run_key(f"test-probe|s{n}"), **values) for n in range(200)]
    waiters = [FlowRun(key=run_key(f"test-probe|w{n}"), **values) for n in range(200)]
    for waiter in waiters:
        waiter.due = None
    in_transaction(*(flow.put for flow in (*sleepers, *waiters)))

    assert hour() == empty
    assert empty.reads == empty.writes == empty.tasks == 0

    world.clock.sleep(datetime.timedelta(days=45).total_seconds())
    world.sweep("/cron/flows/sweep")
    assert len(world.live_tasks("default")) == 1 + len(sleepers)
