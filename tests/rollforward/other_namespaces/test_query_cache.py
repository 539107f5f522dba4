"""Cached queries that are called for tenants: each gets its own results."""

from __future__ import annotations

from dataclasses import replace

from rollforward.query_cache import get_or_compute
from rollforward.runtime import NoCache
from tests.infra.world import World
from tests.rollforward.other_namespaces.tenants import tenant
from tests.rollforward.query_cache.headlines import Newsroom, Story, publish


def test_tenants_share_no_result_of_a_cached_query(world: World) -> None:
    """J1: a function that reads in the caller's namespace is cached for that namespace."""
    room = Newsroom()
    with world.context():
        publish("ours")
        for name in ("acme", "bolt"):
            with tenant(name):
                publish(name)
        for _ in range(2):
            assert room.titles(world.clients) == ["ours"]
            for name in ("acme", "bolt"):
                with tenant(name):
                    assert room.titles(world.clients) == [name]
        assert room.computed == 3


def test_tenants_share_no_result_that_is_kept_under_a_name(world: World) -> None:
    """J1: also without a declared query, and without memcached."""
    uncached = replace(world.clients, cache=NoCache())

    def title() -> str:
        return str(Story.get_by_id("news").title)

    with world.context():
        for clients in (world.clients, uncached):
            for name in ("acme", "bolt", "acme"):
                with tenant(name):
                    publish(name)
                    kept = get_or_compute(clients, "title", title, returns=str, ttl_s=60)
                    assert kept == name


def test_an_invalidation_is_for_all_tenants(world: World) -> None:
    """J3: whichever context makes it, no caller gets a result from before."""
    room = Newsroom()
    with world.context():
        for name in ("acme", "bolt"):
            with tenant(name):
                publish("old")
                assert room.titles(world.clients) == ["old"]
                publish("new")
                assert room.titles(world.clients) == ["old"]
        with tenant("acme"):
            assert room.headlines.invalidate(world.clients)
        for name in ("acme", "bolt"):
            with tenant(name):
                assert room.titles(world.clients) == ["new"]
