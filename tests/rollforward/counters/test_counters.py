"""Exact counters: each increment counts once, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters import (
    BadItemError,
    Counted,
    Counter,
    DifferentItemError,
    OutcomeUnknownError,
    exact,
    shard_maps,
)
from rollforward.counters import commits as counter_commits
from rollforward.counters import resize as counter_resize
from rollforward.counters.increments import IncrementRequest, increment_request
from rollforward.counters.resize import Resizer
from rollforward.counters.shard_maps import ShardMaps
from rollforward.datastore.increments import IncrementProbe
from rollforward.datastore.transactions import pending_writes
from rollforward.tasks.errors import UnknownTaskError
from rollforward.testing.injection import ERROR, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.stack import until
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    LIKES,
    ONE_ROUND_TRIP,
    TWO_ROUND_TRIPS,
    VOTES,
    WAYS,
    add,
    another_process,
    config,
    receipts,
    resize,
    stored,
    total,
)

pytestmark = [WAYS, pytest.mark.fast]


def test_increments_and_decrements_add_up(world: World) -> None:
    """E1: by any amount, also below zero; a new counter is at 0."""
    for delta in (1, 5, -9, 10**12, -(10**12), 0):
        add(world, "a", delta)

    assert (total(world, "a"), total(world, "b")) == (-3, 0)


def test_an_increment_is_one_round_trip_where_the_service_can(world: World, way: str) -> None:
    """It reads nothing. Elsewhere it reads its shard first; a process asks once which it is."""
    add(world, "a", idempotency_key="r1")
    with world.plan.watched():
        world.plan.reset()
        add(world, "a", idempotency_key="r2")

    elsewhere = ["Lookup", "Commit"]
    assert world.plan.calls == (["Commit"] if way == ONE_ROUND_TRIP else elsewhere)
    assert total(world, "a") == 2


def test_no_increment_makes_an_index(world: World) -> None:
    """An indexed property is written twice, and all counters would share one index."""
    for delta in (0, 5):
        add(world, "a", delta, idempotency_key=f"r{delta}")
    with world.context():
        by_property = [
            ndb.Query(kind=kind, filters=ndb.FilterNode(name, ">=", 0)).fetch(keys_only=True)
            for kind, name in (("CounterShard", "count"), ("IncrementProbe", "number"))
        ]

    assert stored(world, "a") == {0: 5}
    assert by_property == [[], []]


def test_processes_that_start_together_do_not_compete_for_one_probe(world: World, way: str) -> None:
    """A row takes a write a second, and a deployment may start a hundred processes at once."""
    for number in range(8):
        assert add(world, "a", idempotency_key=f"r{number}", clients=another_process(world))
    with world.context():
        probed = {key.id() for key in IncrementProbe.query().fetch(keys_only=True)}

    assert total(world, "a") == 8
    assert len(probed) > 1 if way == ONE_ROUND_TRIP else not probed


def test_an_idempotency_key_counts_once(world: World) -> None:
    """E1: however often it comes, through whichever process."""
    other = another_process(world)

    assert add(world, "a", 5, idempotency_key="r") == Counted()
    assert add(world, "a", 5, idempotency_key="r").is_duplicate
    assert add(world, "a", 5, idempotency_key="r", clients=other).is_duplicate
    assert total(world, "a") == 5


def test_what_comes_between_the_read_and_the_commit_is_kept(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: the commit that read the older count changes nothing, and is made again."""
    add(world, "a")
    read, between = counter_commits.read_versions, [40]

    def read_then_wait(*arguments: Any) -> Any:
        answer = read(*arguments)
        if between:
            LIKES.increment(another_process(world), "a", between.pop())
        return answer

    monkeypatch.setattr(counter_commits, "read_versions", read_then_wait)

    assert add(world, "a", 2, idempotency_key="r").conflicts == (way == TWO_ROUND_TRIPS)
    assert total(world, "a") == (43 if way == TWO_ROUND_TRIPS else 3)


def test_an_idempotency_key_belongs_to_one_increment_of_one_counter(world: World) -> None:
    """Another amount is an error and changes nothing; another counter has keys of its own."""
    add(world, "a", 5, idempotency_key="r")
    with pytest.raises(DifferentItemError):
        add(world, "a", 6, idempotency_key="r")
    add(world, "b", 6, idempotency_key="r")

    assert (total(world, "a"), total(world, "b")) == (5, 6)


def test_keys_that_look_alike_are_different_counters(world: World) -> None:
    """The talk's name and number, one behind the other, are the same for "a" 11 and "a1" 1."""
    for key in ("a", "a1", "a|1", "いいね", "a" * 1200):
        add(world, key)

    assert [total(world, key) for key in ("a", "a1", "a|1", "いいね", "a" * 1200)] == [1] * 5


def test_a_lost_reply_is_found_by_the_receipt(world: World) -> None:
    """E1: the commit took effect, the caller sees no error, and a repetition is known."""
    add(world, "a", idempotency_key="r0")
    with world.plan.watched():
        world.plan.reset(REPLY_LOST, next_call="Commit")
        original = add(world, "a", idempotency_key="r1")

    assert world.plan.fired
    assert not original.is_duplicate
    assert add(world, "a", idempotency_key="r1").is_duplicate
    assert total(world, "a") == 2


def test_a_commit_that_failed_is_made_again_if_a_receipt_guards_it(world: World) -> None:
    """E1: an error says nothing about its effect."""
    add(world, "a", idempotency_key="r0")
    with world.plan.watched():
        world.plan.reset(ERROR, next_call="Commit")
        add(world, "a", idempotency_key="r1")

    assert world.plan.fired
    assert total(world, "a") == 2


@pytest.mark.parametrize(("kind", "counted"), [(ERROR, 1), (REPLY_LOST, 2)])
def test_without_an_idempotency_key_an_unknown_outcome_is_told(
    world: World, kind: str, counted: int
) -> None:
    """It may count or not, and never twice: it is not tried again."""
    add(world, "a")
    with world.plan.watched():
        world.plan.reset(kind, next_call="Commit")
        with pytest.raises(OutcomeUnknownError):
            add(world, "a")

    assert total(world, "a") == counted


def test_a_lost_race_is_run_again_without_an_idempotency_key(world: World) -> None:
    """ABORTED says that nothing was written."""
    add(world, "a")
    with world.plan.watched():
        world.plan.reset(f"{ERROR}:ABORTED", next_call="Commit")
        counted = add(world, "a")

    assert counted.conflicts == 1
    assert total(world, "a") == 2


def test_many_counters_are_counted_by_one_commit(world: World) -> None:
    """All or nothing, under one idempotency key."""
    deltas = {f"k{i}": i for i in range(1, 41)}
    with world.clients.context():
        LIKES.increment_many(world.clients, dict.fromkeys(deltas, 0))
        cost_before = world.clients.meter.cost()
        original = LIKES.increment_many(world.clients, deltas, idempotency_key="r")
        cost = world.clients.meter.cost() - cost_before
        repeated = LIKES.increment_many(world.clients, deltas, idempotency_key="r")
        with pytest.raises(DifferentItemError):
            LIKES.increment_many(world.clients, {"k1": 1}, idempotency_key="r")
        totals = LIKES.totals(world.clients, list(deltas))

    assert (original.is_duplicate, repeated.is_duplicate) == (False, True)
    assert cost.writes == 41
    assert {key: total.value for key, total in totals.items()} == deltas


def test_a_key_of_many_is_no_key_of_one(world: World) -> None:
    """E1: what a caller chooses for one kind of call says nothing about another."""
    add(world, "a", idempotency_key="r")
    with world.clients.context():
        many = LIKES.increment_many(world.clients, {"a": 1}, idempotency_key="r")

    assert not many.is_duplicate
    assert total(world, "a") == 2


def test_an_increment_that_counted_says_so_whatever_its_shards_raise(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: after an error the caller would count again."""

    def broken(*_: Any) -> bool:
        raise RuntimeError("a bug beside the count")

    monkeypatch.setattr(exact.ExactIncrements, "_follow", broken)

    assert add(world, "a") == Counted()
    assert total(world, "a") == 1


def test_increments_of_one_process_share_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: twenty at once; the same request at the same moment counts once."""
    add(world, "a")
    calls_before = world.clients.meter.total().round_trips
    answers: list[Counted] = []
    shared = LIKES._group_commit(world.clients)
    groups: list[int] = []

    def commit(calls: Sequence[IncrementRequest], really: Any = shared._commit) -> Any:
        groups.append(len(calls))
        if len(groups) == 1:  # It takes until the others have come.
            until(lambda: len(shared._waiting) == 20 - groups[0], 60, every_s=0.001)
        return really(calls)

    def act(i: int) -> None:
        answers.append(add(world, "a", idempotency_key=f"r{i % 15}"))

    monkeypatch.setattr(shared, "_commit", commit)
    monkeypatch.setattr(shared, "_max_wait_s", 60)
    in_threads(*[lambda i=i: act(i) for i in range(20)])

    assert len(groups) == 2
    assert [answer.is_duplicate for answer in answers].count(False) == 15
    assert total(world, "a") == 16
    assert world.clients.meter.total().round_trips - calls_before < 20
    assert len(receipts(world)) == 15


@pytest.mark.parametrize("wrong_at", range(3))
def test_a_repetition_is_known_beside_another_increment_with_its_key(
    world: World, wrong_at: int
) -> None:
    """E1: they share a commit; only the different one fails, in either order."""
    add(world, "a", 1, idempotency_key="r")
    deltas = [1, 1]
    deltas.insert(wrong_at, 2)
    with world.clients.context():
        commit = LIKES._group_commit(world.clients)._commit
        answers = commit([increment_request({"a": delta}, "r") for delta in deltas])
    accepted = [answer for delta, answer in zip(deltas, answers, strict=True) if delta == 1]

    assert isinstance(answers[wrong_at], DifferentItemError)
    assert accepted == [Counted(is_duplicate=True)] * 2
    assert total(world, "a") == 1


def test_processes_that_race_lose_nothing(world: World) -> None:
    """E1: each with an idempotency key that two of them use."""
    processes = [another_process(world) for _ in range(4)]

    def act(number: int) -> None:
        for i in range(6):
            key = f"r{number // 2}.{i}"
            add(world, "a", 2, clients=processes[number], idempotency_key=key)

    in_threads(*[lambda n=n: act(n) for n in range(4)])

    assert total(world, "a") == 2 * 6 * 2
    assert sum(stored(world, "a").values()) == 24


def test_what_cannot_be_counted_changes_nothing(world: World) -> None:
    """Keys, amounts and idempotency keys have their bounds, and the error says which."""
    bad: list[tuple[Any, Any, Any]] = [
        ("", 1, None),
        ("a" * 1201, 1, None),
        ("\ud800", 1, None),
        (17, 1, None),
        ("a", 10**12 + 1, None),
        ("a", True, None),
        ("a", 1.0, None),
        ("a", 1, ""),
        ("a", 1, "r" * 201),
        ("a", 1, 17),
    ]
    for key, delta, idempotency_key in bad:
        with pytest.raises(BadItemError):
            add(world, key, delta, idempotency_key=idempotency_key)
    with world.clients.context():
        for deltas in ({}, {f"k{i}": 1 for i in range(101)}):
            with pytest.raises(BadItemError):
                LIKES.increment_many(world.clients, deltas)
        with pytest.raises(BadItemError, match="unpaired surrogate"):
            LIKES.status(world.clients, "\ud800")

    assert total(world, "a") == 0


def test_while_the_service_does_not_answer_the_probe_nothing_is_assumed(world: World) -> None:
    """The first increment is a transaction then, and the next one asks again."""
    with world.plan.watched():
        world.plan.reset(ERROR, next_call="Commit")  # Whatever is committed first.
        try:
            add(world, "a", idempotency_key="r1")
        except (OutcomeUnknownError, rpc_errors.GoogleAPIError):
            add(world, "a", idempotency_key="r1")
    add(world, "a", idempotency_key="r2")

    assert total(world, "a") == 2


def test_a_counter_of_no_registry_counts_nothing(world: World) -> None:
    """E1: its task could not be created later, so it is refused before the commit."""
    unknown = Counter("unknown", queue="default")
    clients = replace(world.clients, task_paths=frozenset([LIKES.settle_task.path]))
    with world.clients.context():
        with pytest.raises(UnknownTaskError):
            unknown.increment(clients, "a")
        with pytest.raises(UnknownTaskError):
            unknown.resize(clients, "a", 4)

    assert total(world, "a", unknown) == 0
    assert config(world, "a", unknown) is None


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(rpc_errors.InvalidArgument, 1), (rpc_errors.ResourceExhausted, exact.MAX_ATTEMPTS)],
)
def test_what_can_never_work_is_not_repeated_and_a_quota_is_given_time(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[Exception], attempts: int
) -> None:
    """E1: a refusal is raised at once; there is a pause before an attempt that may succeed."""
    began_s: list[float] = []

    def refuse(*args: object) -> None:
        began_s.append(world.clock.time_s)
        raise error("made by a test")

    with monkeypatch.context() as patch:
        patch.setattr(exact, "write", refuse)
        with pytest.raises(OutcomeUnknownError):
            add(world, "a", idempotency_key="r")
    add(world, "a", idempotency_key="r")

    assert len(began_s) == len(set(began_s)) == attempts
    assert total(world, "a") == 1


def test_many_new_counters_are_made_by_commits_below_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: a hundred counters of five shards, six rows each, and all are incremented."""
    sound, sizes = shard_maps.transact, list[int]()

    def counted(body: Callable[[], Any]) -> Any:
        def counting() -> Any:
            rows = body()
            sizes.append(pending_writes())
            return rows

        return sound(counting)

    monkeypatch.setattr(shard_maps, "transact", counted)
    spread = Counter("spread", queue="default", min_shards=5)
    keys = [f"k{i}" for i in range(100)]
    with world.clients.context():
        spread.increment_many(world.clients, dict.fromkeys(keys, 1))
        totals = spread.totals(world.clients, keys)

    assert sum(sizes) == 600
    assert max(sizes) < 500
    assert {one.value for one in totals.values()} == {1}


def test_no_commit_begins_long_after_the_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: each commit hangs; the caller hears of it although attempts are left."""
    began_s: list[float] = []

    def hang(*args: object) -> None:
        began_s.append(world.clock.time_s)
        world.clock.sleep(6)
        raise rpc_errors.DeadlineExceeded("made by a test")

    monkeypatch.setattr(exact, "write", hang)
    with pytest.raises(OutcomeUnknownError):
        add(world, "a", idempotency_key="r")

    assert len(began_s) == 2 < exact.MAX_ATTEMPTS


def test_a_counter_that_is_given_the_number_it_has_does_not_grow(world: World) -> None:
    """Another process, which has met conflicts, does not know yet that it is to stay."""
    other = another_process(world)
    add(world, "a", counter=VOTES)
    shard_maps_ = ShardMaps.of(other, VOTES._settings)
    with world.clients.context():
        [shard_map] = shard_maps_.get(other, ["a"]).values()
    resize(world, "a", shard_map.shards, VOTES)

    with world.clients.context():
        Resizer(shard_maps_).grow(other, shard_map, is_rush=True)

    row = config(world, "a", VOTES)
    assert (row.shards, row.is_pinned) == (shard_map.shards, True)


def test_a_long_drain_goes_on_without_a_sweep_and_shrinks_no_further(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: a task drains so many shards, the next one the rest; none of them takes it as calm."""
    monkeypatch.setattr(counter_resize, "MAX_DRAINED", 3)
    for shards in (16, None):
        resize(world, "a", shards, VOTES)
    add(world, "a", 7, counter=VOTES)
    world.clock.sleep(31)
    world.sweep()
    world.settle()

    row = config(world, "a", VOTES)
    assert (row.shards, row.read_shards) == (8, 8)
    assert total(world, "a", VOTES) == 7
