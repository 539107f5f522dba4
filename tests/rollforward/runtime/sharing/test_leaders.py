"""Leaders of groups: what befalls them is no trouble of their followers."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore import current
from rollforward.datastore.transactions import MAX_ATTEMPTS, current_transaction
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.shared_transaction import _Caller, transact_shared
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.runtime.sharing.shared_bodies import (
    SHARED,
    Full,
    Hook,
    add_once,
    calls_of,
    end,
    fail,
    together,
    totals,
)

pytestmark = pytest.mark.fast


def test_an_error_that_the_leader_handles_is_no_error_of_the_group(watched: World) -> None:
    """It leads from its `except` block, where Python links that error to each new one."""
    bodies = [add_once(name) for name in "abc"]
    bodies[1] = add_once("b", lambda: current.put(Full(id="b", text="x" * 2_000_000)))
    bodies[2] = add_once("c", lambda: fail(rpc_errors.PermissionDenied("c")))  # type: ignore[no-untyped-call]
    try:
        fail(rpc_errors.ServiceUnavailable("an old one"))  # type: ignore[no-untyped-call]
    except rpc_errors.ServiceUnavailable:
        answers = together(watched.clients, bodies)
        alone = _Caller(bodies[1], "")
        by_its_thread = end(watched.clients, alone)

    assert answers[0] == "a"
    assert [type(answer) for answer in answers[1:]] == [
        rpc_errors.InvalidArgument,
        rpc_errors.PermissionDenied,
    ]
    assert isinstance(by_its_thread, rpc_errors.InvalidArgument)
    assert alone.attempts == 1
    assert totals("a", "b", "c") == [1, 0, 0]


def test_a_thread_that_is_ended_leaves_no_row_locked(watched: World) -> None:
    """Its transaction is rolled back."""

    def end_thread() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together(watched.clients, [add_once("a"), add_once("b", end_thread)])

    assert calls_of(watched) == [*SHARED[:2], "Rollback"]


def test_a_leader_begins_once_and_again_after_an_attempt_that_failed(watched: World) -> None:
    """It has begun before it knows its group: a begin that fails is an attempt like any other."""
    watched.plan.break_next("BeginTransaction", REPLY_LOST, times=2)

    assert transact_shared(watched.clients, add_once("a")) == "a"
    assert watched.plan.calls == ["BeginTransaction"] * 2 + SHARED
    assert totals("a") == [1]


def test_a_begin_that_always_fails_is_tried_as_often_as_alone(watched: World) -> None:
    """The caller has the service's error after the last attempt."""
    watched.plan.break_next("BeginTransaction", REPLY_LOST, times=100)

    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact_shared(watched.clients, add_once("a"))
    assert watched.plan.calls == ["BeginTransaction"] * MAX_ATTEMPTS


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("error", [rpc_errors.Cancelled, RuntimeError])
def test_a_caller_whose_leader_fails_knows_its_own_result(
    watched: World, monkeypatch: pytest.MonkeyPatch, is_committed: bool, error: type[Exception]
) -> None:
    """Its hooks are called, if it is committed; a caller in doubt goes on alone."""
    calls: list[tuple[str, int]] = []

    def lead(caller: _Caller[Any]) -> None:
        if is_committed:
            shared_transaction._try_together(watched.clients, [caller])
        raise error("of the leader")

    monkeypatch.setattr(shared_transaction, "_groups", lambda clients: lead)
    body = add_once("a", lambda: note_end(calls))
    if error is RuntimeError and not is_committed:
        with pytest.raises(RuntimeError):
            transact_shared(watched.clients, body)
    else:
        assert transact_shared(watched.clients, body) == "a"
        assert [name for name, _ in calls] == ["committed"]
        assert totals("a") == [1]


def note_end(calls: list[tuple[str, int]]) -> None:
    current_transaction().hook("note", lambda: Hook(calls))
