"""Leaders of groups: what befalls them is no trouble of their followers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore import current
from rollforward.datastore.transactions import MAX_ATTEMPTS, current_transaction
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.open_transaction import OpenTransaction
from rollforward.runtime.sharing.shared_transaction import SharedBody, _Caller, transact_shared
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.runtime.sharing.shared_bodies import (
    SHARED,
    Full,
    Hook,
    Proof,
    add_once,
    calls_of,
    end,
    fail,
    keys_of,
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


def test_a_transaction_that_a_leader_has_begun_is_used_once(watched: World) -> None:
    """M9: after a lost reply its group has a new one, in which each finds its own proof."""
    watched.plan.reset(REPLY_LOST, next_call="Commit")

    assert transact_shared(watched.clients, add_once("a")) == "a, again"
    assert calls_of(watched) == [*SHARED, "Rollback", *SHARED]
    assert totals("a") == [1]


def begun_before(world: World, *late: SharedBody[Any], then: Callable[[], object]) -> list[Any]:
    """Let a leader begin, something happen, and others come; return what all learn."""
    callers: list[_Caller[Any]] = [_Caller(add_once("leader"), "")]
    callers[0].begin(world.clients)
    then()
    callers += [_Caller(body, "") for body in late]
    shared_transaction._try_together(world.clients, callers)
    return [end(world.clients, caller) for caller in callers]


def test_who_came_after_the_begin_reads_what_was_there_at_its_call(watched: World) -> None:
    """M9: a store may read as of the begin, and nothing but a commit shows that a row was old."""
    key = keys_of("late")[0]

    def find(keys: Sequence[Any]) -> str:
        [row] = current.get_multi(keys)
        if row is None:
            raise LookupError
        return "found"

    def look(keys: Sequence[Any]) -> bool:
        return current.get_multi(keys)[0] is not None

    raises = SharedBody(find, reads=lambda draw: [key], rows=frozenset("f"))
    only_reads = SharedBody(look, reads=lambda draw: [key], rows=frozenset("l"))
    answers = begun_before(watched, raises, only_reads, then=lambda: Proof(key=key).put())

    assert answers == ["leader", "found", True]
    assert totals("leader") == [1]


def test_who_came_after_the_begin_counts_once_and_has_its_own_error(watched: World) -> None:
    """M9: an error is its caller's own, and final, in a transaction that began after its call."""
    runs: list[str] = []

    def fail_again() -> None:
        runs.append("failing")
        fail(rpc_errors.PermissionDenied("c"))  # type: ignore[no-untyped-call]

    bodies = [add_once("b", lambda: runs.append("b")), add_once("c", fail_again)]
    answers = begun_before(watched, *bodies, then=lambda: None)

    assert answers[:2] == ["leader", "b"]
    assert isinstance(answers[2], rpc_errors.PermissionDenied)
    assert runs == ["b", "failing", "failing"]
    assert totals("leader", "b", "c") == [1, 1, 0]


def test_a_commit_is_known_only_after_it(watched: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: whatever began after that moment sees its rows."""
    ended_s: list[float] = []
    sound = OpenTransaction.commit

    def commit(opened: OpenTransaction, mutations: Sequence[Any]) -> None:
        sound(opened, mutations)
        ended_s.append(time.monotonic())

    monkeypatch.setattr(OpenTransaction, "commit", commit)
    caller = _Caller(add_once("a"), "")
    shared_transaction._try_together(watched.clients, [caller])

    assert caller.transaction.committed_s is not None
    assert caller.transaction.committed_s >= ended_s[0]


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
