"""Rejected, cancelled and retried flows: each effect is undone once, or is done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.batches.entities import state_key
from rollforward.flows import BadFlowError, FlowRefusedError, StepFailedError, Steps
from rollforward.flows.rows.entities import run_key
from rollforward.testing.injection import CRASH_AFTER, CRASH_BEFORE, Crash
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    ProbeCount,
    counted,
    probe,
    reject,
    run,
    settle,
)
from tests.rollforward.flows.shop import FlowMail, mail
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


def undo_in_store(name: str) -> None:
    CODE.act_in_store(f"undo {name}")


def trip(step: Steps) -> None:
    """Do three things, wait, and do one more; each but the last can be undone."""
    step.commit("a", CODE.act_in_store, "a")
    step.undo_commit("undo a", undo_in_store, "a")
    step.outside("b", CODE.act, "b")
    step.undo("undo b", CODE.act, "undo b")
    step.wait_for("go", timeout_s=DAY_S)
    step.outside("c", CODE.act, "c")
    step.undo("undo c", CODE.act, "undo c")
    reject("not wanted")


UNDONE = ["a", "b", "c", "undo c", "undo b", "undo a"]


@one_emulator
def test_a_rejected_flow_is_undone_backwards_once(world: World) -> None:
    """W13: an undo that fails for a while is tried again; one that rejects is passed over."""
    CODE.fails["undo b"] = 2
    run(world, trip)
    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, state.reason) == ("rejected", "not wanted")
    assert CODE.done == ["a", "b", "c", "undo c", *["undo b"] * 3, "undo a"]
    assert counted("undo a") == 1


@ndb.tasklet
def undo_as_tasklet(name: str) -> Any:
    yield ProbeCount.get_by_id_async(name)
    undo_in_store(name)


@one_emulator
def test_an_undo_that_is_a_tasklet_has_failed_if_it_raises_late(world: World) -> None:
    """W13: it was noted as done at its first `yield`, and was not tried again."""

    def code(step: Steps) -> None:
        step.undo_commit("undo a", undo_as_tasklet, "a")
        reject("not wanted")

    CODE.fails["undo a"] = 1
    assert run(world, code).state == "rejected"
    assert CODE.done == ["undo a", "undo a"]
    assert counted("undo a") == 1


@one_emulator
def test_a_step_that_rejects_is_called_once(world: World) -> None:
    """W13: its rejection is its outcome, and the reason of the flow's."""

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        step.outside("asked", CODE.act, "asked")
        step.outside("no", reject, "no boots")

    CODE.fails["undo"] = 1
    state = run(world, code)
    assert (state.state, state.reason) == ("rejected", "no boots")
    assert CODE.done == ["asked", "undo", "undo"]


@one_emulator
def test_a_cancelled_flow_is_undone_as_far_as_it_came(world: World) -> None:
    """W14: while it waits; and twice is once, whichever reply was lost."""
    run(world, trip)
    world.plan.break_next("Commit", "reply-lost", 1)
    assert probe.cancel(world.clients, ID)
    state = settle(world)
    assert state.state == "cancelled"
    assert CODE.done == ["a", "b", "undo b", "undo a"]
    assert probe.cancel(world.clients, ID)
    with pytest.raises(FlowRefusedError, match="is cancelled"):
        probe.retry(world.clients, ID)


@one_emulator
def test_an_event_wakes_no_flow_that_is_being_undone(world: World) -> None:
    """W14: it is kept, and the flow stays due as it was."""
    run(world, trip)
    probe.cancel(world.clients, ID)
    due = run_key(f"test-probe|{ID}").get().due
    world.clock.sleep(5)
    assert probe.signal(world.clients, ID, "go")
    assert run_key(f"test-probe|{ID}").get().due == due
    state = settle(world)
    assert (state.state, state.unread) == ("cancelled", ["go"])


@one_emulator
def test_a_cancellation_before_the_first_delivery_does_nothing(world: World) -> None:
    """W14: no step begins."""
    CODE.run = trip
    probe.start(world.clients, ID)
    probe.cancel(world.clients, ID)
    assert (settle(world).state, CODE.done) == ("cancelled", [])


@pytest.mark.parametrize("during", ["a", "b"])
def test_a_cancellation_during_a_step_lets_it_end_first(world: World, during: str) -> None:
    """W14: a commit's transaction has read the row, so it begins again and finds it cancelled."""
    if (world.services.datastore_kind, during) == ("firestore", "a"):
        pytest.skip("it locks: the cancellation would wait for the commit, which waits for it")
    act, act_in_store = CODE.act, CODE.act_in_store

    def cancel(name: str) -> None:
        if name == during and name not in CODE.done:

            def apart() -> None:
                with world.clients.context():
                    probe.cancel(world.clients, ID)

            in_threads(apart)

    def code(step: Steps) -> None:
        step.commit("a", lambda: (cancel("a"), act_in_store("a"))[1])
        step.undo_commit("undo a", undo_in_store, "a")
        step.outside("b", lambda: (cancel("b"), act("b"))[1])
        step.undo("undo b", act, "undo b")
        step.outside("c", act, "c")

    state = run(world, code)
    assert state.state == "cancelled"
    if during == "b":
        assert CODE.done == ["a", "b", "undo b", "undo a"]
    else:
        assert counted("a") == 0
    assert counted("a") == counted("undo a")
    assert "c" not in CODE.done


@one_emulator
@pytest.mark.parametrize("kind", [CRASH_BEFORE, CRASH_AFTER])
@pytest.mark.parametrize("dies_over", ["b", "c"])
def test_a_call_in_doubt_is_made_to_its_end_and_then_undone(
    world: World, kind: str, dies_over: str
) -> None:
    """W5: cancelled after its worker died over it, be it the first call of its delivery or not."""

    def calls(name: str) -> str:
        CODE.act(name)
        if name == dies_over and CODE.done.count(name) == 1:
            world.plan.break_next("Commit", kind, 1)
        return name

    def code(step: Steps) -> None:
        for name in "bcd":
            step.outside(name, calls, name)
            step.undo(f"undo {name}", CODE.act, f"undo {name}")

    CODE.run = code
    probe.start(world.clients, ID)
    assert world.deliver(world.engine.due()[0].task_name) is None
    probe.cancel(world.clients, ID)
    state = settle(world)
    assert state.state == "cancelled"
    is_doubled = kind == CRASH_BEFORE
    assert state.steps[dies_over].doubts == is_doubled
    first = CODE.done[: CODE.done.index(f"undo {dies_over}")]
    assert first.count(dies_over) == 1 + is_doubled
    undone = [name for name in CODE.done if name.startswith("undo")]
    assert undone == [f"undo {name}" for name in reversed("bcd"[: "bcd".index(dies_over) + 1])]


@one_emulator
def test_a_cancellation_keeps_the_way_that_the_code_took(world: World) -> None:
    """W14: a failure that the code caught is an outcome: it is not tried again for another one."""

    def code(step: Steps) -> None:
        try:
            step.outside("card", CODE.act, "card")
        except StepFailedError:
            step.outside("invoice", CODE.act, "invoice")
            step.undo("no invoice", CODE.act, "no invoice")
        step.wait_for("go")

    CODE.fails["card"] = 3
    run(world, code)
    probe.cancel(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["card"] * 3 + ["invoice", "no invoice"]


@one_emulator
def test_a_flow_whose_undo_failed_waits_for_a_person(world: World) -> None:
    """W15: who retries or cancels it; its end stays the one that it was to have."""
    CODE.fails["undo b"] = 6
    run(world, trip)
    probe.cancel(world.clients, ID)
    assert settle(world).state == "failed"
    probe.retry(world.clients, ID)
    assert settle(world).state == "failed"
    assert probe.cancel(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["a", "b", *["undo b"] * 7, "undo a"]


@one_emulator
def test_a_cancellation_does_not_rename_a_rejection(world: World) -> None:
    """W15: the caller learns it."""
    CODE.fails["undo c"] = 3
    run(world, trip)
    probe.signal(world.clients, ID, "go")
    assert settle(world).state == "failed"
    assert not probe.cancel(world.clients, ID)
    assert settle(world).state == "rejected"


@one_emulator
@pytest.mark.parametrize("is_gone", [False, True])
def test_the_batch_of_a_cancelled_flow_is_cancelled(world: World, *, is_gone: bool) -> None:
    """W14: its tasks that have not begun do not begin; one whose rows are gone holds nobody up."""
    CODE.run = lambda step: step.batch("mails", [(mail, mail.bind("o", n)) for n in range(3)])
    probe.start(world.clients, ID)
    world.deliver(world.engine.due()[0].task_name)
    assert probe.batch is not None
    batch_id = probe.state(ID).steps["mails"].batch
    if is_gone:
        state_key(probe.batch.declaration.key(batch_id)).delete()
    probe.cancel(world.clients, ID)
    [flow_task] = [task for task in world.live_tasks("default") if is_of_flow(task)]
    world.deliver(flow_task.name)
    state = settle(world)
    assert state.state == "cancelled"
    assert is_gone or probe.batch.progress(batch_id).outcome == "cancelled"
    assert not FlowMail.query().fetch()


@one_emulator
@pytest.mark.parametrize("dies", [False, True])
def test_a_batch_does_not_start_after_its_flow_was_undone(
    world: World, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    """W14: its delivery had noted the step, and another one ended the flow; it may die then."""
    assert probe.batch is not None
    sound = probe.batch.populate

    def populate(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        probe.cancel(world.clients, ID)
        delivered = world.current
        in_threads(lambda: world.answer(delivered))
        assert probe.state(ID).state == "cancelled"
        try:
            return sound(*args, **options)
        finally:
            if dies:
                raise Crash

    CODE.run = lambda step: step.batch("mails", [(mail, mail.bind("o", n)) for n in range(3)])
    probe.start(world.clients, ID)
    monkeypatch.setattr(probe.batch, "populate", populate)
    state = settle(world)
    assert state.state == "cancelled"
    assert probe.batch.progress(state.steps["mails"].batch).outcome == "cancelled"
    assert not FlowMail.query().fetch()


@one_emulator
def test_the_batch_of_a_flow_that_other_code_rejects_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W14: its worker died before the flow waited for it, and the new code does not come there."""
    assert probe.batch is not None
    sound = probe.batch.populate

    def populate(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        sound(*args, **options)
        CODE.run = lambda step: reject("not wanted")
        raise Crash

    CODE.run = lambda step: step.batch("mails", [(mail, mail.bind("o", n)) for n in range(3)])
    probe.start(world.clients, ID)
    monkeypatch.setattr(probe.batch, "populate", populate)
    flow_task = world.engine.due()[0].task_name
    world.deliver(flow_task)
    world.clock.sleep(5)
    world.deliver(flow_task)
    state = settle(world)
    assert state.state == "rejected"
    assert probe.batch.progress(state.steps["mails"].batch).outcome == "cancelled"


@one_emulator
def test_a_retry_from_a_step_gives_its_events_back_and_new_keys(world: World) -> None:
    """W16: the steps before it keep their outcomes; their effects stay."""
    keys: list[str] = []

    def code(step: Steps) -> object:
        step.outside("a", CODE.act, "a")
        keys.append(step.key("b"))
        step.outside("b", CODE.act, "b")
        first = step.wait_for("one", event="go")
        second = step.wait_for("two", event="go")
        return [first and first.payload, second and second.payload]

    run(world, code)
    probe.signal(world.clients, ID, "go", "first")
    probe.signal(world.clients, ID, "go", "x" * 1_000)
    assert settle(world).state == "succeeded"
    with pytest.raises(FlowRefusedError, match="say from which step"):
        probe.retry(world.clients, ID)
    with pytest.raises(FlowRefusedError, match="no step 'other'"):
        probe.retry(world.clients, ID, from_step="other")
    world.plan.break_next("Commit", "reply-lost", 1)
    probe.retry(world.clients, ID, from_step="b")
    state = settle(world)
    assert (state.state, state.result) == ("succeeded", ["first", "x" * 1_000])
    assert CODE.done == ["a", "b", "b"]
    assert len(set(keys)) == 2
    assert run_key(f"test-probe|{ID}").get().generation == 2


@one_emulator
def test_a_retry_is_made_once_for_its_request(world: World) -> None:
    """W16: also if it is asked again after the next end, or its reply was lost."""
    run(world, lambda step: step.outside("a", CODE.act, "a"))

    def retry(request_id: str) -> bool:
        return probe.retry(world.clients, ID, from_step="a", request_id=request_id)

    world.plan.break_next("Commit", "reply-lost", 1)
    assert retry("r1")
    assert not retry("r1")
    assert settle(world).state == "succeeded"
    assert not retry("r1")
    assert settle(world).state == "succeeded"
    assert CODE.done == ["a", "a"]
    for number in range(2, 23):
        assert retry(f"r{number}")
        settle(world)
    assert not retry("r3")
    assert retry("r1"), "the last 20 are known"
    with pytest.raises(BadFlowError, match="request_id must have at most"):
        retry("x" * 101)


@one_emulator
def test_a_mistake_between_steps_fails_the_flow_and_loses_nothing(world: World) -> None:
    """W16: after ten deliveries; a new version of the code goes on from there."""
    world.fails_fast = False

    def code(step: Steps) -> object:
        step.outside("a", CODE.act, "a")
        return {}["mistake"]

    run(world, code)
    for _ in range(12):
        world.clock.sleep(3600)
        world.settle(patience_s=60)
    state = settle(world)
    assert state.state == "failed"
    assert state.reason.startswith("gave up after 10 failures: KeyError: 'mistake'\n")
    assert 'return {}["mistake"]' in state.reason
    CODE.run = lambda step: step.outside("a", CODE.act, "a")
    probe.retry(world.clients, ID)
    assert (settle(world).result, CODE.done) == ("a", ["a"])


Act = Callable[[World], object]


def is_of_flow(task: Any) -> bool:
    return task.http_request.url.endswith(probe.task.path)


@one_emulator
@pytest.mark.parametrize(
    "act", [probe.cancel, lambda clients, id_: probe.signal(clients, id_, "x")]
)
def test_a_change_during_the_last_write_is_not_lost(world: World, act: Act) -> None:
    """W14: a flow that was cancelled before its end is written does not succeed."""

    def code(step: Steps) -> str:
        step.undo("undo", CODE.act, "undo")
        step.outside("a", CODE.act, "a")
        act(world.clients, ID)  # type: ignore[call-arg]
        return "done"

    state = run(world, code)
    is_cancelled = act == probe.cancel
    assert state.state == ("cancelled" if is_cancelled else "succeeded")
    assert CODE.done == (["a", "undo"] if is_cancelled else ["a"])
    assert state.unread == ([] if is_cancelled else ["x"])
