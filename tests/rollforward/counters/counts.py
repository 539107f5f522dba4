"""Counters for tests, and processes that count with them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rollforward.counters import Counted, Counter
from rollforward.counters import commits as counter_commits
from rollforward.counters.entities import (
    CounterConfig,
    CounterReceipt,
    CounterShard,
    CounterTotal,
    config_key,
    due_text,
    shard_key,
    total_key,
)
from rollforward.runtime import Clients
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.neighbour_rows import elsewhere, untouched
from tests.infra.runs.soak import IS_SOAK
from tests.infra.world import Services, World

LIKES = Counter("likes", queue="default")
VOTES = Counter("votes", queue="default", max_shards=16, calm_s=30)
HITS = Counter("hits", "gathered", queue="fork-join")
VIEWS = Counter("views", "in_memory", queue="fork-join", flush_interval_s=3600)
# Both ways to commit, on the service that has both.
TWO_ROUND_TRIPS, ONE_ROUND_TRIP = "two-round-trips", "one-round-trip"
_EACH = [("datastore", TWO_ROUND_TRIPS), ("firestore", ONE_ROUND_TRIP)]
_ALL = [*_EACH, ("firestore", TWO_ROUND_TRIPS)]
WAYS = pytest.mark.parametrize(("services", "way"), _ALL, indirect=["services"])
# Each emulator and each way once; all of them in `make soak`.
PLAYED_WAYS = pytest.mark.parametrize(
    ("services", "way"), _ALL if IS_SOAK else _EACH, indirect=["services"]
)
COUNTERS = [LIKES, VOTES, HITS, VIEWS]
# Declarations beside them.
BESIDE = ("like", "likes-2", "votes-2", "hits-2")


def counter_world(
    services: Services, way: str = "", monkeypatch: pytest.MonkeyPatch | None = None
) -> World:
    """Return a world with counters; one way is forced on a service that has both."""
    if way == TWO_ROUND_TRIPS and monkeypatch is not None:
        monkeypatch.setattr(counter_commits, "supports_increments", lambda *probe: False)
    return World(services, counters=COUNTERS)


@contextmanager
def neighbours(world: World) -> Iterator[None]:
    """Put neighbouring counters into the store; check in the end that they are unchanged.

    They are of declarations whose names begin alike, of keys that begin alike, and of another
    namespace. Some of their shards are to be drained.
    """
    with world.context():
        rows = [row for name in BESIDE for row in _beside(name, "a")]
        rows += [row for counter in COUNTERS for row in _beside(counter.name, "a2")]
        for counter in COUNTERS:
            for row in _beside(counter.name, "a"):
                row.key = elsewhere(row.key)
                rows.append(row)
    with untouched(world, rows):
        yield


def _beside(name: str, key: str) -> list[Any]:
    """Return the rows of a counter, exact or gathered; of other declarations it is long due."""
    due = due_text(name, datetime.datetime(2020, 1, 1)) if name in BESIDE else None  # noqa: DTZ001
    return [
        CounterConfig(
            key=config_key(name, key), shards=2, read_shards=3, generation=7, calm_s=30.0, due=due
        ),
        *(CounterShard(key=shard_key(name, key, number), count=100) for number in range(3)),
        CounterTotal(key=total_key(name, key), count=1_000, folds=3),
    ]


def another_process(world: World) -> Clients:
    """Return the clients of a process that remembers nothing yet."""
    return replace(world.clients, process_state=ProcessState())


def add(
    world: World,
    key: str,
    delta: int = 1,
    *,
    counter: Counter = LIKES,
    clients: Clients | None = None,
    **options: Any,
) -> Counted:
    with world.clients.context():
        return counter.increment(clients or world.clients, key, delta, **options)


def total(world: World, key: str, counter: Counter = LIKES, **options: Any) -> int:
    with world.clients.context():
        return counter.total(world.clients, key, **options).value


def resize(world: World, key: str, shards: int | None, counter: Counter = LIKES) -> None:
    with world.clients.context():
        counter.resize(world.clients, key, shards)


def contend(world: World, counter: Counter, key: str, commits: int) -> None:
    """Make `commits` increments, each after a lost race."""
    with world.context():
        counter_commits.has_increments(
            world.clients
        )  # It is asked before, so that no race of the probe is lost.
    for _ in range(commits):
        with world.plan.watched():
            world.plan.reset("error:ABORTED", next_call="Commit")
            add(world, key, counter=counter)


def config(world: World, key: str, counter: Counter = LIKES) -> Any:
    with world.context():
        return config_key(counter.name, key).get()


def stored(world: World, key: str) -> dict[int, int]:
    """Return the counts of all stored shards of a counter, by their numbers."""
    with world.context():
        names = [(row.key.id().split("|", 3), row.count) for row in CounterShard.query()]
    return {
        int(shard): count
        for (_, name, shard, of), count in names
        if of == key and name not in BESIDE
    }


def receipts(world: World) -> list[CounterReceipt]:
    with world.context():
        return list(CounterReceipt.query())
