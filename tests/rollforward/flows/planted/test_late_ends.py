"""Tasks that are given up late: a run of a flow that came after theirs goes on."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.flows import Steps
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.steps import delivery
from rollforward.flows.wakes import FlowArgs, args_of
from tests.infra.world import World
from tests.rollforward.flows.probe import CODE, ID, RUN_ID, deliver_again, probe, settle
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


def row() -> FlowRun:
    """Return the flow as it is stored."""
    stored = run_key(RUN_ID).get(use_cache=False)
    assert isinstance(stored, FlowRun)
    return stored


def give_up(world: World, args: FlowArgs) -> None:
    delivery.give_up(world.clients, args, "gave up")


@one_emulator
def test_a_task_that_is_given_up_twice_fails_no_flow_that_was_retried_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W16: the reply of its first end was lost, so the queue delivers it once more."""
    has_bug = True

    def code(step: Steps) -> None:
        if has_bug:
            raise ValueError("a mistake between steps")
        step.wait_for("go")

    def transact_without_reply(body: Any) -> None:
        monkeypatch.undo()
        delivery.transact(body)
        raise rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]

    world.fails_fast = False
    CODE.run = code
    probe.start(world.clients, ID)
    monkeypatch.setattr(delivery, "transact", transact_without_reply)
    while row().state != "failed":
        due = world.engine.due()
        if due:
            world.deliver(due[0].task_name)
        else:
            world.clock.sleep(1)
    has_bug = False
    probe.retry(world.clients, ID)
    assert settle(world).state == "running"


@one_emulator
def test_a_task_of_an_earlier_run_fails_no_later_one_of_its_name(world: World) -> None:
    """W16: the flow was retried since, or cancelled, or another has its id."""
    CODE.run = lambda step: step.wait_for("go")
    probe.start(world.clients, ID)
    first = args_of(row())
    settle(world)
    give_up(world, first)
    assert row().state == "failed"

    probe.retry(world.clients, ID)
    second = args_of(row())
    settle(world)
    give_up(world, first)
    assert row().state == "running"

    give_up(world, second)
    assert row().state == "failed"
    probe.cancel(world.clients, ID)
    give_up(world, second)
    assert row().state == "undoing"
    settle(world)

    row().key.delete()
    probe.start(world.clients, ID)
    give_up(world, first)
    assert row().state == "running"


@one_emulator
def test_a_task_of_an_older_version_fails_its_flow_and_is_read(world: World) -> None:
    """W20: its arguments say nothing of a run; theirs are ignored there."""
    CODE.run = lambda step: step.wait_for("go")
    probe.start(world.clients, ID)
    assert deliver_again(world).state == "running"
    give_up(world, FlowArgs(RUN_ID))
    assert row().state == "failed"
