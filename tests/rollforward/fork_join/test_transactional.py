"""Inserts that are part of a transaction: committed with the data, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import NoTransactionError, transact
from rollforward.fork_join import BadItemError
from rollforward.fork_join import transactional as fork_join_transactional
from rollforward.fork_join.entities import WorkPack
from rollforward.runtime import Clients
from rollforward.runtime.cache import NoCache
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.faults.partly_done import run_again
from tests.infra.world import World
from tests.rollforward.datastore.counters import no_pause
from tests.rollforward.fork_join.tally_queue import (
    AT_ONCE,
    TALLIES,
    Mark,
    MarkTally,
    packs,
    put,
    tallied,
    tasks,
)


def test_an_insert_in_a_transaction_is_no_larger_than_a_batch(world: World) -> None:
    """It is one pack, and its fold takes it whole."""
    with world.clients.context(), pytest.raises(BadItemError, match="20 items"):
        transact(
            lambda: TALLIES.insert_in_transaction(
                world.clients, "t", *[Mark(f"i{i}") for i in range(21)]
            )
        )


def test_an_insert_in_a_transaction_has_at_most_so_many_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity takes a MiB: what is as large as it may be goes in, and not a byte more."""
    monkeypatch.setattr(fork_join_transactional, "MAX_GROUP_BYTES", len('[{"label":"abc"}]'))

    def insert(label: str) -> None:
        transact(lambda: TALLIES.insert_in_transaction(world.clients, "t", Mark(label)))

    with world.clients.context():
        insert("abc")
        with pytest.raises(BadItemError, match="got 18"):
            insert("abcd")


def test_an_insert_in_a_transaction_is_committed_with_it(world: World) -> None:
    """D1: with the data, or not at all; and no task is created before its work can be read."""

    def body() -> None:
        MarkTally(id="source", labels=["x"]).put()
        task_count = len(tasks(world))
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        assert len(tasks(world)) == task_count

    def broken() -> None:
        body()
        raise ValueError("changed my mind")

    with world.clients.context():
        with pytest.raises(ValueError, match="changed"):
            transact(broken)
        assert packs() == []
        transact(body)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")
        assert packs() == []


def test_two_equal_items_of_one_transaction_are_two(world: World) -> None:
    """D1: also when the body runs again."""
    tries: list[int] = []

    def body() -> None:
        tries.append(1)
        for _ in range(2):
            TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        if len(tries) == 1:
            raise rpc_errors.Aborted("made by a test")

    with world.clients.context():
        transact(body, sleep=lambda seconds: None)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("aa")


def test_a_body_that_runs_again_inserts_once(world: World) -> None:
    """D1: every attempt writes the same packs, however the last one ended."""
    tries: list[int] = []

    def body() -> None:
        tries.append(1)
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        TALLIES.insert_in_transaction(world.clients, "t", Mark("b"))
        if len(tries) < 3:
            raise rpc_errors.Aborted("made by a test")

    with world.clients.context():
        transact(body, sleep=lambda seconds: None)
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ab")


def test_a_transaction_that_fails_holds_no_batch_up(world: World) -> None:
    """D5: its stay in the epoch ends with it, and what others put there is folded in time."""

    def broken() -> None:
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))
        raise ValueError("changed my mind")

    with world.clients.context(), pytest.raises(ValueError, match="changed"):
        transact(broken)
    put(world, "t", "b")
    began_s = world.clock.time_s
    world.settle()

    assert world.clock.time_s - began_s < 1.1
    with world.context():
        assert tallied("t") == Counter("b")


def test_a_transaction_in_doubt_that_lands_late_is_folded_without_a_sweep(world: World) -> None:
    """D3: its caller got the error, its joiner has been; the pack is folded in seconds."""
    put: list[str] = []

    def unheard() -> None:
        put.append(TALLIES.insert_in_transaction(world.clients, "t", Mark("a")))
        raise rpc_errors.Cancelled("made by a test")

    with world.clients.context(), pytest.raises(rpc_errors.Cancelled):
        transact(unheard, sleep=lambda seconds: None)
    began_s = world.clock.time_s
    world.clock.sleep(2)
    world.deliver_due()
    with world.context():
        WorkPack(id=put[0], batch_key="t", items='[{"label":"a"}]').put()
    world.settle()

    assert len(set(put)) == 1
    assert world.clock.time_s - began_s < 5
    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize(
    "insert",
    [
        lambda clients: TALLIES.insert(clients, "t", Mark("a"), idempotency_key="r"),
        lambda clients: TALLIES.insert_each(clients, [("t", Mark("a"))]),
        lambda clients: TALLIES.insert_batch(clients, "t", [Mark("a")]),
    ],
)
def test_an_insert_that_no_rollback_undoes_is_refused_in_a_transaction(
    world: World, insert: Callable[[Clients], object]
) -> None:
    """D1: it stayed when the transaction was given up, and came twice when its body ran again."""
    with world.context():
        with pytest.raises(RuntimeError, match="write insert_in_transaction, or do it after"):
            transact(lambda: insert(world.clients))
        assert packs() == []


def test_outside_of_a_transaction_it_is_an_error(world: World) -> None:
    """Said at once, not found out later."""
    with world.clients.context(), pytest.raises(NoTransactionError):
        TALLIES.insert_in_transaction(world.clients, "t", Mark("a"))


def test_a_pack_is_never_too_large_to_be_bisected(world: World) -> None:
    """D3: a row for each item and the pack's own deletion go into one commit."""
    marks = [Mark(f"i{i}") for i in range(500)]
    with world.clients.context():
        with pytest.raises(BadItemError, match="at most 450"):
            transact(lambda: AT_ONCE.insert_in_transaction(world.clients, "t", *marks))
        transact(lambda: AT_ONCE.insert_in_transaction(world.clients, "t", *marks[:450]))


def test_a_second_run_that_finds_a_part_done_inserts_the_rest_once(world: World) -> None:
    """D1, B6: the place of a pack among others, which are not there again, is no part of its id."""

    def insertion(label: str) -> Callable[[], object]:
        return lambda: TALLIES.insert_in_transaction(world.clients, "t", Mark(label))

    with world.clients.context():
        run_again(world, *map(insertion, "abcc"))
    world.settle()
    with world.clients.context():
        assert tallied("t") == Counter("abcc")


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("was_committed", [True, False])
def test_a_pack_that_may_be_folded_before_its_lost_reply_is_noticed_is_put_once(
    world: World, *, was_committed: bool, is_shared: bool
) -> None:
    """D1: a joiner waits a second for its writers, and a reply may be missed for longer."""
    if not is_shared:
        object.__setattr__(world.clients, "cache", NoCache())
    put(world, "t", "first")
    with world.clients.context():
        world.plan.break_next("Commit", REPLY_LOST if was_committed else ERROR)
        with pytest.raises(rpc_errors.ServiceUnavailable):
            transact(lambda: insert_twice(world), sleep=lambda _: in_threads(world.settle))
    world.settle()
    with world.clients.context():
        assert tallied("t") == Counter(["first", *(["a", "b"] * was_committed)])


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_pack_whose_lost_reply_is_noticed_at_once_is_put_once(
    world: World, *, is_shared: bool
) -> None:
    """D1: its joiner waits, or is not due yet, so what is not there was not committed."""
    if not is_shared:
        object.__setattr__(world.clients, "cache", NoCache())
    for kind in (REPLY_LOST, ERROR):
        put(world, "t", "first")
        with world.clients.context():
            world.plan.break_next("Commit", kind)
            transact(lambda: insert_twice(world), sleep=no_pause)
        world.settle()
    with world.clients.context():
        assert tallied("t") == Counter({"first": 2, "a": 2, "b": 2})


def insert_twice(world: World) -> None:
    for label in "ab":
        TALLIES.insert_in_transaction(world.clients, "t", Mark(label))
