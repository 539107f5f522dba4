"""The hooks of a transaction, its id, and the code that may ask for it."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import (
    MAX_ATTEMPTS,
    NoContextError,
    NoTransactionError,
    current_transaction,
    transact,
)
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.datastore.counters import (
    break_call,
    count_up,
    count_up_once,
    counted,
    no_pause,
)

pytestmark = pytest.mark.fast


class Recorder:
    """A hook that writes down how it is called, and may fail at it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.error = error

    def on_retry(self, cause: Exception) -> None:
        self.record(type(cause).__name__)

    def on_commit(self) -> None:
        self.record("committed")

    def on_outcome_unknown(self) -> None:
        self.record("given up")

    def record(self, call: str) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


def add_hooks(*hooks: Recorder) -> None:
    """Add hooks to the running transaction, as a body does on each of its runs."""
    for i, hook in enumerate(hooks):
        current_transaction().hook(f"hook {i}", lambda hook=hook: hook)


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
def test_a_hook_is_called_for_each_failed_attempt_and_the_commit(
    watched_world: World, kind: str
) -> None:
    """Each once, in order, and a call of `transact` has one hook of a name."""
    break_call(watched_world, "Commit", kind)
    hook = Recorder()
    recorders = iter([hook, Recorder()])

    def body() -> None:
        current_transaction().hook("one", lambda: next(recorders))
        count_up_once()

    transact(body, sleep=no_pause)

    assert hook.calls == ["ServiceUnavailable", "committed"]


def test_a_hook_is_not_called_for_a_commit_that_nobody_knows_of(watched_world: World) -> None:
    """B2: after the last try nothing is committed that the caller could rely on."""
    hook = Recorder()

    def lose() -> None:
        add_hooks(hook)
        raise rpc_errors.Aborted("lost the race")

    with pytest.raises(rpc_errors.Aborted):
        transact(lose, sleep=no_pause)

    assert hook.calls == [*["Aborted"] * (MAX_ATTEMPTS - 1), "given up"]


def test_a_hook_is_called_when_a_bug_ends_the_transaction(watched_world: World) -> None:
    """B2: an error of the body's own is neither tried again nor committed."""
    hook = Recorder()

    def fail() -> None:
        add_hooks(hook)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        transact(fail)

    assert hook.calls == ["given up"]


def test_a_hook_is_called_when_the_thread_is_ended(watched_world: World) -> None:
    """A server that stops its worker ends the transaction, and there is no further attempt."""
    hook = Recorder()

    def stop() -> None:
        add_hooks(hook)
        count_up()
        raise SystemExit

    with pytest.raises(SystemExit):
        transact(stop)

    assert hook.calls == ["given up"]


def test_a_hook_that_fails_fails_nobody(
    watched_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """B1: after the commit the caller gets its result, and the other hooks are called."""
    break_call(watched_world, "Commit", ERROR)
    runs: list[int] = []
    broken, hook = Recorder(RuntimeError("a bug of the hook")), Recorder()

    def body() -> int:
        runs.append(1)
        add_hooks(broken, hook)
        return count_up()

    counts = transact(body, sleep=no_pause)

    assert (counts, counted(), len(runs)) == (1, 1, 2)
    assert broken.calls == hook.calls == ["ServiceUnavailable", "committed"]
    assert "a bug of the hook" in caplog.text


def test_a_transaction_has_one_id_for_all_tries(watched_world: World) -> None:
    """B6: what a body names after it is written once; another call has another id."""
    break_call(watched_world, "Commit", REPLY_LOST)
    ids: list[str] = []

    transact(lambda: ids.append(current_transaction().id), sleep=no_pause)
    transact(lambda: ids.append(current_transaction().id), sleep=no_pause)

    first_id, second_id, other = ids
    assert first_id == second_id != other


def test_outside_of_a_body_there_is_no_transaction(world: World) -> None:
    """Before, after, in a pause between two tries, and on another thread: refused."""
    refused: list[str] = []

    def ask(where: object = "elsewhere") -> None:
        try:
            current_transaction()
        except NoTransactionError as error:
            refused.append(str(where) if "transact(body)" in str(error) else str(error))

    def body() -> None:
        in_threads(lambda: ask("thread"))
        raise rpc_errors.Aborted("lost the race")

    ask("before")
    with world.context(), pytest.raises(rpc_errors.Aborted):
        transact(body, attempts=2, sleep=lambda seconds: ask("pause"))
    ask("after")

    assert refused == ["before", "thread", "pause", "thread", "after"]


def test_a_refused_inner_transaction_leaves_the_outer_one_as_it_was(watched_world: World) -> None:
    """Transactions do not nest; a body may catch the error and continue."""
    ids: list[str] = []

    def body() -> None:
        ids.append(current_transaction().id)
        with pytest.raises(NotImplementedError):
            transact(count_up)
        ids.append(current_transaction().id)

    transact(body)

    assert ids[0] == ids[1]


def test_a_transaction_needs_a_context(world: World) -> None:
    """Outside of a context the error says how to open one; the body does not run."""
    runs: list[int] = []

    with pytest.raises(NoContextError, match=r"with clients\.context\(\)"):
        transact(lambda: runs.append(1))

    assert runs == []
