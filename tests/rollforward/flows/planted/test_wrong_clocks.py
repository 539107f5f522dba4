"""Flows on machines whose clocks are wrong by a minute: late at worst, and never in a loop."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.flows import RetryPolicy, Steps
from rollforward.flows.rows.entities import run_key
from rollforward.flows.rows.records import DONE, StepRecord
from rollforward.flows.wakes import FlowArgs
from tests.infra.clocks import Ahead
from tests.infra.world import World
from tests.rollforward.flows.in_lanes.test_flows_in_lanes import ONE, with_lanes
from tests.rollforward.flows.probe import CODE, ID, RUN_ID, probe, settle
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

lane_world = pytest.fixture(with_lanes)


def sleep(step: Steps) -> None:
    step.sleep("a", seconds=300)


def wait(step: Steps) -> None:
    step.wait_for("a", timeout_s=300)


def pause(step: Steps) -> None:
    step.retrying(RetryPolicy(first_s=300, longest_s=300)).outside("a", CODE.act, "a")


def set_clock(world: World, seconds: float) -> None:
    """Let the clock of the app be ahead of the queue's, or behind."""
    object.__setattr__(world.clients, "clock", Ahead(world.clock, seconds))


def deliveries_when_behind(world: World, code: Any) -> int:
    """Let a flow's time come while the app's clock is 50 s behind; return how often it ran."""
    runs: list[Steps] = []

    def counted(step: Steps) -> None:
        runs.append(step)
        code(step)

    CODE.run = counted
    CODE.fails["a"] = 1
    world.deliver_due()
    world.clock.sleep(299)
    first_runs = len(runs)
    set_clock(world, -50)
    for _ in range(60):
        world.clock.sleep(1)
        for due in world.engine.due()[:3]:
            world.deliver(due.task_name)
    assert probe.state(ID).state == "succeeded"
    return len(runs) - first_runs


@one_emulator
@pytest.mark.parametrize("code", [sleep, wait, pause])
def test_a_flow_whose_time_has_come_for_the_queue_alone_is_not_woken_in_a_loop(
    world: World, code: Any
) -> None:
    """W10: its task would be created for a time that is past, and come at once."""
    probe.start(world.clients, ID)
    assert deliveries_when_behind(world, code) == 2


@one_emulator
def test_such_a_flow_is_not_woken_in_a_loop_in_its_lane(lane_world: World) -> None:
    """W10: nor does each wake add a turn there."""
    probe.start_in(lane_world.clients, ONE("ada"), ID)
    assert deliveries_when_behind(lane_world, sleep) == 1


@one_emulator
def test_a_delivery_for_nothing_in_a_sleep_costs_no_write(world: World) -> None:
    """W6: nor a task for the end of the sleep, which has one."""
    CODE.run = sleep
    probe.start(world.clients, ID)
    world.deliver_due()
    before = run_key(RUN_ID).get(use_cache=False)
    probe.task.enqueue(world.clients, FlowArgs(RUN_ID))
    world.deliver_due()
    assert run_key(RUN_ID).get(use_cache=False) == before
    assert len(world.live_tasks("default")) == 1


@one_emulator
def test_a_sleep_is_not_cut_short_by_a_step_that_a_fast_clock_has_begun(world: World) -> None:
    """W10: only a step that began behind the sleep says that it is over."""

    def code(step: Steps) -> None:
        step.outside("before", CODE.act, "before")
        step.sleep("nap", seconds=30)
        step.outside("behind", CODE.act, "behind")

    CODE.run = code
    probe.start(world.clients, ID)
    row = run_key(RUN_ID).get()
    ahead_s = world.clock.time_s + 60
    row.note("before", StepRecord("outside", DONE, began=ahead_s, ended=ahead_s, value='"before"'))
    row.put()
    world.deliver_due()
    world.clock.sleep(5)
    probe.task.enqueue(world.clients, FlowArgs(RUN_ID))
    world.deliver_due()
    assert CODE.done == []
    world.clock.sleep(25)
    assert settle(world).state == "succeeded"
    assert CODE.done == ["behind"]
