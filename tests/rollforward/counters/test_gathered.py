"""Counters that are gathered, or kept in memory: the same calls, fewer writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from rollforward.counters import Counter, DifferentItemError, NotGatheredError, OutcomeUnknownError
from rollforward.counters.counter import Mode
from rollforward.counters.entities import total_key
from rollforward.counters.gathered import MAX_CLAIMS
from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import NoTransactionError, transact
from rollforward.fork_join.accumulator import BufferFullError
from rollforward.fork_join.pattern import EXPIRY
from rollforward.tasks.errors import UnknownTaskError
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import Services, World
from tests.rollforward.counters.counts import (
    HITS,
    LIKES,
    VIEWS,
    add,
    counter_world,
    neighbours,
    total,
)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    world = counter_world(services)
    with neighbours(world):
        yield world


def folds(world: World, name: str, key: str) -> int:
    with world.context():
        row = total_key(name, key).get()
    return row.folds if row else 0


def test_gathered_increments_are_one_write_of_their_total(world: World) -> None:
    """E1: a batch, however many they are; until then the total is without them."""
    in_threads(*[lambda i=i: add(world, "a", i, counter=HITS) for i in range(-3, 10)])
    total_before = total(world, "a", HITS)
    world.settle()

    assert (total_before, total(world, "a", HITS)) == (0, sum(range(-3, 10)))
    assert folds(world, "hits", "a") == 1


@pytest.mark.parametrize("is_unknown_first", [True, False])
def test_of_several_errors_the_caller_gets_the_one_that_leaves_it_open(
    world: World, monkeypatch: pytest.MonkeyPatch, is_unknown_first: bool
) -> None:
    """E1: it must not take an increment that may count for one that was refused."""
    errors: list[Exception] = [BufferFullError("full"), OutcomeUnknownError("open")]
    answers = errors[::-1] if is_unknown_first else errors
    queue = type(HITS._gathering().fork_join)
    monkeypatch.setattr(queue, "insert_each", lambda *args, **options: answers)

    with world.context(), pytest.raises(OutcomeUnknownError):
        HITS.increment_many(world.clients, {"a": 1, "b": 1})


@pytest.mark.parametrize("duplicates", [(True, True), (True, False), (False, True)])
def test_several_increments_are_a_duplicate_if_none_of_them_is_new(
    world: World, monkeypatch: pytest.MonkeyPatch, duplicates: tuple[bool, bool]
) -> None:
    """E2: an earlier call with the key may have stored some of them."""
    answers = [SimpleNamespace(is_duplicate=is_duplicate) for is_duplicate in duplicates]
    queue = type(HITS._gathering().fork_join)
    monkeypatch.setattr(queue, "insert_each", lambda *args, **options: answers)

    with world.context():
        counted = HITS.increment_many(world.clients, {"a": 1, "b": 1}, idempotency_key="k")

    assert counted.is_duplicate is all(duplicates)


def test_an_increment_in_a_transaction_counts_with_it_or_not_at_all(world: World) -> None:
    """E1: committed with the data that it counts; an exact counter takes no part."""

    def broken() -> None:
        HITS.increment_in_transaction(world.clients, {"a": 100})
        raise ZeroDivisionError

    with world.clients.context():
        transact(lambda: HITS.begin_in_transaction({"b": 40}))
        transact(lambda: HITS.increment_in_transaction(world.clients, {"a": 2, "b": -1}))
        with pytest.raises(ZeroDivisionError):
            transact(broken)
        with pytest.raises(NotGatheredError):
            transact(lambda: LIKES.increment_in_transaction(world.clients, {"a": 1}))
        for outside in (HITS.begin_in_transaction, lambda a: add_outside(world, a)):
            with pytest.raises(NoTransactionError):
                outside({"a": 7})
    world.settle()

    assert (total(world, "a", HITS), total(world, "b", HITS)) == (2, 39)


def test_a_first_total_erases_no_increment_that_came_between_two_runs(world: World) -> None:
    """E1: the reply to the first commit was lost, and others have counted since."""

    def meanwhile(_: float) -> None:
        in_threads(lambda: count_and_fold(world))

    with world.context():
        world.plan.break_next("Commit", REPLY_LOST)
        transact(lambda: HITS.begin_in_transaction({"a": 40}), sleep=meanwhile)
    assert total(world, "a", HITS) == 41


def count_and_fold(world: World) -> None:
    with world.clients.context():
        HITS.increment(world.clients, "a")
    world.settle()


def add_outside(world: World, deltas: dict[str, int]) -> None:
    HITS.increment_in_transaction(world.clients, deltas)


@pytest.mark.parametrize("counter", [LIKES, HITS, VIEWS], ids=lambda counter: counter.mode)
def test_an_increment_that_a_rollback_would_not_undo_is_refused(
    world: World, counter: Counter
) -> None:
    """E1: in a transaction's body it would count even after a rollback."""
    add(world, "a", 3, counter=counter)

    def one(once: str | None) -> None:
        counter.increment(world.clients, "a", 100, idempotency_key=once)

    def many(once: str | None) -> None:
        counter.increment_many(world.clients, {"a": 100}, idempotency_key=once)

    with world.clients.context():
        for body in (one, many):
            for once in (None, "r"):
                with pytest.raises(RuntimeError, match=counter.name):
                    transact(partial(body, once))
        counter.flush(world.clients)
    add(world, "a", 1, counter=counter, idempotency_key="r")
    world.settle()

    assert total(world, "a", counter) == 4


def test_a_gathered_increment_counts_once_for_its_idempotency_key(world: World) -> None:
    """E1: before its batch and after."""
    answers = [add(world, "a", 2, counter=HITS, idempotency_key="r") for _ in range(2)]
    world.settle()
    answers.append(add(world, "a", 2, counter=HITS, idempotency_key="r"))
    with pytest.raises(DifferentItemError):
        add(world, "a", 3, counter=HITS, idempotency_key="r")
    world.settle()

    assert [answer.is_duplicate for answer in answers] == [False, True, True]
    assert total(world, "a", HITS) == 2


def test_a_gathered_increment_is_known_for_as_long_as_a_task_may_be_delivered(world: World) -> None:
    """E4: on its 31st day; a queue's own receipts go after a day."""
    add(world, "a", 2, counter=HITS, idempotency_key="r")
    world.settle()
    world.clock.sleep(31 * 24 * 3600)
    with world.context():
        for partition in PARTITIONS:
            EXPIRY.delete_page(world.clients, partition)
    repeated = add(world, "a", 2, counter=HITS, idempotency_key="r")
    world.settle()

    assert repeated.is_duplicate
    assert total(world, "a", HITS) == 2


def test_many_gathered_counters_in_one_call(world: World) -> None:
    """E1: each counts for itself; what is repeated counts once."""
    with world.clients.context():
        original = HITS.increment_many(world.clients, {"a": 1, "b": 2}, idempotency_key="r")
        repeated = HITS.increment_many(world.clients, {"a": 1, "b": 2}, idempotency_key="r")
        HITS.increment_many(world.clients, {"a": 10, "b": 20})
    add(world, "a", 100, counter=HITS, idempotency_key="r")
    world.settle()

    assert (original.is_duplicate, repeated.is_duplicate) == (False, True)
    assert (total(world, "a", HITS), total(world, "b", HITS)) == (111, 22)


@pytest.mark.parametrize("counter", [LIKES, HITS, VIEWS], ids=lambda counter: counter.mode)
@pytest.mark.parametrize("others", [{"a": 2, "b": 5}, {"a": 1, "b": 5}, {"b": 5}, {"a": 1, "c": 0}])
def test_another_call_with_a_used_idempotency_key_counts_nothing(
    world: World, counter: Counter, others: dict[str, int]
) -> None:
    """E1: whichever of its counters the first call had; that one can be repeated still."""
    deltas = {"a": 1, "c": 3}
    with world.clients.context():
        counter.increment_many(world.clients, deltas, idempotency_key="r")
        with pytest.raises(DifferentItemError):
            counter.increment_many(world.clients, others, idempotency_key="r")
        repeated = counter.increment_many(world.clients, deltas, idempotency_key="r")
        counter.flush(world.clients)
    world.settle()

    assert repeated.is_duplicate
    assert [total(world, key, counter) for key in "abc"] == [1, 0, 3]


@pytest.mark.parametrize("counter", [LIKES, HITS, VIEWS], ids=lambda counter: counter.mode)
def test_a_call_is_known_in_whatever_order_its_counters_stand(
    world: World, counter: Counter
) -> None:
    """E1: a set or a dict that another process filled has an order of its own."""
    with world.clients.context():
        for deltas in ({"a": 1, "b": 2, "c": 3}, {"c": 3, "a": 1, "b": 2}):
            counted = counter.increment_many(world.clients, deltas, idempotency_key="r")
        counter.flush(world.clients)
    world.settle()

    assert counted.is_duplicate
    assert [total(world, key, counter) for key in "abc"] == [1, 2, 3]


def test_many_counters_whose_key_cannot_be_claimed_count_nothing(world: World) -> None:
    """E1: otherwise one key could belong to two different calls."""
    world.plan.reset(more=dict.fromkeys(range(MAX_CLAIMS), ERROR))
    with world.clients.context():
        with world.plan.watched(), pytest.raises(OutcomeUnknownError):
            HITS.increment_many(world.clients, {"a": 1, "b": 2}, idempotency_key="r")
        assert world.plan.calls == ["Commit"] * MAX_CLAIMS
        HITS.increment_many(world.clients, {"a": 5, "b": 5}, idempotency_key="r")
    world.settle()

    assert [total(world, key, HITS) for key in "ab"] == [5, 5]


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
@pytest.mark.parametrize("nth", range(2))
def test_many_gathered_counters_count_once_whichever_commit_fails(
    world: World, kind: str, nth: int
) -> None:
    """E1: the commit of the claim, or a commit of the increments."""
    deltas = {"a": 1, "b": 2}
    with world.clients.context():
        with world.plan.watched():
            for once in ("r0", "r1"):  # The first one opens their batches.
                world.plan.reset()
                HITS.increment_many(world.clients, dict.fromkeys(deltas, 0), idempotency_key=once)
            commits = [i for i, call in enumerate(world.plan.calls) if call == "Commit"]
            world.plan.reset(kind, commits[nth])
            original = HITS.increment_many(world.clients, deltas, idempotency_key="r")
        repeated = HITS.increment_many(world.clients, deltas, idempotency_key="r")
    world.settle()

    assert world.plan.fired
    assert len(commits) == 2
    assert (original.is_duplicate, repeated.is_duplicate) == (False, True)
    assert [total(world, key, HITS) for key in deltas] == [1, 2]


def test_increments_in_memory_ask_nothing_of_the_service(world: World) -> None:
    """E1: until the flush; then their sum is one item."""
    cost_before = world.clients.meter.cost()
    for i in range(100):
        add(world, "a", i, counter=VIEWS)
    with world.clients.context():
        VIEWS.increment_many(world.clients, {"a": 1, "b": -1})
    cost = world.clients.meter.cost() - cost_before
    with world.clients.context():
        VIEWS.flush(world.clients)
    world.settle()

    assert cost.round_trips == 0
    assert (total(world, "a", VIEWS), total(world, "b", VIEWS)) == (4951, -1)
    assert folds(world, "views", "a") == 1


def test_increments_in_memory_without_room_for_all_count_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: a known counter has room and a new one has none; the caller makes the call again."""
    monkeypatch.setattr("rollforward.fork_join.accumulator.MAX_KEYS", 2)
    add(world, "old", counter=VIEWS)
    add(world, "other", counter=VIEWS)
    with world.clients.context():
        with pytest.raises(BufferFullError):
            VIEWS.increment_many(world.clients, {"old": 1, "new": 1})
        VIEWS.flush(world.clients)
        VIEWS.increment_many(world.clients, {"old": 1, "new": 1})
        VIEWS.flush(world.clients)
    world.settle()

    assert [total(world, key, VIEWS) for key in ("old", "other", "new")] == [2, 1, 1]


def test_what_has_an_idempotency_key_is_never_in_memory_alone(world: World) -> None:
    """E1: a process that is killed has stored it, and its repetition is known."""
    add(world, "a", 5, counter=VIEWS)
    add(world, "a", 2, counter=VIEWS, idempotency_key="r")
    world.clients.process_state.clear()  # Killed.
    repeated = add(world, "a", 2, counter=VIEWS, idempotency_key="r")
    world.settle()

    assert repeated.is_duplicate
    assert total(world, "a", VIEWS) == 2


def test_a_process_that_is_told_to_end_stores_what_it_has(world: World) -> None:
    """E1: on SIGTERM nothing is lost."""
    add(world, "a", 5, counter=VIEWS)
    world.clients.process_state.shutdown()
    world.settle()

    assert total(world, "a", VIEWS) == 5


def test_gathered_totals_are_cached_with_their_age_too(world: World) -> None:
    """E3: the same call, whichever way a counter is kept."""
    add(world, "a", 5, counter=HITS)
    world.settle()
    total(world, "a", HITS, max_age_s=3600)
    add(world, "a", 5, counter=HITS)
    world.settle()

    assert total(world, "a", HITS, max_age_s=3600) == 5
    assert total(world, "a", HITS) == 10


def test_what_cannot_be_declared() -> None:
    """The error says why."""
    bounds: list[dict[str, int]] = [
        *({"min_shards": 0}, {"max_shards": 257}, {"min_shards": 9, "max_shards": 8}),
        {"calm_s": 0},
    ]
    for options in bounds:
        with pytest.raises(ValueError, match="shards"):
            Counter("likes", queue="default", **options)  # type: ignore[arg-type]
    fixed = Counter("x" * 40, queue="default", min_shards=256, max_shards=256, calm_s=0.1)
    assert fixed.shard_bounds == (256, 256)
    with pytest.raises(ValueError, match="one of exact, gathered, in_memory"):
        Counter("likes", "somehow", queue="default")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name"):
        Counter("a|b", queue="default")


@pytest.mark.parametrize("mode", ["gathered", "in_memory"])
def test_a_gathered_counter_of_no_registry_counts_nothing(world: World, mode: Mode) -> None:
    """E1: nor is it held in a memory that no flush can store."""
    unknown = Counter("unknown", mode, queue="default", flush_interval_s=3600)
    clients = replace(world.clients, task_paths=frozenset([LIKES.settle_task.path]))
    with world.clients.context():
        with pytest.raises(UnknownTaskError):
            unknown.increment(clients, "a")
        unknown.flush(clients)

    assert total(world, "a", unknown) == 0
