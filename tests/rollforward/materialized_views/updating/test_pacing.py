"""Pacing: updates of a busy row are spread over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from google.cloud import ndb

from rollforward.materialized_views import Contributions, View, ViewGroup
from rollforward.materialized_views.updating import apply
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.cache import NoCache
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    NOON,
    Number,
    WrongClock,
    counts,
    number,
    one_emulator,
    played,
)
from tests.rollforward.materialized_views.student_views import differences


class Paced(View):
    """One row that takes an update a second, after three."""

    name = "paced"
    source = Number
    row_rate = 1.0
    row_burst = 3

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {"all": number.said}


def starts(world: World, views: ViewGroup, many: int = 7) -> list[float]:
    """Save so many numbers one by one; return how many seconds later each update may start."""
    for n in range(many):
        views.save(world.clients, number(f"s{n}", 1))
    rows = sorted(OutboxTask.query().fetch(), key=lambda row: row.at or NOON.min)
    now = world.clock.now().replace(tzinfo=None)
    return [round((row.at - now).total_seconds(), 3) if row.at else 0.0 for row in rows]


@one_emulator
def test_updates_of_one_row_are_spread_after_the_burst(services: Services) -> None:
    """C1: they come later, and none is lost."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()

        assert starts(world, views) == [0, 0, 0, 0, 1, 2, 3]

        world.settle()
        assert counts(world, Paced, views) == {"all": 7}
        assert differences(views) == []


@one_emulator
@pytest.mark.parametrize("ahead_s", [-36_000, 36_000, 10**9], ids=["behind", "ahead", "years"])
def test_turns_that_a_wrong_clock_took_hold_nobody_up(services: Services, ahead_s: int) -> None:
    """C1: a process whose clock is right again gives turns from its own time on."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()
        right = world.clients
        world.clients = replace(right, clock=WrongClock(world.clock, ahead_s))  # type: ignore[arg-type]
        for n in range(3):
            views.save(world.clients, number(f"wrong{n}", 1))
        ndb.delete_multi(OutboxTask.query().fetch(keys_only=True))

        world.clients = right

        assert starts(world, views) == [0, 0, 0, 0, 1, 2, 3]


@one_emulator
def test_a_turn_is_at_most_an_hour_ahead(services: Services) -> None:
    """C1: what comes in faster for so long is not held back for ever longer."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        world.flush()
        views.save(world.clients, number("first", 1))
        world.clients.cache.incr('views:paced:paced.1.1:"all"', 3_602_000, ttl_s=60)
        views.save(world.clients, number("second", 1))
        views.save(world.clients, number("third", 1))

        now = world.clock.now().replace(tzinfo=None)
        ats = [row.at for row in OutboxTask.query().fetch()]

        assert sorted(round((at - now).total_seconds()) for at in ats if at) == [3_600]


@one_emulator
@pytest.mark.parametrize("cache", ["away", "flushed"])
def test_without_memcached_updates_come_at_once_and_totals_stay_exact(
    services: Services, cache: str
) -> None:
    """C1: what memcached says decides when, and never what."""
    with played(services, [Paced]) as (world, views):
        if cache == "away":
            world.clients = replace(world.clients, cache=NoCache())
            found = starts(world, views)
        else:
            found = []
            for n in range(7):
                world.flush()
                views.save(world.clients, number(f"s{n}", 1))
            found = [0.0 if row.at is None else 1.0 for row in OutboxTask.query().fetch()]

        assert found == [0.0] * 7
        world.settle()
        assert counts(world, Paced, views) == {"all": 7}


class Spread(View):
    """A row for each number."""

    name = "spread"
    source = Number

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {str(number.said["n"]): {}}


@one_emulator
def test_updates_of_one_row_are_applied_one_after_the_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: where the store locks, those that come together would wait for each other's time-outs."""
    locks: list[str] = []

    @contextmanager
    def noted(clients: Clients, name: str) -> Iterator[None]:
        before = len(world.plan.calls)
        with advisory_lock(clients, name), world.plan.watched():
            yield
        calls = world.plan.calls[before:]
        assert (calls[0], calls[-1]) == ("BeginTransaction", "Commit")
        locks.append(name)

    monkeypatch.setattr(apply, "advisory_lock", noted)
    with played(services, [Paced, Spread]) as (world, views):
        for name, said in (("a", 1), ("b", 1), ("c", 2)):
            views.save(world.clients, number(name, said))
        world.settle()
        assert counts(world, Spread, views) == {"1": 2, "2": 1}

    assert sorted(Counter(locks).values()) == [1, 2, 3]
