"""Steps that call functions: their results, failures and retries, each with one outcome."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward.datastore.partitions import PARTITIONS
from rollforward.flows import RetryPolicy, StepFailedError, Steps, sweep
from rollforward.flows.rows.entities import FlowRun, FlowValue, run_key
from rollforward.tasks.errors import Retry
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    ID,
    counted,
    deliver_again,
    in_transaction,
    probe,
    run,
    settle,
)
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


@dataclass
class Receipt:
    """A result with a type."""

    number: int
    lines: list[str]


def receipt(number: int) -> Receipt:
    return Receipt(number, ["boots"])


def row() -> FlowRun:
    found = run_key(f"test-probe|{ID}").get()
    assert isinstance(found, FlowRun)
    return found


@one_emulator
def test_a_result_has_the_type_of_its_function_in_each_run(world: World) -> None:
    """W1: from its call and from the store; one without a type is plain JSON."""
    seen: list[Any] = []

    def code(step: Steps) -> None:
        seen.append(step.outside("typed", receipt, 7))
        seen.append(step.commit("plain", lambda: {"a": [1, None]}))
        step.sleep("a little", seconds=30)

    assert run(world, code).state == "succeeded"
    assert seen == [Receipt(7, ["boots"]), {"a": [1, None]}] * 2


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_a_large_result_has_rows_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """W1: of a megabyte and more; they are deleted with the flow, however many."""
    monkeypatch.setattr(sweep, "MAX_CHUNKS", 2)
    large = "é" * 1_000_000
    seen: list[int] = []

    def code(step: Steps) -> None:
        call = getattr(step, kind)
        seen.append(len(call("large", lambda: large)))
        step.sleep("a little", seconds=30)

    assert run(world, code).steps["large"].chunks == 3
    assert seen == [len(large)] * 2
    assert len(FlowValue.query().fetch(keys_only=True)) == 3
    world.clock.sleep(31 * 24 * 3600)
    assert sum(sweep.EXPIRED.delete_page(world.clients, each) for each in PARTITIONS) == 1
    assert run_key(f"test-probe|{ID}").get() is None
    assert not FlowValue.query().fetch(keys_only=True)


@one_emulator
def test_a_step_fails_as_often_as_it_may_and_the_code_goes_another_way(world: World) -> None:
    """W3: its failure is an outcome: each run of the code, and a retry of the flow, gets it."""
    CODE.fails["a"] = 99
    seen: list[str] = []

    def code(step: Steps) -> str:
        try:
            step.outside("a", CODE.act, "a")
        except StepFailedError as error:
            seen.append(str(error))
        step.outside("b", CODE.act, "b")
        step.sleep("a little", seconds=30)
        return step.outside("c", CODE.act, "c")

    CODE.fails["c"] = 3
    state = run(world, code)
    assert (state.state, state.steps["a"].attempts, state.steps["c"].attempts) == ("failed", 3, 3)
    probe.retry(ID)
    assert settle(world).state == "succeeded"
    assert CODE.done == ["a"] * 3 + ["b"] + ["c"] * 4
    assert seen == ["the step 'a' failed: ValueError: a failed"] * len(seen)


@one_emulator
def test_a_step_may_say_when_it_is_tried_again(world: World) -> None:
    """W3: by Retry, which counts as no failure; a policy of its own for one step."""
    times: list[float] = []

    def busy() -> None:
        times.append(world.clock.time_s)
        if len(times) < 6:
            raise Retry("busy", after_s=20)

    def code(step: Steps) -> None:
        step.outside("busy", busy)
        step.retrying(RetryPolicy(attempts=1)).outside("once", CODE.act, "once")

    CODE.fails["once"] = 1
    state = run(world, code)
    assert [later - earlier >= 20 for earlier, later in itertools.pairwise(times)] == [True] * 5
    assert (state.state, state.steps["busy"].attempts) == ("failed", 0)
    assert state.reason.startswith("StepFailedError: the step 'once'")
    assert CODE.done == ["once"]


@one_emulator
def test_an_except_of_the_code_takes_no_wait_for_an_outcome(world: World) -> None:
    """W4: a wait passes through `except` and `finally`, and steps that they call do nothing."""

    def code(step: Steps) -> str:
        try:
            step.sleep("a little", seconds=90)
        except BaseException:
            step.outside("oops", CODE.act, "oops")
            return "swallowed"
        finally:
            step.outside("last", CODE.act, "last")
        return "slept"

    assert run(world, code).state == "running"
    assert CODE.done == []
    world.clock.sleep(90)
    state = settle(world)
    assert (state.state, state.result, CODE.done) == ("succeeded", "slept", ["last"])


@one_emulator
@pytest.mark.parametrize("is_caught", [False, True])
def test_the_log_says_that_the_code_has_caught_the_end_of_its_delivery(
    world: World, caplog: pytest.LogCaptureFixture, is_caught: bool
) -> None:
    """W4: its author wonders why the `except` had no effect."""

    def code(step: Steps) -> None:
        try:
            step.sleep("a little", seconds=90)
        except BaseException:
            if not is_caught:
                raise

    assert run(world, code).state == "running"
    assert ("the code has caught the end of its delivery" in caplog.text) is is_caught


@one_emulator
@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_delivery_that_waits_is_over_whatever_the_code_makes_of_it(
    world: World, ends: str
) -> None:
    """W4: neither its result nor its own error is the flow's."""

    def code(step: Steps) -> str:
        try:
            step.sleep("a little", seconds=90)
        except BaseException:
            if ends == "raises":
                raise KeyError("the code's own") from None
            return "swallowed"
        return "slept"

    assert run(world, code).state == "running"
    world.clock.sleep(90)
    assert settle(world).result == "slept"


@one_emulator
def test_an_error_of_datastore_is_no_outcome_of_a_step(world: World) -> None:
    """W4: the code's own `except Exception` does not get it, and the queue delivers again."""

    def code(step: Steps) -> str:
        try:
            step.commit("count", CODE.act_in_store, "count")
        except Exception:
            return "another way"
        return "done"

    CODE.run = code
    probe.start(world.clients, ID)
    world.fails_fast = False
    world.plan.break_next("Commit", "error", 4)
    world.deliver(world.engine.due()[0].task_name)
    assert probe.state(ID).state == "running"
    assert settle(world).result == "done"
    assert counted("count") == 1


def test_an_overlapping_delivery_that_fails_does_not_undo_the_commit(world: World) -> None:
    """W2: a commit has no lease; the error of one delivery is not the step's when another has."""
    if world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    runs: list[str] = []

    def commit() -> int:
        if not runs:
            runs.append("outer")
            attempt = world.current
            in_threads(lambda: world.answer(attempt))
            raise ValueError("it was done already")
        runs.append("inner")
        return CODE.act_in_store("count")

    def code(step: Steps) -> int:
        number = step.commit("count", commit)
        step.sleep("a little", seconds=30)
        return number

    assert run(world, code).result == 1
    assert (counted("count"), runs) == (1, ["outer", "inner"])


@one_emulator
def test_a_call_that_lost_its_result_is_made_again_and_counted(world: World) -> None:
    """W5: its write failed for good; the flow was cancelled before the next delivery."""

    def code(step: Steps) -> None:
        step.outside("first", CODE.act, "first")
        step.outside("second", breaks)

    def breaks() -> None:
        CODE.act("second")
        if CODE.done.count("second") == 1:
            world.plan.break_next("Commit", "error", 10)

    world.fails_fast = False
    CODE.run = code
    probe.start(world.clients, ID)
    world.deliver(world.engine.due()[0].task_name)
    assert probe.state(ID).steps["second"].is_called
    probe.cancel(ID)
    state = settle(world)
    assert state.steps["second"].doubts == 1
    assert (state.state, CODE.done) == ("cancelled", ["first", "second", "second"])


@one_emulator
def test_a_flow_takes_one_delivery_and_few_writes(world: World) -> None:
    """W6: quick steps run one after the other: a write for a commit, two for a call."""

    def code(step: Steps) -> None:
        step.commit("a", CODE.act_in_store, "a")
        for name in "bcd":
            step.outside(name, CODE.act, name)

    CODE.run = code
    probe.start(world.clients, ID)
    before = world.clients.meter.cost()
    world.deliver(world.engine.due()[0].task_name)
    cost = world.clients.meter.cost() - before
    assert probe.state(ID).state == "succeeded"
    assert cost.writes == 2 + 3 * 2 + 1  # The row that the step writes itself, too.
    assert not world.engine.due()


@one_emulator
def test_a_flow_starts_with_its_transaction_or_not_at_all(world: World) -> None:
    """W7: and the first one of an id is the one that is there."""

    def fails() -> None:
        raise KeyError("the user's")

    with pytest.raises(KeyError):
        in_transaction(lambda: probe.start(world.clients, ID), fails)
    world.settle(patience_s=60)
    assert run_key(f"test-probe|{ID}").get() is None

    started = in_transaction(
        lambda: probe.start(world.clients, ID),
        lambda: probe.signal(world.clients, ID, "go", 1),
        lambda: probe.signal(world.clients, ID, "go", 2),
    )
    CODE.run = lambda step: [step.wait_for(name, event="go") for name in "ab"] and "went"
    assert started == [True, True, True]
    assert settle(world).result == "went"
    assert not probe.start(world.clients, ID)


@one_emulator
@pytest.mark.parametrize("fault", ["", "reply-lost", "error"])
def test_a_flow_starts_once_by_one_write(world: World, fault: str) -> None:
    """W7: a start whose reply was lost knows its own row; another's is left alone."""
    CODE.run = lambda step: step.outside("a", CODE.act, "a")
    before = world.clients.meter.cost()
    if fault:
        world.plan.break_next("Commit", fault, 1)
    assert probe.start(world.clients, ID)
    cost = world.clients.meter.cost() - before
    assert (cost.reads, cost.tasks) == (1 if fault else 0, 1)
    assert not probe.start(world.clients, ID)
    assert settle(world).state == "succeeded"
    assert CODE.done == ["a"]


@one_emulator
def test_a_step_may_send_its_own_flow_an_event(world: World) -> None:
    """W7: in the commit of its own row, which loses neither."""

    def send() -> None:
        probe.signal(ID, "go", "there")
        CODE.act_in_store("sent")

    def code(step: Steps) -> object:
        step.commit("send", send)
        event = step.wait_for("go", timeout_s=60)
        return event and event.payload

    assert run(world, code).result == "there"
    assert counted("sent") == 1


@one_emulator
def test_a_delivery_for_nothing_costs_no_write(world: World) -> None:
    """W6: a duplicate of a task does not go on as a second chain of tasks."""

    def code(step: Steps) -> None:
        step.commit("count", CODE.act_in_store, "count")
        step.wait_for("go", timeout_s=3600)

    run(world, code)
    tasks, before = len(world.live_tasks("default")), row()
    deliver_again(world)
    assert len(world.live_tasks("default")) == tasks
    assert row() == before
