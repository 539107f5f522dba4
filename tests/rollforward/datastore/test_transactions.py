"""Retries of transactions: their conditions and limits, and no swallowed error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import RollbackRequest
from google.cloud.ndb.context import get_context

from rollforward.app_code import EXITS
from rollforward.datastore.transactions import MAX_ATTEMPTS, transact
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.services import PROJECT
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.datastore.counters import (
    Tally,
    break_call,
    count_up,
    count_up_once,
    counted,
    fail_with,
    no_pause,
)

pytestmark = pytest.mark.fast


def test_a_body_runs_once_and_its_result_comes_back(watched_world: World) -> None:
    """Without a fault there is one run, one commit and no more."""
    assert transact(count_up) == 1
    assert watched_world.plan.calls == ["BeginTransaction", "Lookup", "Commit"]


@pytest.mark.parametrize("call", ["BeginTransaction", "Lookup", "Commit"])
def test_a_failed_call_reruns_the_body(watched_world: World, call: str) -> None:
    """Before the effect: the body runs again and counts once."""
    break_call(watched_world, call, ERROR)

    transact(count_up, sleep=no_pause)

    assert watched_world.plan.fired
    assert counted() == 1


def test_a_lost_commit_reply_doubles_a_body_without_proof(watched_world: World) -> None:
    """M1: every body must carry its proof, since the caller cannot know of the commit."""
    break_call(watched_world, "Commit", REPLY_LOST)

    transact(count_up, sleep=no_pause)

    assert watched_world.plan.fired
    assert counted() == 2


def test_a_lost_commit_reply_does_not_double_a_body_with_its_proof(watched_world: World) -> None:
    """M2: the same fault, and the receipt in the same commit: counted once."""
    break_call(watched_world, "Commit", REPLY_LOST)

    transact(count_up_once, sleep=no_pause)

    assert watched_world.plan.fired
    assert watched_world.plan.calls.count("BeginTransaction") == 2
    assert counted() == 1


@pytest.mark.parametrize("call", ["Commit", "Lookup", "RunQuery"])
def test_a_transaction_that_the_service_has_given_up_is_run_again(
    watched_world: World, call: str
) -> None:
    """M5: its process froze for too long, which is no fault of its task or its data."""
    runs = []

    def body() -> None:
        runs.append(1)
        count_up_once()
        if len(runs) == 1:
            give_up(watched_world)
        if call == "Lookup":
            counted()
        if call == "RunQuery":
            Tally.query(ancestor=ndb.Key(Tally, "t")).fetch()

    transact(body, sleep=no_pause)

    assert len(runs) == 2
    assert counted() == 1


def test_who_is_given_up_each_time_has_lost_a_race(watched_world: World) -> None:
    """Nothing was written, and the caller may retry."""

    def body() -> None:
        count_up()
        give_up(watched_world)

    with pytest.raises(rpc_errors.Aborted, match="ransaction"):
        transact(body, sleep=no_pause)

    assert counted() == 0


def test_a_refusal_is_raised_although_its_rollback_finds_no_transaction(
    watched_world: World,
) -> None:
    """M5: a commit that is refused for its content is not retried, and no time is lost."""
    runs = []
    break_call(watched_world, "Commit", f"{ERROR}:INVALID_ARGUMENT")

    def body() -> None:
        runs.append(1)
        count_up()
        give_up(watched_world)

    with pytest.raises(rpc_errors.InvalidArgument):
        transact(body, sleep=no_pause)

    assert watched_world.plan.fired
    assert len(runs) == 1


@pytest.mark.parametrize("exit_", [*EXITS, BaseException])
def test_a_body_that_exits_leaves_no_row_locked(
    watched_world: World, exit_: type[BaseException]
) -> None:
    """A task may call a program that exits; its worker goes on, and nobody else rolls back."""

    def body() -> None:
        count_up()
        raise exit_(2)

    with pytest.raises(exit_, match="2"):
        transact(body)

    assert watched_world.plan.calls == ["BeginTransaction", "Lookup", "Rollback"]
    assert transact(count_up) == 1


def give_up(world: World) -> None:
    """End the transaction that this code runs in, as the service does when it is idle."""
    transaction, database = get_context().transaction, world.services.database or ""
    request = RollbackRequest(project_id=PROJECT, database_id=database, transaction=transaction)
    world.clients.datastore.stub.rollback(RollbackRequest.pb(request))


@pytest.mark.parametrize(
    "code", ["CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"]
)
def test_each_code_that_leaves_the_outcome_open_reruns_the_body(
    watched_world: World, code: str
) -> None:
    """The commit was made and its reply lost, by each code in turn: counted once, without error."""
    break_call(watched_world, "Commit", f"{REPLY_LOST}:{code}")

    transact(count_up_once, sleep=no_pause)

    assert code in watched_world.plan.fired
    assert watched_world.plan.calls.count("BeginTransaction") == 2
    assert counted() == 1


@pytest.mark.parametrize(
    "code",
    [
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "UNAUTHENTICATED",
    ],
)
def test_a_refused_commit_is_not_tried_again(watched_world: World, code: str) -> None:
    """Nothing was written, and it would be refused again: the caller hears at once."""
    break_call(watched_world, "Commit", f"{ERROR}:{code}")

    with pytest.raises(rpc_errors.GoogleAPICallError) as raised:
        transact(count_up_once, sleep=no_pause)

    assert raised.value.grpc_status_code.name == code
    assert watched_world.plan.calls.count("BeginTransaction") == 1
    assert counted() == 0


def test_a_doubt_outlives_a_lost_race(watched_world: World) -> None:
    """After a lost reply and lost races the caller gets the doubt, since the commit may exist."""
    runs = []

    def body() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise rpc_errors.DeadlineExceeded("reply lost")
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.DeadlineExceeded, match="reply lost"):
        transact(body, sleep=no_pause)

    assert len(runs) == MAX_ATTEMPTS


@pytest.mark.parametrize("seen_s", [[0.0, 10.1], [0.0, 1.0, 10.1]])
def test_no_try_begins_after_ten_seconds(watched_world: World, seen_s: list[float]) -> None:
    """Calls that each hang until their deadline do not add up: the caller hears after the first.

    The same holds for a process that stands still before it tries again.
    """
    runs = []
    times = iter(seen_s)

    def hang() -> None:
        runs.append(1)
        raise rpc_errors.DeadlineExceeded("no answer within 15 s")

    with pytest.raises(rpc_errors.DeadlineExceeded):
        transact(hang, sleep=no_pause, elapsed_s=lambda: next(times))

    assert len(runs) == 1


def test_a_lost_reply_is_recognised_while_another_error_is_handled(watched_world: World) -> None:
    """An error that the caller handles does not hide the lost reply or prevent the retry."""
    break_call(watched_world, "Commit", REPLY_LOST)

    try:
        fail_with(KeyError("the caller's own trouble"))
    except KeyError:
        transact(count_up_once, sleep=no_pause)

    assert watched_world.plan.fired
    assert counted() == 1


def test_the_last_error_rises_after_all_tries(watched_world: World) -> None:
    """No error is swallowed: after the last attempt the caller gets the service's error."""
    runs = []

    def lose() -> None:
        runs.append(1)
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.Aborted, match="lost the race"):
        transact(lose, sleep=no_pause)

    assert len(runs) == MAX_ATTEMPTS


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        rpc_errors.NotFound("no such database"),
        rpc_errors.InvalidArgument("bad key"),
        rpc_errors.PermissionDenied("no"),
    ],
)
def test_an_error_that_no_try_can_mend_rises_at_once(
    watched_world: World, error: Exception
) -> None:
    """Nothing is swallowed, and nothing is written."""
    runs = []

    def fail() -> None:
        runs.append(1)
        count_up()
        raise error

    with pytest.raises(type(error)) as raised:
        transact(fail, sleep=no_pause)

    assert raised.value is error
    assert len(runs) == 1
    assert counted() == 0


@pytest.mark.parametrize("error", [ValueError("a bug"), rpc_errors.NotFound("a bug")])
def test_an_error_in_an_except_block_is_not_taken_for_the_one_at_hand(
    watched_world: World, error: Exception
) -> None:
    """A bug inside the body surfaces as itself although a sick service is being handled."""
    runs = []

    def fail() -> None:
        runs.append(1)
        raise error

    try:
        fail_with(rpc_errors.ServiceUnavailable("the relay"))
    except rpc_errors.ServiceUnavailable:
        with pytest.raises(type(error), match="a bug"):
            transact(fail, sleep=no_pause)

    assert len(runs) == 1


@pytest.mark.parametrize("tries", [1, 2, 6])
def test_a_body_runs_as_often_as_asked(watched_world: World, tries: int) -> None:
    """`tries` is a number of runs; between two there is a pause that grows, and is spread."""
    runs: list[int] = []
    pauses: list[float] = []
    lows: list[float] = []

    def longest(low: float, high: float) -> float:
        lows.append(low)
        return high

    def lose() -> None:
        runs.append(1)
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.Aborted):
        transact(lose, attempts=tries, sleep=pauses.append, jitter=longest)

    assert len(runs) == tries
    assert len(pauses) == tries - 1
    assert pauses == pytest.approx([0.03 * 3**n for n in range(tries - 1)])
    assert lows == pytest.approx([high / 3 for high in pauses])


@pytest.mark.parametrize("tries", [0, -1])
def test_no_try_is_no_transaction(watched_world: World, tries: int) -> None:
    """A number of tries that runs nothing is refused instead of doing nothing."""
    with pytest.raises(ValueError, match="attempts"):
        transact(count_up, attempts=tries)

    assert watched_world.plan.calls == []


def test_transactions_do_not_nest(watched_world: World) -> None:
    """A body that starts another transaction is told what to write, and nothing is written.

    ndb's own words name an option, `join`, that `transact` does not have.
    """
    with pytest.raises(NotImplementedError, match=r"write in this one, .* after the commit$"):
        transact(lambda: (count_up(), transact(count_up)))

    assert counted() == 0


@pytest.mark.parametrize("in_transaction", [True, False])
def test_ndb_tries_no_call_again_behind_our_back(
    watched_world: World, in_transaction: bool
) -> None:
    """A failing lookup goes out once: `transact`, the queue or the visitor tries again."""
    break_call(watched_world, "Lookup", ERROR)

    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact(counted, attempts=1) if in_transaction else counted()

    assert watched_world.plan.calls.count("Lookup") == 1


def test_two_threads_on_one_entity_end_exact(world: World) -> None:
    """The loser of a race retries: no increment is lost on either emulator."""

    def increment_often() -> None:
        with world.clients.context():
            for _ in range(3):
                transact(count_up, attempts=50)

    in_threads(increment_often, increment_often)

    with world.context():
        assert counted() == 6


async def run_later() -> None:
    """Run once somebody awaits it."""


def yield_later() -> Iterator[int]:
    """Run once somebody iterates over it."""
    yield 1


@pytest.mark.parametrize("body", [run_later, yield_later, partial(yield_later)])
def test_a_body_that_a_call_does_not_run_is_refused(
    watched_world: World, body: Callable[[], object]
) -> None:
    """The commit of nothing would look like a success."""
    with pytest.raises(TypeError, match=r"body must be a plain function, got .*would not run"):
        transact(body)
    assert watched_world.plan.calls == []
