"""Shared transactions: one of them for many callers, and what each of them keeps to itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import current
from rollforward.datastore.transactions import (
    MAX_ATTEMPTS,
    NoContextError,
    current_transaction,
    is_in_transaction,
    transact,
)
from rollforward.runtime.sharing import shared_transaction
from rollforward.runtime.sharing.shared_transaction import (
    SharedBody,
    _Caller,
    transact_declared,
    transact_shared,
)
from rollforward.testing.injection import ERROR, MEANWHILE, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.runtime.sharing.shared_bodies import (
    SHARED,
    Full,
    Hook,
    Proof,
    RunningSum,
    add_once,
    calls_of,
    end,
    fail,
    together,
    totals,
)

pytestmark = pytest.mark.fast


def test_a_group_begins_reads_and_commits_once(watched: World) -> None:
    """Three callers, three calls; each gets its own result."""
    assert together(watched.clients, [add_once(name) for name in "abc"]) == ["a", "b", "c"]
    assert calls_of(watched) == SHARED
    assert totals("a", "b", "c") == [1, 1, 1]


def test_a_lone_caller_is_a_group(watched: World) -> None:
    """It waits for nobody and makes three calls, as in a transaction of its own."""
    assert transact_shared(watched.clients, add_once("a")) == "a"
    assert calls_of(watched) == SHARED


def test_callers_that_come_during_a_commit_share_the_next(world: World) -> None:
    """Seven threads wait for the first one's transaction, and go in one."""
    is_in_progress, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_in_progress.set()
        assert may_go_on.wait(60)

    results: list[str] = []

    def save(name: str, then: Any = lambda: None) -> None:
        with world.clients.context():
            results.append(transact_shared(world.clients, add_once(name, then)))

    def others() -> None:
        assert is_in_progress.wait(60)
        groups = shared_transaction._groups(world.clients)
        threads = [threading.Thread(target=save, args=[name]) for name in "bcdefgh"]
        for thread in threads:
            thread.start()
        while len(groups._waiting) < len(threads):
            pass
        may_go_on.set()
        for thread in threads:
            thread.join()

    with world.plan.watched():
        in_threads(lambda: save("a", hold), others)

    assert sorted(results) == list("abcdefgh")
    assert calls_of(world) == SHARED * 2
    with world.clients.context():
        assert totals(*"abcdefgh") == [1] * 8


def test_a_transaction_of_its_own_waits_for_no_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same three calls, while a group is in progress."""
    monkeypatch.setattr(shared_transaction, "MAX_WAIT_S", 60)  # Else a group does not wait either.
    answers: list[str] = []

    def aside() -> None:
        with world.clients.context(), world.plan.watched():
            answers.append(transact_declared(world.clients, add_once("b")))
            assert calls_of(world) == SHARED
            assert totals("b") == [1]

    def hold() -> None:
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join(10)

    with world.clients.context():
        answers.append(transact_shared(world.clients, add_once("a", hold)))
        assert answers == ["b", "a"]
        assert totals("a", "b") == [1, 1]


@pytest.mark.parametrize(
    ("fault", "answer", "tries"),
    [(f"{ERROR}:ABORTED", "a", 2), (f"{REPLY_LOST}:UNAVAILABLE", "a, again", 2)],
)
def test_a_transaction_of_its_own_is_tried_again(
    watched: World, fault: str, answer: str, tries: int
) -> None:
    """After a lost race, and after a lost reply, which it resolves by its own proof."""
    watched.plan.break_next("Commit", fault)

    assert transact_declared(watched.clients, add_once("a")) == answer

    assert watched.plan.calls.count("BeginTransaction") == tries
    assert totals("a") == [1]


def test_a_transaction_of_its_own_gives_up_as_every_one(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After four attempts, with a pause between each two of them; nothing is written."""
    pauses: list[int] = []
    monkeypatch.setattr(shared_transaction, "pause_before_retry", pauses.append)
    watched.plan.break_next("Commit", f"{ERROR}:ABORTED", times=100)

    with pytest.raises(rpc_errors.Aborted):
        transact_declared(watched.clients, add_once("a"))

    assert watched.plan.calls.count("Commit") == MAX_ATTEMPTS
    assert pauses == [1, 2, 3]
    watched.plan.reset()
    assert totals("a") == [0]


def test_an_error_of_a_body_is_its_callers_own(watched: World) -> None:
    """Its writes are dropped; the others are committed by the same transaction."""
    error = ValueError("not this one")
    bodies = [add_once("a"), add_once("b", lambda: fail(error)), add_once("c")]

    assert together(watched.clients, bodies) == ["a", error, "c"]
    assert calls_of(watched) == SHARED
    assert totals("a", "b", "c") == [1, 0, 1]


def test_what_ndb_wrote_for_a_body_that_failed_is_dropped(watched: World) -> None:
    """A body may write by ndb, too: its writes join the commit, or are dropped with it."""

    def run(name: str, error: Exception | None) -> None:
        assert is_in_transaction()
        RunningSum(id=name, total=7).put()
        if error is not None:
            raise error

    def by_ndb(name: str, error: Exception | None = None) -> SharedBody[None]:
        return SharedBody(lambda draw: run(name, error), lambda draw: [], frozenset([name]))

    error = ValueError("not this one")
    bodies = [by_ndb("a"), by_ndb("b", error), by_ndb("c")]

    assert together(watched.clients, bodies) == [None, error, None]
    assert totals("a", "b", "c") == [7, 0, 7]


def test_if_all_bodies_fail_the_transaction_is_rolled_back(watched: World) -> None:
    """Nothing is written, and no row stays locked."""
    error = ValueError("none of them")

    assert together(watched.clients, [add_once("a", lambda: fail(error))]) == [error]
    assert calls_of(watched) == [*SHARED[:2], "Rollback"]


def test_data_that_the_service_refuses_is_its_callers_own_error(watched: World) -> None:
    """The group goes in halves until the one at fault is alone."""
    bodies = [add_once(name) for name in "abcdefg"]
    bodies[4] = add_once("e", lambda: current.put(Full(id="e", text="x" * 2_000_000)))

    answers = together(watched.clients, bodies)

    assert isinstance(answers.pop(4), rpc_errors.InvalidArgument)
    assert answers == list("abcdfg")
    assert totals(*"abcdefg") == [1, 1, 1, 1, 0, 1, 1]


class Odd(ndb.Model):
    """A kind that another version of the app knows."""


def test_a_row_that_cannot_be_read_is_its_callers_own_error(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes in halves, too: the others are committed."""
    key = Odd(id="b").put()
    monkeypatch.delitem(ndb.Model._kind_map, "Odd")
    bodies = [add_once(name) for name in "abcd"]
    bodies[1] = SharedBody(lambda draw: "b", lambda draw: [key], frozenset("b"))

    answers = together(watched.clients, bodies)

    assert isinstance(answers.pop(1), ndb.KindError)
    assert answers == list("acd")
    assert totals("a", "c", "d") == [1, 1, 1]


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_who_loses_a_race_again_and_again_fails_none_of_the_others(watched: World) -> None:
    """A rival changes one caller's row before each commit: the others are committed."""

    def rival() -> None:
        transact(lambda: RunningSum(id="b", total=total()).put())

    def total() -> int:
        row = RunningSum.get_by_id("b")
        return (row.total if row else 0) + 1

    rounds = 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        rival()
        watched.plan.reset(MEANWHILE, next_call="Commit")

    watched.plan.on_fire = again
    watched.plan.reset(MEANWHILE, next_call="Commit")
    answers = together(watched.clients, [add_once(name) for name in "abcd"])

    assert isinstance(answers[1], rpc_errors.Aborted)
    assert [answers[0], *answers[2:]] == ["a", "c", "d"]
    assert totals("a", "c", "d") == [1, 1, 1]
    assert totals("b")[0] == rounds


def test_a_group_that_goes_in_halves_does_not_pause_between_them(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pauses after the first lost race alone, however many callers it has."""
    pauses: list[int] = []
    monkeypatch.setattr(shared_transaction, "pause_before_retry", pauses.append)
    watched.plan.break_next("Commit", f"{ERROR}:ABORTED", times=100)
    callers = [_Caller(add_once(name), "") for name in "abcdefgh"]

    shared_transaction._try_together(watched.clients, callers)

    assert all(caller.is_alone for caller in callers)
    assert watched.plan.calls.count("Commit") == 2 + 2 + 4 + 8
    assert pauses == [1]
    watched.plan.pending = []
    assert [end(watched.clients, caller) for caller in callers] == list("abcdefgh")


def test_no_pause_is_longer_than_the_last_one_of_a_lone_caller(
    watched: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of callers that have lost many races before."""
    pauses: list[int] = []
    monkeypatch.setattr(shared_transaction, "pause_before_retry", pauses.append)
    watched.plan.reset(ERROR, next_call="Commit")
    callers = [_Caller(add_once(name), "", lost=9) for name in "ab"]

    shared_transaction._try_together(watched.clients, callers)

    assert pauses == [MAX_ATTEMPTS - 1]
    assert totals("a", "b") == [1, 1]


@pytest.mark.parametrize("call", SHARED)
@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_after_a_lost_reply_each_body_finds_its_own_proof(
    watched: World, call: str, kind: str
) -> None:
    """All run again, together, and nobody counts twice."""
    watched.plan.reset(kind, next_call=call)

    answers = together(watched.clients, [add_once(name) for name in "abc"])

    again = ", again" if (call, kind) == ("Commit", REPLY_LOST) else ""
    assert answers == [f"{name}{again}" for name in "abc"]
    assert totals("a", "b", "c") == [1, 1, 1]


def test_an_outage_is_reported_as_an_unknown_outcome_after_as_many_attempts_as_alone(
    watched: World,
) -> None:
    """Each caller gets the service's error; the group does not go on in parts."""
    watched.plan.break_next("Commit", REPLY_LOST, times=100)

    answers = together(watched.clients, [add_once(name) for name in "ab"])

    assert [type(answer) for answer in answers] == [rpc_errors.ServiceUnavailable] * 2
    assert watched.plan.calls.count("Commit") == MAX_ATTEMPTS
    watched.plan.pending = []
    assert totals("a", "b") == [1, 1]


def test_a_refusal_that_is_nobodys_fault_is_everybodys_error_at_once(watched: World) -> None:
    """Quota and permissions say nothing of the data: there is no second commit."""
    watched.plan.break_next("Commit", f"{ERROR}:RESOURCE_EXHAUSTED", times=100)

    answers = together(watched.clients, [add_once(name) for name in "abc"])

    assert [type(answer) for answer in answers] == [rpc_errors.ResourceExhausted] * 3
    assert watched.plan.calls.count("Commit") == 1


def test_writes_without_room_in_a_commit_go_with_the_next(watched: World) -> None:
    """A commit takes 500 entities, whatever the callers have estimated."""

    def many(name: str) -> SharedBody[str]:
        def run(keys: Sequence[Any]) -> str:
            for number in range(200):
                current.put(Proof(id=f"{name}{number}"))
            return name

        return SharedBody(run, lambda draw: [], frozenset([name]))

    assert together(watched.clients, [many(name) for name in "abc"]) == ["a", "b", "c"]
    assert calls_of(watched) == [name for name in SHARED if name != "Lookup"] * 2
    assert len(Proof.query().fetch(keys_only=True)) == 600


@pytest.mark.parametrize("error", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_who_was_left_out_of_a_commit_has_no_part_in_its_failure(
    watched: World, error: str
) -> None:
    """Neither as an error nor as an attempt."""
    watched.plan.break_next("Commit", f"{ERROR}:{error}")
    delete: SharedBody[None] = SharedBody(
        lambda draw: ndb.Key(RunningSum, "a").delete(), lambda draw: [], frozenset()
    )
    callers: list[_Caller[Any]] = [_Caller(add_once("a"), ""), _Caller(delete, "")]

    shared_transaction._try_together(watched.clients, callers)

    assert [caller.failures for caller in callers] == [error == "UNAVAILABLE", 0]
    assert callers[1].transaction.doubt is None
    assert callers[1].is_committed
    assert totals("a") == [0]


def test_a_body_alone_may_write_too_much_and_learns_it(watched: World) -> None:
    """More than a commit takes is refused by the service, not here."""

    def run(keys: Sequence[Any]) -> None:
        for number in range(501):
            current.put(Proof(id=f"{number}"))

    answers = together(watched.clients, [SharedBody(run, lambda draw: [], frozenset())])

    assert isinstance(answers[0], rpc_errors.InvalidArgument)


def test_each_caller_has_a_transaction_of_its_own_through_all_attempts(watched: World) -> None:
    """Its id stays, and its hooks hear of its own end."""
    ids: dict[str, set[str]] = {"a": set(), "b": set()}
    calls: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}

    def note(name: str, error: Exception | None = None) -> None:
        ids[name].add(current_transaction().id)
        current_transaction().hook("note", lambda: Hook(calls[name]))
        if error is not None:
            raise error

    watched.plan.reset(ERROR, next_call="Lookup")
    watched.plan.break_next("Commit", ERROR)
    bodies = [
        add_once("a", lambda: note("a")),
        add_once("b", lambda: note("b", ValueError("b")) if watched.plan.fired else None),
    ]
    answers = together(watched.clients, bodies)

    here = threading.get_ident()
    assert answers[0] == "a"
    assert isinstance(answers[1], ValueError)
    assert len(ids["a"]) == len(ids["b"]) == 1
    assert ids["a"] != ids["b"]
    assert calls == {
        "a": [("ServiceUnavailable", 0), ("committed", here)],
        "b": [("given up", here)],
    }


def test_a_transaction_holds_no_shared_one(watched: World) -> None:
    """Its writes would not be part of it."""
    with pytest.raises(NotImplementedError, match="nested"):
        transact(lambda: transact_shared(watched.clients, add_once("a")))

    assert totals("a") == [0]


def test_without_a_context_there_is_advice(world: World) -> None:
    """As `transact` gives it."""
    with pytest.raises(NoContextError, match="open Datastore's context first"):
        transact_shared(world.clients, add_once("a"))


def add_one(keys: Sequence[Any]) -> None:
    [row] = current.get_multi([ndb.Key(RunningSum, "a")])
    row = row or RunningSum(id="a")
    row.total += 1
    current.put(row)


def test_bodies_that_write_a_common_row_share_no_commit(watched: World) -> None:
    """Each reads what was there before, so the second one runs again, whatever they declare."""
    key = ndb.Key(RunningSum, "a")
    undeclared: SharedBody[None] = SharedBody(add_one, lambda draw: [key], frozenset())
    delete: SharedBody[None] = SharedBody(lambda draw: key.delete(), lambda draw: [], frozenset())

    together(watched.clients, [undeclared, undeclared, undeclared])
    assert watched.plan.calls.count("Commit") == 3
    assert totals("a") == [3]

    together(watched.clients, [undeclared, delete])
    assert totals("a") == [0]


def test_threads_that_add_to_a_common_row_lose_no_addition(watched: World) -> None:
    """Their bodies declare the row, so they share no group."""
    body = SharedBody(add_one, lambda draw: [ndb.Key(RunningSum, "a")], frozenset("a"))

    def work() -> None:
        with watched.clients.context():
            for _ in range(5):
                transact_shared(watched.clients, body)

    in_threads(*[work] * 4)
    assert totals("a") == [20]
