"""Counters with a fault at every remote call, while their shards change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters import OutcomeUnknownError
from rollforward.counters import commits as counter_commits
from rollforward.counters.entities import CounterShard, config_key, shard_key
from rollforward.datastore.versions import commit_if_current
from rollforward.runtime import Clients
from rollforward.testing.injection import CRASH_AFTER, ERROR, FLUSH, KINDS, OVERLAP, REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.rollforward.counters.counts import LIKES, PLAYED_WAYS, another_process, counter_world
from tests.rollforward.fork_join.searches.test_fork_join_under_faults import InTurn

AMOUNTS = {"a": 1, "b": -20, "c": 300, "d": 4000, "e": 50000}


class CountScenario:
    """Two processes count under idempotency keys, while the shards become more and fewer.

    The second process reads three shards and still writes to them when there is one.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.plays = itertools.count(1)
        with world.context():
            counter_commits.has_increments(world.clients)  # Or the first play alone would ask.

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        object.__setattr__(clients, "random", InTurn(next(self.plays)))
        other = another_process(self.world)
        self.count(clients, tag, "a")
        LIKES.resize(clients, tag, 3)
        for label in ("b", "c"):
            self.count(other, tag, label)
        LIKES.resize(clients, tag, 1)
        in_threads(self.world.deliver_due)  # As the queue does, on another thread.
        for label in ("d", "e", "a"):
            self.count(other, tag, label)
        LIKES.total(clients, tag, max_age_s=3600)

    def count(self, clients: Clients, tag: str, label: str) -> None:
        try:
            LIKES.increment(clients, tag, AMOUNTS[label], idempotency_key=label)
        except OutcomeUnknownError as error:
            raise rpc_errors.ServiceUnavailable("the visitor sees a 503") from error

    def is_done(self, tag: str) -> bool:
        config = config_key("likes", tag).get()
        return bool(config.read_shards == config.shards)

    def check(self, tag: str, fault: str) -> None:
        world = self.world
        assert LIKES.total(another_process(world), tag).value == self.expected(tag), fault
        keys = [shard_key("likes", tag, number) for number in range(8)]
        stored = {key.id() for key, row in zip(keys, ndb.get_multi(keys), strict=True) if row}
        assert stored == {keys[0].id()}, fault

    def expected(self, tag: str) -> int:
        return sum(AMOUNTS.values())


@PLAYED_WAYS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_increment_counts_once_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """E1, E2, E5: at a call of a writer, a resize, or the drain."""
    assert Explorer(world, CountScenario(world)).explore([kind])


@PLAYED_WAYS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [REPLY_LOST, ERROR, CRASH_AFTER])
def test_each_increment_counts_once_with_two_faults_at_once(world: World, first: str) -> None:
    """E1, E2: the second one at any later call, of any kind."""
    assert Explorer(world, CountScenario(world)).explore_pairs([first], [*KINDS, FLUSH])


@PLAYED_WAYS
def test_each_increment_counts_once_when_drains_overlap_at_any_call(world: World) -> None:
    """E2: a second delivery runs from start to end inside the first, at each of its calls."""
    if world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(world, CountScenario(world)).explore([OVERLAP])


class UnguardedScenario(CountScenario):
    """The same without idempotency keys: what raised may count or not, and never twice."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.accepted: set[str] = set()
        self.unknown: set[str] = set()

    def count(self, clients: Clients, tag: str, label: str) -> None:
        if tag + label in self.accepted | self.unknown:
            return  # The visitor does not try again: it might count twice.
        self.unknown.add(tag + label)
        try:
            LIKES.increment(clients, tag, AMOUNTS[label])
        except OutcomeUnknownError as error:
            raise rpc_errors.ServiceUnavailable("the visitor sees a 503") from error
        self.unknown.remove(tag + label)
        self.accepted.add(tag + label)

    def check(self, tag: str, fault: str) -> None:
        accepted = sum(AMOUNTS[label] for label in AMOUNTS if tag + label in self.accepted)
        doubtful = [label for label in AMOUNTS if tag + label in self.unknown]
        subsets = itertools.chain.from_iterable(
            itertools.combinations(doubtful, size) for size in range(len(doubtful) + 1)
        )
        possible = {accepted + sum(AMOUNTS[label] for label in subset) for subset in subsets}
        assert LIKES.total(another_process(self.world), tag).value in possible, fault


@PLAYED_WAYS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [REPLY_LOST, CRASH_AFTER])
def test_without_an_idempotency_key_nothing_counts_twice(world: World, kind: str) -> None:
    """E1: what returned counts once; what raised, at most once."""
    assert Explorer(world, UnguardedScenario(world)).explore([kind])


# The faults bite


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_without_receipts_the_exploration_fails(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only receipts make increments exact."""

    def forgetful(client: Any, *, puts: Any) -> None:
        commit_if_current(client, puts=[put for put in puts if put[1] is not None])

    monkeypatch.setattr(counter_commits, "commit_if_current", forgetful)
    world = counter_world(services)
    with pytest.raises((AssertionError, AttributeError)):
        Explorer(world, CountScenario(world)).explore([REPLY_LOST], at_most=30)


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_with_shards_that_come_back_the_exploration_fails(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: a writer that recreates a missing shard counts where no total reads."""

    def eager(clients: Clients, attempt: counter_commits.Attempt) -> None:
        receipts = [receipt.key for receipt in attempt.receipts]
        if any(ndb.get_multi(receipts)):
            raise rpc_errors.AlreadyExists("this was counted before")
        for key, delta in attempt.deltas.items():
            shard = key.get() or CounterShard(key=key)
            shard.count += delta
            shard.put()
        ndb.put_multi(attempt.receipts)

    monkeypatch.setattr(counter_commits, "_write_if_current", eager)
    world = counter_world(services)
    with pytest.raises(AssertionError):
        Explorer(world, CountScenario(world)).play()
