"""Inserts: refused, committed together, and found out when a reply was lost."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import transact
from rollforward.fork_join import BadItemError, ForkJoin, OutcomeUnknownError
from rollforward.fork_join import insert as fork_join_insert
from rollforward.fork_join.batching.epochs import Slot, find_open_epoch
from rollforward.fork_join.insert import (
    MAX_GROUP_BYTES,
    MAX_GROUP_ITEMS,
    MAX_GROUP_KEYS,
    PAUSE_S,
    groups,
)
from rollforward.fork_join.items import Insertion, ItemCodec
from rollforward.runtime import Clients
from rollforward.runtime.cache import NoCache
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.fork_join.searches.failing_commits import fail_first, lost_replies
from tests.rollforward.fork_join.tally_queue import TALLIES, Mark, packs, put, tallied, tally, tasks

pytestmark = pytest.mark.fast


def test_inserts_of_one_process_share_commits(world: World) -> None:
    """Group commit: concurrent inserts are packed; each gets an answer of its own."""
    answers: list[Any] = []

    def insert(i: int) -> None:
        answers.extend(put(world, "t", f"i{i}", keep_result=True))

    in_threads(*[lambda i=i: insert(i) for i in range(24)])
    places = {(answer.pack, answer.position) for answer in answers}
    assert len(places) == 24
    world.settle()

    with world.context():
        assert tallied("t") == Counter(f"i{i}" for i in range(24))
        results = [TALLIES.outcome(answer).result for answer in answers]
    assert len(set(results)) == 24


@pytest.mark.parametrize("error", [KeyError("order"), rpc_errors.ServiceUnavailable("away")])  # type: ignore[no-untyped-call]
def test_a_hint_that_fails_fails_no_insert(world: World, error: Exception) -> None:
    """The items are committed by then: a caller that repeats the insert would double them."""

    def fail(clients: Clients, key: str, count: int) -> bool:
        raise error

    settings = replace(TALLIES.settings, are_last=fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TALLIES._joiners, "settings", settings)
        assert not any(isinstance(answer, Exception) for answer in put(world, "t", "a"))
        with world.context():
            TALLIES.insert_batch(world.clients, "t", [Mark("b")])
            transact(lambda: TALLIES.insert_in_transaction(world.clients, "t", Mark("c")))
    world.settle()
    with world.context():
        assert tallied("t") == Counter("abc")


def test_many_large_items_are_committed_in_parts(world: World) -> None:
    """An entity takes a MiB, a commit ten: what is too much for one goes with the next."""
    marks = [("t", Mark(f"{i}" + "庭" * 13_000)) for i in range(40)]
    with world.clients.context():
        answers = TALLIES.insert_each(world.clients, marks)
        assert not any(isinstance(answer, Exception) for answer in answers)
        assert len(packs()) > 1


@dataclass(frozen=True)
class DatedMark(Mark):
    day: str = ""


def test_an_item_of_a_subclass_is_refused(world: World) -> None:
    """It was folded as an item of the declared class, without what it has beyond that."""
    dated = DatedMark("a", "monday")
    with world.clients.context():
        with pytest.raises(BadItemError, match="of the class Mark, got DatedMark"):
            TALLIES.insert(world.clients, "t", dated)
        with pytest.raises(BadItemError, match=r"item 2: .* of the class Mark, got DatedMark"):
            TALLIES.insert_batch(world.clients, "t", [Mark("b"), dated])
        assert packs() == []


def test_a_number_that_is_no_json_is_no_item(world: World) -> None:
    """It was folded as None where the item's type takes that."""
    codec: ItemCodec[Any] = ItemCodec("test-numbers", float | None)  # type: ignore[arg-type]
    with world.context(), pytest.raises(BadItemError, match="NaN and infinite numbers are no JSON"):
        codec.check("t", math.nan)
    with world.context(), pytest.raises(BadItemError, match=r"item 2: .* are no JSON"):
        codec.batch("t", [1.5, -math.inf], None, max_batch_size=10)


def test_each_of_many_is_told_whether_it_is_bad(world: World) -> None:
    """One that cannot be inserted takes no other with it."""
    marks = [("t", Mark("a")), ("", Mark("b")), ("t", Mark("\ud800")), ("t", Mark("c"))]
    with world.clients.context():
        answers = TALLIES.insert_each(world.clients, marks)
    assert [isinstance(answer, BadItemError) for answer in answers] == [False, True, True, False]
    world.settle()

    with world.context():
        assert tallied("t") == Counter("ac")


def test_what_cannot_be_inserted_is_refused(world: World) -> None:
    """Bad input raises, and changes nothing."""
    with pytest.raises(BadItemError, match="bytes"):
        put(world, "", "a")
    with pytest.raises(BadItemError, match="bytes"):
        put(world, "k" * 1_201, "a")
    with pytest.raises(BadItemError, match="at most"):
        put(world, "t", "a" * 40_001)
    with pytest.raises(BadItemError, match="does not match"):
        put(world, "t", 7)  # type: ignore[arg-type]
    with pytest.raises(BadItemError, match="idempotency key"):
        put(world, "t", "a", idempotency_key="")
    with pytest.raises(BadItemError, match="idempotency key"):
        put(world, "t", "a", idempotency_key="r" * 201)
    with pytest.raises(BadItemError, match="unpaired surrogate"):
        put(world, "\ud800", "a")
    with pytest.raises(BadItemError, match="unpaired surrogate"):
        TALLIES.peek(world.clients, "\ud800")
    with world.context(), pytest.raises(BadItemError, match="tag contains an unpaired surrogate"):
        transact(lambda: TALLIES.insert_in_transaction(world.clients, "t", Mark("a"), tag="\ud800"))
    with world.context():
        assert packs() == []
    put(world, "t", "a", idempotency_key="r" * 200)


def test_an_insert_that_datastore_does_not_take_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: nothing counts later unless the caller retries with the same key."""

    def away(*args: Any) -> None:
        raise rpc_errors.ServiceUnavailable("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr("rollforward.fork_join.insert.insert_rows", away)
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "a")
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "b", idempotency_key="r")
    world.settle()
    with world.context():
        assert tallied("t") == Counter()
    put(world, "t", "b", idempotency_key="r")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("b")


def test_a_commit_that_lost_its_race_leaves_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: no writer is inside when the insert is over."""
    fail_first(monkeypatch, rpc_errors.Aborted("made by a test"))
    put(world, "t", "a")

    batch = find_open_epoch(world.clients, Slot(TALLIES.name, "t"))
    assert batch is not None
    assert batch.writers == 0


def test_a_batch_of_ones_own_has_a_joiner_after_a_lost_race(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: without memcached the second commit goes where the first would have; no sweep needed."""
    object.__setattr__(world.clients, "cache", NoCache())
    fail_first(monkeypatch, rpc_errors.Aborted("made by a test"))
    put(world, "t", "a")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


def test_an_insert_whose_every_look_fails_says_that_it_is_not_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: the commit's reply is lost, then each look for it: `OutcomeUnknownError`, no other."""
    with lost_replies(monkeypatch), pytest.raises(OutcomeUnknownError):
        put(world, "t", "a", idempotency_key="r")
    (repeated,) = put(world, "t", "a", idempotency_key="r")
    world.settle()

    assert repeated.is_duplicate
    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("idempotency_key", [None, "r"])
def test_a_commit_that_is_sent_twice_finds_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, idempotency_key: str | None
) -> None:
    """D1: what is there already is its own, so it took effect, and is not made again."""
    sound, calls = fork_join_insert.insert_rows, list[int]()

    def twice(client: Any, entities: Any) -> None:
        calls.append(len(entities))
        sound(client, entities)
        sound(client, entities)

    monkeypatch.setattr(fork_join_insert, "insert_rows", twice)
    (accepted,) = put(world, "t", "a", idempotency_key=idempotency_key)
    world.settle()

    assert not accepted.is_duplicate
    assert len(calls) == 1
    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize("idempotency_key", [None, "r"])
def test_a_commit_that_lands_late_is_folded_without_a_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch, idempotency_key: str | None
) -> None:
    """D3: its writer got OutcomeUnknownError, its joiner has run; it is folded in seconds."""
    sound = fork_join_insert.insert_rows
    late: list[Any] = []

    def unheard(client: Any, entities: Any) -> None:
        late.append(entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(fork_join_insert, "insert_rows", unheard)
        with pytest.raises(OutcomeUnknownError):
            put(world, "t", "a", idempotency_key=idempotency_key)
    began_s = world.clock.time_s
    world.clock.sleep(2)
    world.deliver_due()
    with world.context():
        sound(world.clients.datastore, late[0])
    world.settle()

    assert world.clock.time_s - began_s < 5
    with world.context():
        assert tallied("t") == Counter("a")


def test_each_of_two_commits_that_land_late_is_folded_without_a_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: of one batch; the second one lands when the look at the first has been."""
    sound, late = fork_join_insert.insert_rows, list[Any]()

    def unheard(client: Any, entities: Any) -> None:
        late.append(entities)
        raise rpc_errors.DeadlineExceeded("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(fork_join_insert, "insert_rows", unheard)
        for label in "ab":
            with pytest.raises(OutcomeUnknownError):
                put(world, "t", label)
            world.clock.sleep(0.9)
    for entities in late:
        with world.context():
            sound(world.clients.datastore, entities)
        world.clock.sleep(1.5)
        world.deliver_due()

    with world.context():
        assert tallied("t") == Counter("ab")


def test_a_commit_in_doubt_that_turned_out_costs_no_second_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second try, which is guarded by its receipt, was accepted: the first never lands."""
    fail_first(monkeypatch, rpc_errors.Unknown("made by a test"))
    put(world, "t", "a", idempotency_key="r")

    assert len(tasks(world)) == 1


@pytest.mark.parametrize(
    ("error", "pause_s"), [(rpc_errors.Unknown, PAUSE_S), (rpc_errors.AlreadyExists, 0)]
)
def test_an_insert_pauses_before_it_tries_again_unless_a_key_was_used_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[Exception], pause_s: float
) -> None:
    """The store may need a moment; a rival's receipt is there already."""
    fail_first(monkeypatch, error("made by a test"))
    began_s = world.clock.time_s
    put(world, "t", "a", idempotency_key="r")

    assert world.clock.time_s - began_s == pytest.approx(pause_s)


def test_a_joiner_that_cloud_tasks_did_not_take_is_created_by_the_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: it was away for a moment; no sweep is needed."""
    sound, answers = world.clients.tasks.create_all, [rpc_errors.ServiceUnavailable("away")]

    def away_once(messages: Any) -> Any:
        return [answers.pop() for _ in messages] if answers else sound(messages)

    monkeypatch.setattr(world.clients.tasks, "create_all", away_once)
    put(world, "t", "a")
    world.settle()

    with world.context():
        assert tallied("t") == Counter("a")


@pytest.mark.parametrize(
    ("insertions", "sizes"),
    [
        ([("t", MAX_GROUP_BYTES - 1), ("t", 1)], [2]),
        ([("t", MAX_GROUP_BYTES), ("t", 1)], [1, 1]),
        ([(f"t{i}", 1) for i in range(MAX_GROUP_KEYS)] + [("t0", 1)], [MAX_GROUP_KEYS + 1]),
        ([(f"t{i}", 1) for i in range(MAX_GROUP_KEYS + 1)], [MAX_GROUP_KEYS, 1]),
        ([(f"t{i}", 1) for i in range(2 * MAX_GROUP_KEYS)], [MAX_GROUP_KEYS, MAX_GROUP_KEYS]),
        ([("t", 1)] * (MAX_GROUP_ITEMS + 1), [MAX_GROUP_ITEMS, 1]),
    ],
)
def test_what_one_commit_takes_is_bounded(
    insertions: list[tuple[str, int]], sizes: list[int]
) -> None:
    """In bytes, keys and items, to the last one; each commit begins with room for all of them."""
    asked = [Insertion(key, "x" * size) for key, size in insertions]

    assert [len(group) for group in groups(asked)] == sizes


def test_each_commit_of_many_inserts_is_below_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: 500 items, each with an idempotency key and a pack of its own."""
    sound, sizes = fork_join_insert.insert_rows, list[int]()
    small = ForkJoin("small", Mark, tally, queue="fork-join", period_s=1.0, max_batch_size=1)

    def counted(client: Any, entities: Any) -> None:
        sizes.append(len(entities))
        sound(client, entities)

    monkeypatch.setattr(fork_join_insert, "insert_rows", counted)
    marks = [("t", Mark(f"i{i}")) for i in range(500)]
    with world.clients.context():
        answers = small.insert_each(
            world.clients, marks, idempotency_keys=[f"r{i}" for i in range(500)]
        )

    assert not any(isinstance(answer, Exception) for answer in answers)
    assert sum(sizes) == 1000
    assert max(sizes) < 500
