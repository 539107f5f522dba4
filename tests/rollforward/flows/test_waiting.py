"""Waits: for a time, for an event, for a batch. No worker waits, and nothing is lost."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial

import pytest

from rollforward.datastore.expiry import expiry
from rollforward.datastore.partitions import PARTITIONS
from rollforward.flows import FlowEndedError, Steps, flow, sweep
from rollforward.flows.rows import events
from rollforward.flows.rows.entities import RUNNING, SUCCEEDED, UNDOING, FlowRun, run_key
from rollforward.flows.wakes import FlowArgs
from rollforward.runtime import naive_utc
from tests.infra.faults.partly_done import run_again
from tests.infra.world import Services, World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    RUN_ID,
    deliver_again,
    in_transaction,
    probe,
    run,
    settle,
)
from tests.rollforward.flows.shop import FlowMail, mail
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


@flow("test-astray", queue="no-such-queue")
def astray(step: Steps) -> None:
    """Run in a queue that nobody has deployed."""


def payloads(step: Steps) -> list[object]:
    """Take three events of one name, by a step each."""
    events = [step.wait_for(name, event="go", timeout_s=DAY_S) for name in "abc"]
    return [event and event.payload for event in events]


@one_emulator
def test_events_before_the_wait_are_kept_and_taken_in_order(world: World) -> None:
    """W8: each by one step, whether it comes before the wait or during it."""
    CODE.run = payloads
    probe.start(world.clients, ID)
    for number in (1, 2):
        assert probe.signal(world.clients, ID, "go", number)
    probe.signal(world.clients, ID, "other")
    assert settle(world).state == "running"
    probe.signal(world.clients, ID, "go", {"number": 3})
    state = settle(world)
    assert state.result == [1, 2, {"number": 3}]
    assert state.unread == ["other"]


@one_emulator
@pytest.mark.parametrize(("days", "tasks"), [(24, 1), (26, 0)])
def test_a_sleep_that_is_longer_than_the_queue_keeps_a_task_has_none(
    world: World, days: int, tasks: int
) -> None:
    """W11: Cloud Tasks keeps one for thirty days at most; the sweep wakes the flow."""
    run(world, lambda step: step.sleep("a", days=days))

    assert len(world.live_tasks("default")) == tasks


@one_emulator
def test_a_wait_times_out_once_and_for_ever(world: World) -> None:
    """W9: an event that comes later is for the next step; one that came counts, even late."""
    run(world, payloads)
    world.clock.sleep(DAY_S)
    settle(world)
    probe.signal(world.clients, ID, "go", "late for a")
    settle(world)
    world.clock.sleep(DAY_S)  # No worker comes: the event is there when one does.
    probe.signal(world.clients, ID, "go", "in the last second")
    assert settle(world).result == [None, "late for a", "in the last second"]


@one_emulator
def test_an_event_is_kept_once_for_its_id(world: World) -> None:
    """W8: also with a transaction that is rolled back, or runs again."""

    def fails() -> None:
        raise KeyError("the user's")

    run(world, lambda step: step.wait_for("a", event="never", timeout_s=DAY_S))

    def send() -> bool:
        return probe.signal(world.clients, ID, "go", 1, event_id="e1")

    with pytest.raises(KeyError):
        in_transaction(send, fails)
    assert probe.state(ID).unread == []
    world.plan.break_next("Commit", "reply-lost", 1)
    assert send()
    assert not send()
    assert in_transaction(send) == [False]
    assert probe.state(ID).unread == ["go"]


@one_emulator
def test_an_event_has_content_of_any_size(world: World) -> None:
    """W8: in rows of its own."""
    seen: list[object] = []

    def code(step: Steps) -> None:
        event = step.wait_for("go")
        seen.append(event and event.payload)
        step.sleep("a little", seconds=30)

    run(world, code)
    probe.signal(world.clients, ID, "go", ["x" * 2_000_000])
    assert settle(world).state == "succeeded"
    assert seen == [["x" * 2_000_000]] * 2


@one_emulator
def test_a_flow_that_has_ended_takes_no_event(world: World) -> None:
    """W8: its sender learns it; a repetition of one that came before learns that."""
    CODE.run = lambda step: None
    probe.start(world.clients, ID)
    probe.signal(world.clients, ID, "go", event_id="e1")
    settle(world)
    with pytest.raises(FlowEndedError, match="ended as succeeded"):
        probe.signal(world.clients, ID, "go")
    assert not probe.signal(world.clients, ID, "go", event_id="e1")


@one_emulator
def test_a_sleep_of_45_days_costs_no_task(world: World) -> None:
    """W10: the sweep wakes it, and no delivery for nothing wakes it before."""
    run(world, lambda step: step.sleep("long", days=45))
    assert not world.live_tasks("default")
    assert deliver_again(world).state == "running"
    assert settle(world, days=44.9).state == "running"
    state = settle(world, days=0.2)
    assert (state.state, state.steps["long"].state) == ("succeeded", "done")


@one_emulator
@pytest.mark.parametrize("year", [1, 1999, 2026])
def test_a_sleep_until_a_time_that_is_past_is_none(world: World, year: int) -> None:
    """W10: however long ago it was, as of an invoice that was due in another century."""

    def code(step: Steps) -> str:
        step.sleep("a", until=datetime.datetime(year, 1, 1, tzinfo=datetime.UTC))
        return step.outside("b", CODE.act, "b")

    assert run(world, code).result == "b"


@one_emulator
def test_a_sleep_that_has_begun_keeps_its_end_whatever_the_code_says_later(world: World) -> None:
    """W10: also another one that no sleep could begin with."""
    ends = [1.0, 4_000.0]

    def code(step: Steps) -> str:
        step.sleep("a", days=ends[0])
        return "done"

    CODE.run = code
    probe.start(world.clients, ID)
    assert settle(world).state == "running"
    ends.pop(0)
    assert settle(world, days=1.01).result == "done"


@one_emulator
def test_a_lost_wake_is_healed_by_the_sweep(world: World) -> None:
    """W11: of a start, a sleep, an event and a time-out."""

    def code(step: Steps) -> object:
        step.sleep("a little", seconds=600)
        step.wait_for("go", timeout_s=600)
        return step.wait_for("never", timeout_s=600)

    def lose() -> None:
        for task in world.live_tasks("default"):
            world.engine.tasks.delete(task.name)

    def heal(seconds: float) -> str:
        lose()
        world.clock.sleep(seconds)
        world.sweep("/cron/flows/sweep")
        return settle(world).state

    CODE.run = code
    probe.start(world.clients, ID)
    heal(31)
    heal(631)
    assert probe.state(ID).steps["a little"].has_ended
    probe.signal(world.clients, ID, "go")
    heal(31)
    assert probe.state(ID).steps["go"].has_ended
    assert heal(631) == "succeeded"


@one_emulator
@pytest.mark.parametrize("is_first", [False, True])
def test_a_flow_whose_queue_is_missing_holds_up_no_wake_of_another(
    services: Services, is_first: bool
) -> None:
    """W11: both are found, put off and woken together."""
    names = [astray, probe] if is_first else [probe, astray]
    world = World(services, flows=names)
    with world.clients.context():
        CODE.run = lambda step: "done"
        now_utc = naive_utc(world.clock.now())
        for run_id in ("test-astray|f1", RUN_ID):
            row = FlowRun(key=run_key(run_id), args="{}", started_by="t", created=now_utc)
            row.due = now_utc
            row.put()
        world.clock.sleep(1)
        assert world.call_cron("/cron/flows/sweep") == 500
        assert settle(world).state == "succeeded"


@one_emulator
def test_the_sweep_does_not_flood_a_slow_queue(world: World) -> None:
    """W11: a flow that was woken and not delivered is woken ever more rarely."""
    run(world, lambda step: step.sleep("long", days=45))
    world.clock.sleep(45 * DAY_S)
    for _ in range(10):
        world.sweep("/cron/flows/sweep")
    assert len(world.live_tasks("default")) == 1
    for _ in range(60):
        world.clock.sleep(60)
        world.sweep("/cron/flows/sweep")
    assert 5 <= len(world.live_tasks("default")) <= 9


@one_emulator
def test_a_batch_runs_once_and_wakes_the_flow(world: World) -> None:
    """W12: and a flow that failed meanwhile finds its end when it is retried."""

    def code(step: Steps) -> int:
        return step.batch("mails", [(mail, mail.bind("o", number)) for number in range(3)]).done

    def broken(step: Steps) -> int:
        step.outside("new", CODE.act, "new")
        return code(step)

    CODE.run = code
    probe.start(world.clients, ID)
    world.deliver(world.engine.due()[0].task_name)
    assert probe.state(ID).steps["mails"].state == "waiting"
    CODE.run, CODE.fails["new"] = broken, 3
    probe.task.enqueue(world.clients, FlowArgs(f"test-probe|{ID}"))
    state = settle(world)
    assert (state.state, state.steps["mails"].state) == ("failed", "done")
    probe.retry(ID)
    assert settle(world).result == 3
    assert len(FlowMail.query().fetch()) == 3


@one_emulator
@pytest.mark.parametrize("wait", ["sleep", "wait_for", "batch"])
def test_a_wait_does_not_begin_in_a_flow_that_was_cancelled(world: World, wait: str) -> None:
    """W14: not even by the delivery that had read it before: its wake may be lost."""

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        cancel()
        if wait == "sleep":
            step.sleep("wait", days=45)
        elif wait == "wait_for":
            step.wait_for("wait")
        else:
            step.batch("wait", [(mail, mail.bind("o", 1))])

    def cancel() -> None:
        probe.cancel(world.clients, ID)
        for task in world.live_tasks("default"):
            if task.name != world.current.task.name:
                world.engine.tasks.delete(task.name)

    state = run(world, code)
    assert (state.state, CODE.done) == ("cancelled", ["undo"])
    row = run_key(f"test-probe|{ID}").get()
    assert row.state not in (RUNNING, UNDOING)


@one_emulator
def test_another_event_of_a_second_run_is_kept_beside_that_of_the_first(world: World) -> None:
    """W8: the first run was committed, and its reply lost; the second one decides otherwise."""

    def sending(payload: str) -> Callable[[], bool]:
        return lambda: probe.signal(world.clients, ID, "go", payload)

    CODE.run = payloads
    probe.start(world.clients, ID)
    run_again(world, sending("a"), sending("b"), sending("c"), then=True)
    assert settle(world).result == ["a", "b", "c"]


@one_emulator
def test_two_large_events_of_a_transaction_have_content_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8: although the flow knows as many ids of events as it keeps."""
    monkeypatch.setattr(events, "last_ids", lambda ids: dict(list(ids.items())[-3:]))
    sent = [letter * 30_000 for letter in "xyz"]
    CODE.run = payloads
    probe.start(world.clients, ID)
    in_transaction(*[partial(probe.signal, world.clients, ID, "other", None) for _ in range(3)])
    in_transaction(*[partial(probe.signal, world.clients, ID, "go", text) for text in sent])
    assert settle(world).result == sent


@one_emulator
def test_flows_are_forgotten_as_fast_as_they_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: a sweep deletes some, and starts tasks for the rest if there are more."""
    monkeypatch.setattr(sweep.EXPIRED, "page_size", 3)
    ended = naive_utc(world.clock.now() - datetime.timedelta(days=1))
    for number in range(100):
        FlowRun(
            key=run_key(f"test-probe|{number}"),
            **{"args": "{}", "started_by": "a test", "created": ended, "state": SUCCEEDED},
            expires=expiry(PARTITIONS[number % len(PARTITIONS)], ended),
        ).put()
    world.sweep()
    assert len(FlowRun.query().fetch(keys_only=True)) == 97
    world.settle()
    assert not FlowRun.query().fetch(keys_only=True)


@one_emulator
def test_flows_are_woken_however_large_they_are(world: World) -> None:
    """W11: their rows are changed in commits that have room for them; the next sweep goes on."""
    due = naive_utc(world.clock.now())
    large = {"step": {"result": "x" * 900_000}}
    for number in range(20):
        FlowRun(
            key=run_key(f"test-probe|{number}"),
            **{"args": "{}", "started_by": "a test", "created": due, "due": due, "steps": large},
        ).put()
    tasks = {"test-probe": probe.task}
    assert sum(sweep.wake_due(world.clients, tasks) for _ in range(7)) == 20
    assert sweep.wake_due(world.clients, tasks) == 0
