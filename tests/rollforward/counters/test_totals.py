"""Totals: exact when they are read, and as old as they say when they are cached."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud.datastore_v1.types import LookupRequest, LookupResponse

from rollforward.counters import Total
from rollforward.counters.totals import ShardReader, _cache_key, cache_total, cached_total
from rollforward.datastore import lookup
from rollforward.testing.short_answers import whole
from rollforward.testing.world import in_threads
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.counters.counts import (
    LIKES,
    VOTES,
    WAYS,
    add,
    another_process,
    counter_world,
    resize,
    total,
)

pytestmark = [WAYS, pytest.mark.fast]


def cached_at(world: World) -> str:
    return _cache_key(world.clients, "likes", "a", 60)


def test_a_total_is_one_lookup(world: World) -> None:
    """It reads configuration and shards; a second one follows if there are more shards, or if
    there is no counter, since another version of the code may keep it elsewhere."""
    for key in ("a", "b"):
        resize(world, key, 5)
    add(world, "a")
    other = another_process(world)
    calls = []
    totals = {}
    for clients, keys in ((world.clients, "ab"), (other, "ab"), (other, "ab"), (other, "c")):
        with world.plan.watched(), world.clients.context():
            world.plan.reset()
            totals |= LIKES.totals(clients, list(keys))
            calls.append(list(world.plan.calls))

    assert {key: total.value for key, total in totals.items()} == {"a": 1, "b": 0, "c": 0}
    assert calls == [["Lookup"], ["Lookup", "Lookup"], ["Lookup"], ["Lookup", "Lookup"]]


@pytest.mark.parametrize(
    ("first", "back_to"),
    [(slice(0, 3), 5), (slice(1, 4), 1), (slice(1, 6), 2), (slice(3, 6), 5)],
    ids=["configuration-first", "shards-first", "configuration-last", "last-shards-first"],
)
def test_a_lookup_that_leaves_keys_for_the_next_one_counts_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch, first: slice, back_to: int
) -> None:
    """E3: for any keys that the service answers first, and any change of the shards meanwhile.

    Without a second read of the configuration the test fails: a drained shard's count is in neither
    answer. It also fails if the first read comes after shards that were answered before.
    """
    resize(world, "a", 5)
    for _ in range(10):
        add(world, "a")
    moved = answer_in_parts(monkeypatch, first, lambda: shrink_and_grow(world, back_to))

    assert total(world, "a") == 10
    assert moved


def answer_in_parts(
    monkeypatch: pytest.MonkeyPatch, first: slice, meanwhile: Callable[[], object]
) -> list[bool]:
    """Answer some keys of a lookup of six, then defer the others. Meanwhile something happens."""
    call, moved = lookup.call_stub, list[bool]()

    def answer_some(method: Any, request: Any) -> Any:
        keys = list(getattr(request, "keys", []))
        if not isinstance(request, LookupRequest.pb()) or len(keys) != 6:
            return call(method, request)
        place = {"project_id": request.project_id, "database_id": request.database_id}
        response = call(method, LookupRequest.pb()(**place, keys=keys[first]))
        LookupResponse.pb(response).deferred.extend(key for key in keys if key not in keys[first])
        if not moved:
            moved.append(True)
            in_threads(meanwhile)
        return response

    monkeypatch.setattr(lookup, "call_stub", answer_some)
    return moved


def shrink_and_grow(world: World, back_to: int) -> None:
    resize(world, "a", 1)
    world.settle()
    resize(world, "a", back_to)


def test_hundreds_of_totals_are_cut_into_lookups(world: World) -> None:
    """The service looks up a thousand keys at a time, and a counter has two at least."""
    counted, unknown = [f"k{i}" for i in range(100)], [f"nobody {i}" for i in range(600)]
    with world.clients.context():
        LIKES.increment_many(world.clients, dict.fromkeys(counted, 2))
        world.plan.reset()
        with whole(world), world.plan.watched():
            totals = LIKES.totals(world.clients, [*counted, *unknown])

    assert [totals[key].value for key in counted] == [2] * 100
    assert [totals[key].value for key in unknown] == [0] * 600
    assert world.plan.calls == ["Lookup"] * (2 + 2)  # In their place, and in the other one.


def test_a_cached_total_says_how_old_it_is_and_is_exact_after_that(world: World) -> None:
    """E3: within its age it may lack later increments; without writes it is exact afterwards."""
    add(world, "a")
    with world.clients.context():
        fresh = LIKES.total(world.clients, "a", max_age_s=10)
    add(world, "a", 5)
    world.clock.sleep(9)
    with world.clients.context():
        cached = LIKES.total(world.clients, "a", max_age_s=10)
        fresher = LIKES.total(world.clients, "a", max_age_s=5)
        current = LIKES.total(world.clients, "a")
    world.clock.sleep(10.5)
    with world.clients.context():
        late = LIKES.total(world.clients, "a", max_age_s=10)

    assert (fresh, current) == (Total(1), Total(6))
    assert cached.value == 1
    assert cached.age_s == pytest.approx(9, abs=0.1)
    assert (fresher.value, late.value) == (6, 6)


def test_a_cached_total_is_of_one_counter_of_one_database(world: World) -> None:
    """E3: deployments with one memcached differ in namespace, database or project."""
    staging = counter_world(world.services)
    add(world, "a", 100)
    add(world, "a", 7, counter=VOTES)
    add(staging, "a", 3)
    sizes = [
        total(size, key, counter, max_age_s=60)
        for size, key, counter in [
            (world, "a", LIKES),
            (staging, "a", LIKES),
            (world, "b", LIKES),
            (world, "a", VOTES),
        ]
    ]
    client = world.clients.datastore
    place = {"project": client.project, "database": client.database, "namespace": client.namespace}
    elsewhere = [
        replace(world.clients, datastore=SimpleNamespace(**{**place, name: "another"}))
        for name in place
    ]

    assert sizes == [100, 3, 0, 7]
    assert [cached_total(clients, "likes", "a", 60) for clients in elsewhere] == [None] * 3


def test_increments_leave_what_is_cached_alone(world: World) -> None:
    """E3: a cached total lacks only the increments since it was read."""
    add(world, "a", 3)
    total(world, "a", max_age_s=60)
    cached = world.clients.cache.get(cached_at(world))
    for _ in range(3):
        add(world, "a")

    assert world.clients.cache.get(cached_at(world)) == cached
    assert total(world, "a", max_age_s=60) == 3
    assert total(world, "a") == 6


@pytest.mark.parametrize("max_age_s", [math.inf, 40 * 24 * 3600.0])
def test_a_cached_total_of_any_age_may_be_asked_for(world: World, max_age_s: float) -> None:
    """E3: memcached keeps it for 30 days, as long as it keeps anything."""
    add(world, "a", 3)
    assert total(world, "a", max_age_s=max_age_s) == 3
    add(world, "a")
    world.clock.sleep(3600)
    assert total(world, "a", max_age_s=max_age_s) == 3


def test_a_total_that_was_read_long_ago_and_stored_just_now_is_old(world: World) -> None:
    """E3: its age counts from its lookup, so a slow process makes no total younger."""
    add(world, "a")
    with world.clients.context():
        began = world.clients.clock.now()
        value = LIKES.total(world.clients, "a").value
    add(world, "a")
    world.clock.sleep(8)
    cache_total(world.clients, "likes", "a", value, began, 5)

    assert total(world, "a", max_age_s=5) == 2


def test_a_lookup_that_took_long_is_as_old_as_its_beginning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: what was counted while it went on may be missing in it."""
    read = ShardReader.read

    def slow(reader: ShardReader, keys: Sequence[str]) -> Any:
        shards = read(reader, keys)
        world.clock.sleep(8)
        return shards

    add(world, "a")
    with monkeypatch.context() as patch:
        patch.setattr(ShardReader, "read", slow)
        assert total(world, "a", max_age_s=10) == 1
    add(world, "a")
    early = total(world, "a", max_age_s=10)
    world.clock.sleep(3)

    assert (early, total(world, "a", max_age_s=10)) == (1, 2)


@pytest.mark.parametrize(
    "planted", [b"", b"7", b"[1", b'["1",2]', b"[1,2,3]", b"\x80\x04K\x07.", b"[1.5,1]", b"null"]
)
def test_what_is_planted_in_memcached_is_a_miss(world: World, planted: bytes) -> None:
    """E3: nothing is believed that no fill has written."""
    add(world, "a", 4)
    world.clients.cache.set(cached_at(world), planted, 60)

    assert total(world, "a", max_age_s=60) == 4


def test_a_total_from_the_future_is_not_believed(world: World) -> None:
    """E3: a server's clock was wrong; its value would stay for long."""
    add(world, "a", 4)
    ahead_s = world.clients.clock.now().timestamp() + 3600
    world.clients.cache.set(cached_at(world), f"[99,{ahead_s}]".encode(), 60)

    assert total(world, "a", max_age_s=60) == 4


def test_no_total_is_older_than_it_was_asked_for_by_any_clock(world: World) -> None:
    """E3: a dashboard cached one for a minute; a page whose clock is behind asks for five seconds.

    memcached ends a total in the time that it was stored for, so each time has a place of its own.
    """
    add(world, "a", 2)
    total(world, "a", max_age_s=60)
    add(world, "a", 1)
    world.clock.sleep(14)
    behind = ahead(another_process(world), -10)

    with world.clients.context():
        page = LIKES.total(behind, "a", max_age_s=5)

    assert page.value == 3
