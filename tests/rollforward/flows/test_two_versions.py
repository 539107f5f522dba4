"""Two versions of a flow's code, side by side: a name means one thing, and nothing else counts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from google.cloud import ndb

from rollforward.flows import Steps, listing
from rollforward.flows.pattern import Flows
from rollforward.flows.rows.entities import FlowRun, run_key
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    RUN_ID,
    counted,
    deliver_again,
    probe,
    run,
    settle,
)
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


@one_emulator
def test_a_new_version_adds_drops_and_reorders_steps(world: World) -> None:
    """W20: what is done stays done; a step that the code dropped is shown, and ignored."""

    def old(step: Steps) -> None:
        for name in ("dropped", "a", "b"):
            step.outside(name, CODE.act, name)
        step.wait_for("go", timeout_s=DAY_S)
        step.outside("never", CODE.act, "never")

    def new(step: Steps) -> str:
        for name in ("b", "added", "a"):
            step.outside(name, CODE.act, name)
        event = step.wait_for("go", timeout_s=1)
        step.outside("end", CODE.act, "end")
        return "timed out" if event is None else "came"

    run(world, old)
    CODE.run = new
    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, state.result) == ("succeeded", "came")
    assert CODE.done == ["dropped", "a", "b", "added", "end"]
    assert list(state.steps) == ["dropped", "a", "b", "go", "added", "end"]


@one_emulator
def test_a_sleep_is_not_cut_short_by_a_step_before_it(world: World) -> None:
    """W20: that only the new version has."""

    def old(step: Steps) -> None:
        step.sleep("long", days=2)
        step.outside("end", CODE.act, "end")

    def new(step: Steps) -> None:
        step.outside("added", CODE.act, "added")
        old(step)

    run(world, old)
    CODE.run = new
    probe.task.enqueue(world.clients, probe.task.args(f"test-probe|{ID}"))
    assert settle(world).state == "running"
    assert CODE.done == ["added"]
    assert settle(world, days=2.1).state == "succeeded"
    assert CODE.done == ["added", "end"]


@one_emulator
def test_a_version_that_does_not_read_a_step_leaves_it_to_the_other(world: World) -> None:
    """W20: of another kind, or with a result of another type: the queue delivers it again."""

    def text() -> str:
        return "boots"

    def number() -> int:
        return 7

    def old(step: Steps) -> str:
        kept = step.outside("a", text)
        step.wait_for("go")
        return kept

    run(world, old)
    probe.signal(world.clients, ID, "go")
    versions: list[Callable[[Steps], object]] = [
        lambda step: step.sleep("a", days=1),
        lambda step: step.outside("a", number),
    ]
    for version in versions:
        CODE.run = version
        state = settle(world)
        assert (state.state, state.steps["go"].state) == ("running", "waiting")
    CODE.run = old
    world.clock.sleep(3600)
    assert settle(world).result == "boots"


@one_emulator
def test_an_operator_sees_that_a_flow_waits_for_another_version(world: World) -> None:
    """W20: by a gauge, in the list and on its page, until a version goes on with it."""
    run(world, lambda step: step.outside("a", CODE.act, "a") and step.wait_for("go"))
    due = run_key(RUN_ID).get().due
    CODE.run = lambda step: step.sleep("a", days=1)
    deliver_again(world)
    begun_at = run_key(RUN_ID).get().other_version_since
    world.clock.sleep(300)
    state = settle(world)
    row = run_key(RUN_ID).get()
    assert "of the kind outside" in state.other_version
    assert (row.other_version_since, row.due) == (begun_at, due)
    details = world.registry.run(world.clients, "flows", RUN_ID)
    assert details.run.note == "waits for another version of the code"
    assert details.run.reason == state.other_version
    assert details.numbers["waits_for_version_since_at"] == begun_at.timestamp()
    assert waiting_for_version(world) == 1

    CODE.run = lambda step: step.outside("a", CODE.act, "a") and step.wait_for("go")
    world.clock.sleep(60)
    settle(world)
    assert probe.state(ID).other_version == ""
    assert (waiting_for_version(world), run_key(RUN_ID).get().due) == (0, due)


@one_emulator
def test_a_flow_that_no_version_goes_on_with_fails(world: World) -> None:
    """W20: after an hour; then it waits for a person, and no more for a version."""
    run(world, lambda step: step.outside("a", CODE.act, "a") and step.wait_for("go"))
    CODE.run = lambda step: step.sleep("a", days=1)
    deliver_again(world)
    world.clock.sleep(3700)
    state = settle(world)
    assert (state.state, state.other_version) == ("failed", "")
    assert "of the kind outside" in state.reason
    assert waiting_for_version(world) == 0


@one_emulator
def test_gauges_read_no_flow_to_count_it(world: World) -> None:
    """Keys cost nothing: a monitor that asks each minute pays for no backlog."""
    now = world.clients.clock.now().replace(tzinfo=None)
    fields = {"args": "{}", "created": now, "started_by": "t", "other_version_since": now}
    rows = [FlowRun(key=run_key(f"test-probe|{number}"), **fields) for number in range(10)]
    ndb.put_multi(rows)
    before = world.clients.meter.cost()

    gauges = Flows().gauges(world.clients, [probe])

    assert (world.clients.meter.cost() - before).reads == 0
    assert [gauge.value for gauge in gauges] == [10, 0, 10, 0]


def waiting_for_version(world: World) -> float:
    gauges = world.registry.gauges(world.clients)
    [value] = [gauge.value for gauge in gauges if gauge.name == "flows_waiting_for_version"]
    return value


@one_emulator
@pytest.mark.parametrize("has_failed", [False, True])
def test_a_cancelled_flow_whose_code_has_dropped_a_call_waits_for_a_person(
    world: World, *, has_failed: bool
) -> None:
    """W20: nothing tells how to undo it; the version that has it goes on.

    A flow that has failed, and was not being undone, has left no effects to anybody yet.
    """

    def old(step: Steps) -> None:
        step.outside("a", CODE.act, "a")
        step.undo("undo a", CODE.act, "undo a")
        step.wait_for("go")

    def broken(step: Steps) -> None:
        old(step)
        step.sleep("", days=1)  # A mistake of the code.

    run(world, old)
    if has_failed:
        CODE.run = broken
        probe.signal(world.clients, ID, "go")
        assert settle(world).state == "failed"
    CODE.run = lambda step: step.wait_for("go")
    probe.cancel(world.clients, ID)
    state = settle(world)
    assert (state.state, "'a' may have taken effect" in state.reason) == ("failed", True)
    CODE.run = old
    probe.retry(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["a", "undo a"]


@one_emulator
def test_a_cancelled_flow_comes_by_a_new_call_to_those_behind_it_if_a_person_retries_it(
    world: World,
) -> None:
    """W20: it makes no new one by itself, and by a retry none that it does not have to."""

    def acts(*names: str) -> Callable[[Steps], None]:
        def code(step: Steps) -> None:
            for name in names:
                step.outside(name, CODE.act, name)
                step.undo(f"undo {name}", CODE.act, f"undo {name}")
            step.wait_for("go")

        return code

    run(world, acts("a", "b"))
    CODE.run = acts("new", "b", "a", "last")
    probe.cancel(world.clients, ID)
    state = settle(world)
    assert (state.state, "'a', 'b' may have taken effect" in state.reason) == ("failed", True)
    assert CODE.done == ["a", "b"]

    for retry in (
        lambda: probe.retry(world.clients, ID),
        lambda: listing.retry(
            *(world.clients, {"test-probe": probe}, RUN_ID), from_step="", runs=0, request_id="r"
        ),
    ):
        retry()
        assert settle(world).state == "failed"
        assert CODE.done == ["a", "b"]
    probe.retry(world.clients, ID, new_calls=True)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["a", "b", "new", "undo a", "undo b", "undo new"]


@one_emulator
def test_a_cancelled_flow_waits_for_no_event_to_come_to_what_it_undoes(world: World) -> None:
    """W20: it would wait for ever; a person leaves the effects, by one more cancellation."""
    run(world, lambda step: step.outside("a", CODE.act, "a") and step.wait_for("go"))
    CODE.run = lambda step: step.wait_for("new") and step.outside("a", CODE.act, "a")
    probe.cancel(world.clients, ID)
    assert settle(world).state == "failed"
    probe.retry(world.clients, ID, new_calls=True)
    assert settle(world).state == "failed"
    probe.cancel(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["a"]


@one_emulator
@pytest.mark.parametrize("seed", range(3))
def test_deliveries_of_two_versions_do_each_step_once(world: World, seed: int) -> None:
    """W20: whichever version has the next delivery, also twice and in any order."""
    chance = random.Random(seed)
    names = ["a", "b", "c", "d", "e"]

    def version(order: list[str]) -> None:
        def code(step: Steps) -> list[int]:
            made = []
            for name in order:
                made.append(step.commit(name, CODE.act_in_store, name))
                step.outside(f"out {name}", CODE.act, f"out {name}")
                step.sleep(f"sleep {name}", seconds=chance.choice([0, 5]))
            step.wait_for("go", timeout_s=DAY_S)
            return made

        CODE.run = code

    orders = itertools.cycle([names, names[::-1]])
    version(next(orders))
    probe.start(world.clients, ID)
    probe.signal(world.clients, ID, "go")
    while probe.state(ID).state == "running":
        version(next(orders))
        due = world.engine.due()
        if due:
            world.doubles = chance.random() < 0.5
            world.deliver(chance.choice(due).task_name)
        else:
            world.clock.sleep(6)
    state = probe.state(ID)
    assert (state.state, state.result) == ("succeeded", [1] * 5)
    assert [counted(name) for name in names] == [1] * 5
    assert sorted(name for name in CODE.done if "out" in name) == [f"out {name}" for name in names]
