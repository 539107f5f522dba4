"""The one door to transactions: what is rerun, what is not, and that nothing is swallowed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models.transactions import (
    TRIES,
    NoTransactionError,
    current_transaction,
    transact,
)
from tests.faults import ERROR, REPLY_LOST
from tests.world import World, in_threads


class Tally(ndb.Model):
    """A number that somebody counts up."""

    count = ndb.IntegerProperty(indexed=False, default=0)


class Receipt(ndb.Model):
    """The proof that one increment was made."""


@pytest.fixture
def here(world: World) -> Iterator[World]:
    """A world whose calls are counted, in a context that is open."""
    with world.clients.context(), world.plan.watched():
        yield world


def count_up() -> int:
    """Add one without any proof: what a body must not do."""
    tally = Tally.get_by_id("t") or Tally(id="t")
    tally.count += 1
    tally.put()
    count: int = tally.count
    return count


def count_up_once() -> None:
    """Add one, and keep the proof of it in the same commit."""
    if Receipt.get_by_id("r") is None:
        count_up()
        Receipt(id="r").put()


def counted() -> int:
    tally = Tally.get_by_id("t")
    return tally.count if tally else 0


def fail_with(error: Exception) -> None:
    raise error


def no_pause(seconds: float) -> None:
    pass


def break_call(world: World, name: str, kind: str) -> None:
    """Break the first remote call of a name that comes next."""
    world.plan.reset(kind, next_call=name)


def test_a_body_runs_once_and_its_result_comes_back(here: World) -> None:
    """Without a fault there is one run, one commit and no more."""
    assert transact(count_up) == 1
    assert here.plan.calls == ["BeginTransaction", "Lookup", "Commit"]


@pytest.mark.parametrize("call", ["BeginTransaction", "Lookup", "Commit"])
def test_a_failed_call_reruns_the_body(here: World, call: str) -> None:
    """Before the effect: the body runs again and counts once."""
    break_call(here, call, ERROR)

    transact(count_up, sleep=no_pause)

    assert here.plan.fired
    assert counted() == 1


def test_a_lost_commit_reply_doubles_a_body_without_proof(here: World) -> None:
    """M1: why every body must carry its proof: nobody can tell that the commit was made."""
    break_call(here, "Commit", REPLY_LOST)

    transact(count_up, sleep=no_pause)

    assert here.plan.fired
    assert counted() == 2


def test_a_lost_commit_reply_does_not_double_a_body_with_its_proof(here: World) -> None:
    """M2: the same fault, and the receipt in the same commit: counted once."""
    break_call(here, "Commit", REPLY_LOST)

    transact(count_up_once, sleep=no_pause)

    assert here.plan.fired
    assert here.plan.calls.count("BeginTransaction") == 2
    assert counted() == 1


@pytest.mark.parametrize(
    "code", ["CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"]
)
def test_each_code_that_leaves_the_outcome_open_reruns_the_body(here: World, code: str) -> None:
    """The commit was made and its reply lost, by each code in turn: counted once, without error."""
    break_call(here, "Commit", f"{REPLY_LOST}:{code}")

    transact(count_up_once, sleep=no_pause)

    assert code in here.plan.fired
    assert here.plan.calls.count("BeginTransaction") == 2
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
def test_a_refused_commit_is_not_tried_again(here: World, code: str) -> None:
    """Nothing was written, and it would be refused again: the caller hears at once."""
    break_call(here, "Commit", f"{ERROR}:{code}")

    with pytest.raises(rpc_errors.GoogleAPICallError) as raised:
        transact(count_up_once, sleep=no_pause)

    assert raised.value.grpc_status_code.name == code
    assert here.plan.calls.count("BeginTransaction") == 1
    assert counted() == 0


def test_a_doubt_outlives_a_lost_race(here: World) -> None:
    """A reply was lost, then each race: the caller hears of the doubt, as the commit may stand."""
    runs = []

    def body() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise rpc_errors.DeadlineExceeded("reply lost")
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.DeadlineExceeded, match="reply lost"):
        transact(body, sleep=no_pause)

    assert len(runs) == TRIES


def test_no_try_begins_after_ten_seconds(here: World) -> None:
    """Calls that each hang until their deadline do not add up: the caller hears after the first."""
    runs = []
    times = iter([0.0, 10.1])

    def hang() -> None:
        runs.append(1)
        raise rpc_errors.DeadlineExceeded("no answer within 15 s")

    with pytest.raises(rpc_errors.DeadlineExceeded):
        transact(hang, sleep=no_pause, elapsed_s=lambda: next(times))

    assert len(runs) == 1


def test_a_lost_reply_is_recognised_while_another_error_is_handled(here: World) -> None:
    """What the caller is handling hides neither the lost reply nor that it must be tried again."""
    break_call(here, "Commit", REPLY_LOST)

    try:
        fail_with(KeyError("the caller's own trouble"))
    except KeyError:
        transact(count_up_once, sleep=no_pause)

    assert here.plan.fired
    assert counted() == 1


def test_the_last_error_rises_after_all_tries(here: World) -> None:
    """Nothing is swallowed: after the last try the caller gets what the service said."""
    runs = []

    def lose() -> None:
        runs.append(1)
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.Aborted, match="lost the race"):
        transact(lose, sleep=no_pause)

    assert len(runs) == TRIES


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        rpc_errors.NotFound("no such database"),
        rpc_errors.InvalidArgument("bad key"),
        rpc_errors.PermissionDenied("no"),
    ],
)
def test_an_error_that_no_try_can_mend_rises_at_once(here: World, error: Exception) -> None:
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
    here: World, error: Exception
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
def test_a_body_runs_as_often_as_asked(here: World, tries: int) -> None:
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
def test_no_try_is_no_transaction(here: World, tries: int) -> None:
    """A number of tries that runs nothing is refused instead of doing nothing."""
    with pytest.raises(ValueError, match="attempts"):
        transact(count_up, attempts=tries)

    assert here.plan.calls == []


def test_transactions_do_not_nest(here: World) -> None:
    """A body that starts another transaction is told so, and nothing is written."""
    with pytest.raises(NotImplementedError):
        transact(lambda: (count_up(), transact(count_up)))

    assert counted() == 0


@pytest.mark.parametrize("in_transaction", [True, False])
def test_ndb_tries_no_call_again_behind_our_back(here: World, in_transaction: bool) -> None:
    """A failing lookup goes out once: `transact`, the queue or the visitor tries again."""
    break_call(here, "Lookup", ERROR)

    with pytest.raises(rpc_errors.ServiceUnavailable):
        transact(counted, attempts=1) if in_transaction else counted()

    assert here.plan.calls.count("Lookup") == 1


def test_two_threads_on_one_entity_end_exact(world: World) -> None:
    """Whoever loses a race comes again: no increment is lost on either emulator."""

    def increment_often() -> None:
        with world.clients.context():
            for _ in range(3):
                transact(count_up, attempts=50)

    in_threads(increment_often, increment_often)

    with world.context():
        assert counted() == 6


# Who listens


class Ear:
    """A listener that writes down what it hears, and may fail at it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[str] = []
        self.error = error

    def retried(self, cause: Exception) -> None:
        self.hear(type(cause).__name__)

    def committed(self) -> None:
        self.hear("committed")

    def given_up(self) -> None:
        self.hear("given up")

    def hear(self, word: str) -> None:
        self.heard.append(word)
        if self.error:
            raise self.error


def listen(*ears: Ear) -> None:
    """Let ears follow the transaction under way, as a body does on each of its runs."""
    for i, ear in enumerate(ears):
        current_transaction().listener(f"ear {i}", lambda ear=ear: ear)


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_a_listener_hears_each_failed_try_and_the_commit(here: World, kind: str) -> None:
    """Each once, in order, and of a call of `transact` there is one listener of a name."""
    break_call(here, "Commit", kind)
    ear = Ear()
    others = iter([ear, Ear()])

    def body() -> None:
        current_transaction().listener("one", lambda: next(others))
        count_up_once()

    transact(body, sleep=no_pause)

    assert ear.heard == ["ServiceUnavailable", "committed"]


def test_a_listener_hears_of_no_commit_that_nobody_knows_of(here: World) -> None:
    """B2: after the last try nothing is committed that the caller could rely on."""
    ear = Ear()

    def lose() -> None:
        listen(ear)
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.Aborted):
        transact(lose, sleep=no_pause)

    assert ear.heard == [*["Aborted"] * (TRIES - 1), "given up"]


def test_a_listener_hears_that_a_bug_ends_it(here: World) -> None:
    """B2: an error of the body's own is neither tried again nor committed."""
    ear = Ear()

    def fail() -> None:
        listen(ear)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        transact(fail)

    assert ear.heard == ["given up"]


def test_a_listener_that_fails_fails_nobody(here: World, caplog: pytest.LogCaptureFixture) -> None:
    """B1: the commit stands: the caller gets its result, and the other listeners hear of it."""
    break_call(here, "Commit", ERROR)
    runs: list[int] = []
    deaf, ear = Ear(RuntimeError("a bug of the listener")), Ear()

    def body() -> int:
        runs.append(1)
        listen(deaf, ear)
        return count_up()

    counts = transact(body, sleep=no_pause)

    assert (counts, counted(), len(runs)) == (1, 1, 2)
    assert deaf.heard == ear.heard == ["ServiceUnavailable", "committed"]
    assert "a bug of the listener" in caplog.text


def test_a_transaction_has_one_id_for_all_tries(here: World) -> None:
    """B6: what a body names after it is written once; another call has another id."""
    break_call(here, "Commit", REPLY_LOST)
    ids: list[str] = []

    transact(lambda: ids.append(current_transaction().id), sleep=no_pause)
    transact(lambda: ids.append(current_transaction().id), sleep=no_pause)

    first, again, other = ids
    assert first == again != other


def test_outside_of_a_body_there_is_no_transaction(world: World) -> None:
    """Before, after, in a pause between two tries, and on another thread: refused."""
    refused: list[str] = []

    def ask(where: object = "elsewhere") -> None:
        try:
            current_transaction()
        except NoTransactionError:
            refused.append(str(where))

    def body() -> None:
        in_threads(lambda: ask("thread"))
        raise rpc_errors.Aborted("lost the race")

    ask("before")
    with world.context(), pytest.raises(rpc_errors.Aborted):
        transact(body, attempts=2, sleep=lambda seconds: ask("pause"))
    ask("after")

    assert refused == ["before", "thread", "pause", "thread", "after"]


def test_a_refused_inner_transaction_leaves_the_outer_one_as_it_was(here: World) -> None:
    """Transactions do not nest; a body that was told so may go on."""
    ids: list[str] = []

    def body() -> None:
        ids.append(current_transaction().id)
        with pytest.raises(NotImplementedError):
            transact(count_up)
        ids.append(current_transaction().id)

    transact(body)

    assert ids[0] == ids[1]
