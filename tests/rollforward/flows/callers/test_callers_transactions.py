"""Changes of flows in a transaction of their caller: with its rows, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.flows import FlowEndedError, Steps, UnknownFlowError
from rollforward.flows.rows.entities import run_key
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    RUN_ID,
    in_transaction,
    probe,
    run,
    settle,
)
from tests.rollforward.flows.shop import order
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


class CallerRow(ndb.Model):
    """A row that a caller writes with its change of a flow."""


def put() -> None:
    CallerRow(id="c").put()


def has_put() -> bool:
    return CallerRow.get_by_id("c", use_cache=False) is not None


def fails() -> None:
    raise KeyError("the caller's")


def code(step: Steps) -> Any:
    step.outside("a", CODE.act, "a")
    step.undo("undo a", CODE.act, "undo a")
    event = step.wait_for("go", timeout_s=DAY_S)
    step.outside("b", CODE.act, "b")
    return event and event.payload


Act = Callable[[World], Any]
# Each change, whether its flow has failed before, and what becomes of the flow by it.
ACTS: dict[str, tuple[Act, bool, tuple[str, Any, list[str]]]] = {
    "signal": (
        lambda world: probe.signal(world.clients, ID, "go", "there"),
        False,
        ("succeeded", "there", ["a", "b"]),
    ),
    "cancel": (
        lambda world: probe.cancel(world.clients, ID),
        False,
        ("cancelled", None, ["a", "undo a"]),
    ),
    "retry": (
        lambda world: probe.retry(world.clients, ID),
        True,
        ("succeeded", "there", ["a", "b", "b", "b", "b"]),
    ),
    "retry from a step": (
        lambda world: probe.retry(world.clients, ID, from_step="a"),
        True,
        ("succeeded", "there", ["a", "b", "b", "b", "a", "b"]),
    ),
}


def begin(world: World, *, has_failed: bool) -> None:
    """Let a flow wait for its event, or fail after it."""
    run(world, code)
    if has_failed:
        CODE.fails["b"] = 3
        probe.signal(world.clients, ID, "go", "there")
        settle(world)
        assert settle(world, days=0.01).state == "failed"


@one_emulator
@pytest.mark.parametrize("name", ACTS)
def test_a_change_is_rolled_back_with_its_callers_transaction(world: World, name: str) -> None:
    """W7: the flow's row is as before, and a wake, of which one too many may come, does nothing."""
    act, has_failed, _ = ACTS[name]
    begin(world, has_failed=has_failed)
    before, done = run_key(RUN_ID).get(), list(CODE.done)

    with pytest.raises(KeyError):
        in_transaction(put, lambda: act(world), fails)

    assert not has_put()
    settle(world, days=0.01)
    assert run_key(RUN_ID).get(use_cache=False) == before
    assert CODE.done == done


@one_emulator
@pytest.mark.parametrize("fault", ["", "reply-lost", "error"])
@pytest.mark.parametrize("name", ACTS)
def test_a_change_is_committed_with_its_callers_transaction(
    world: World, name: str, fault: str
) -> None:
    """W7: once, although a commit or its reply is lost and the transaction runs again."""
    act, has_failed, (state, result, done) = ACTS[name]
    begin(world, has_failed=has_failed)
    if fault:
        world.plan.break_next("Commit", fault, 1)

    assert in_transaction(put, lambda: act(world)) == [None, True]

    assert has_put()
    ended = settle(world)
    assert (ended.state, ended.result, CODE.done) == (state, result, done)
    assert run_key(RUN_ID).get().generation == 1 + ("retry" in name)
    assert ended.unread == []


@one_emulator
def test_changes_of_one_transaction_follow_each_other(world: World) -> None:
    """W7: each sees what those before it in the same transaction have made of the flow."""
    clients = world.clients
    CODE.run = code
    answers = in_transaction(
        lambda: probe.start(clients, ID),
        lambda: probe.start(clients, ID),
        lambda: probe.signal(clients, ID, "go", 1, event_id="e"),
        lambda: probe.signal(clients, ID, "go", 2, event_id="e"),
        lambda: probe.cancel(clients, ID),
        lambda: probe.cancel(clients, ID),
    )
    assert answers == [True] * 6, "each is true of the transaction"
    state = settle(world)
    assert (state.state, state.unread, CODE.done) == ("cancelled", ["go"], [])

    def end() -> None:
        with pytest.raises(FlowEndedError):
            probe.signal(clients, ID, "go", 3)
        assert probe.cancel(clients, ID)

    in_transaction(end)
    assert probe.state(ID) == state


@one_emulator
def test_a_start_with_other_arguments_in_one_transaction_starts_nothing(world: World) -> None:
    """W7: its arguments are dropped, and it says so; one with the same has started the flow."""
    items = ["book", "book", "lamp"]
    starts = [partial(order.start, world.clients, ID, item) for item in items]
    assert in_transaction(*starts) == [True, True, False]


@one_emulator
def test_a_change_that_is_refused_takes_all_of_its_transaction_with_it(world: World) -> None:
    """W7: one flow has its event, or cancellation, only if the other is there."""
    run(world, code)
    before = run_key(RUN_ID).get()

    for act in (
        lambda: probe.signal(world.clients, ID, "go"),
        lambda: probe.cancel(world.clients, ID),
    ):
        with pytest.raises(UnknownFlowError):
            in_transaction(act, put, lambda: probe.cancel(world.clients, "nobody"))

    assert run_key(RUN_ID).get(use_cache=False) == before
    assert not has_put()
    assert settle(world).state == "running"
