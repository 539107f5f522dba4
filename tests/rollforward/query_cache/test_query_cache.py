"""Cached queries: computed once, served for a stated time, and not after they are invalidated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rollforward import query_cache
from rollforward.datastore.transactions import transact
from rollforward.query_cache import cached, get_or_compute
from rollforward.query_cache.query import CachedQuery
from rollforward.runtime import Clients, NoCache
from rollforward.runtime.cache import Cache
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.world import Services, World
from tests.rollforward.query_cache.headlines import (
    STALE_S,
    TTL_S,
    Headline,
    Newsroom,
    another_process,
    publish,
)


def test_a_second_call_reads_nothing_whichever_process_makes_it(world: World) -> None:
    """J1: a result is computed once, and every process is served it."""
    room, other = Newsroom(), another_process(world.clients)
    with world.context():
        publish("one")
        first = room.headlines.read(world.clients, "news")
        before = world.clients.meter.cost()
        again = room.headlines.read(other, "news")
        spent = world.clients.meter.cost() - before

    assert room.computed == 1
    assert (first.state, again.state) == ("misses", "hits")
    assert first.value == again.value == [Headline("one", ("news",))]
    assert spent.round_trips == 0
    assert (again.reads, again.round_trips) == (1, 1)


def test_what_a_caller_changes_is_its_own(world: World) -> None:
    """J1: a result is a copy; changing it changes nobody else's."""
    room = Newsroom()
    with world.context():
        publish("one")
        room.headlines(world.clients, "news").clear()
        room.headlines(world.clients, "news").clear()
        assert room.titles(world.clients) == ["one"]


def test_a_result_is_served_for_its_time_and_no_longer(world: World) -> None:
    """J2: within ttl_s the result stays; beyond it, and after all its time, it is computed."""
    room = Newsroom()
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")
        world.clock.sleep(TTL_S - 1)
        assert room.titles(world.clients) == ["one"]
        world.clock.sleep(2)
        assert room.headlines.read(world.clients, "news").state == "refreshes"
        assert room.titles(world.clients) == ["two"]
        publish("three")
        world.clock.sleep(TTL_S + STALE_S + 1)
        assert room.headlines.read(world.clients, "news").state == "misses"
        assert room.titles(world.clients) == ["three"]


def test_an_invalidated_result_is_not_served_again(world: World) -> None:
    """J3: after a confirmed invalidation every process computes anew."""
    room, other = Newsroom(), another_process(world.clients)
    with world.context():
        publish("one", "news")
        publish("eins", "nachrichten")
        for tag in ("news", "nachrichten"):
            room.titles(world.clients, tag)
        publish("two", "news")
        assert room.headlines.invalidate(world.clients)

        assert room.titles(other) == ["two"]
        assert room.titles(other, "nachrichten") == ["eins"]
    assert room.computed == 4


def test_what_was_read_before_an_invalidation_is_not_stored_after_it(world: World) -> None:
    """J3: a computation that read the old state and ends late leaves nothing that is served."""
    room = Newsroom()

    def write() -> None:
        room.meanwhile = lambda: None
        publish("two")
        room.headlines.invalidate(another_process(world.clients))

    with world.context():
        publish("one")
        room.meanwhile = write
        assert room.titles(world.clients) == ["one"]
        assert room.titles(world.clients) == ["two"]


def test_a_transaction_is_served_nothing_and_stores_nothing(world: World) -> None:
    """J3: what a transaction reads is of its own moment, and not for others before its commit."""
    room = Newsroom()
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")

        assert transact(lambda: room.titles(world.clients)) == ["two"]
        assert room.titles(world.clients) == ["one"]
        with pytest.raises(RuntimeError, match="after the commit"):
            transact(lambda: room.headlines.invalidate(world.clients))


def test_different_arguments_are_different_results(world: World) -> None:
    """J1: also those that look alike as texts; a default and the same value given are one."""

    @cached("echo", ttl_s=60)
    def echo(clients: Clients, what: Any, times: int = 1) -> str:
        return f"{what!r} {times}"

    with world.context():
        asked = [1, "1", True, None, "None", 1.5, ("a", "b"), ("a,b",), "x\r\nflush_all\r\n", "庭"]
        for what in asked * 2:
            assert echo(world.clients, what) == f"{what!r} 1"
        assert echo.read(world.clients, 1, times=1).state == "hits"
        assert echo.read(world.clients, 1, 2).state == "misses"
        with pytest.raises(TypeError, match="what must be a text"):
            echo(world.clients, ["a"])


def test_two_functions_of_one_name_share_no_result(world: World) -> None:
    """J1: nothing keeps two modules from taking one name; to invalidate it means both."""

    @cached("top", ttl_s=60)
    def top_posts(clients: Clients, tag: str) -> list[str]:
        return [f"post of {tag}"]

    @cached("top", ttl_s=60)
    def top_authors(clients: Clients, tag: str) -> list[str]:
        return [f"author of {tag}"]

    with world.context():
        for state in ("misses", "hits"):
            posts = top_posts.read(world.clients, "python")
            authors = top_authors.read(world.clients, "python")
            assert (posts.value, authors.value) == (["post of python"], ["author of python"])
            assert {posts.state, authors.state} == {state}
        assert top_posts.invalidate(world.clients)
        assert top_authors.read(world.clients, "python").state == "misses"


def test_functions_of_one_name_in_two_modules_share_no_result(world: World) -> None:
    """J1: both are `top`, and both chose the name "top"."""

    def top_of(module: str) -> CachedQuery[[], str]:
        def top(clients: Clients) -> str:
            return f"top of {module}"

        top.__module__ = module
        return cached("top", ttl_s=60)(top)

    queries = [top_of(module) for module in ("posts", "authors")]
    with world.context():
        for state in ("misses", "hits"):
            readings = [query.read(world.clients) for query in queries]
            assert [reading.value for reading in readings] == ["top of posts", "top of authors"]
            assert {reading.state for reading in readings} == {state}


def test_two_databases_share_nothing(world: World, services: Services) -> None:
    """J1: the same query over another namespace is another result."""
    room, elsewhere = Newsroom(), World(services)
    with world.context():
        publish("one")
        assert room.titles(world.clients) == ["one"]
    with elsewhere.context():
        assert room.titles(elsewhere.clients) == []


def test_all_works_without_memcached(world: World) -> None:
    """J4: every call computes; the result is the same."""
    room, clients = Newsroom(), replace(world.clients, cache=NoCache())
    with world.context():
        publish("one")
        assert room.titles(clients) == ["one"]
        publish("two")
        assert room.headlines.read(clients, "news").state == "uncached"
        assert room.titles(clients) == ["two"]
        assert not room.headlines.invalidate(clients)
        stats = room.headlines.stats(clients)
        assert (stats.uncached, stats.calls, stats.is_shared) == (3, 3, False)
        assert stats.mean_s is not None
        room.headlines.empty(clients)
        assert room.headlines.stats(clients).calls == 0


class CountedCache(NoCache):
    """A cache that counts its calls, statistics aside."""

    def __init__(self, cache: Cache) -> None:
        self.calls = 0
        for name in ("get", "set", "add", "delete"):
            setattr(self, name, partial(self._call, getattr(cache, name)))

    def _call(self, operation: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        return operation(*args)


def test_a_hit_makes_two_calls_of_memcached_and_a_miss_eight(world: World) -> None:
    """The concept's page says so."""
    counted = CountedCache(world.clients.cache)
    clients = replace(world.clients, cache=counted, process_state=ProcessState())

    @cached("counted", ttl_s=60)
    def double(clients: Clients, number: int) -> int:
        return 2 * number

    with world.context():
        calls = []
        for number in (1, 2, 2):
            calls.append(-counted.calls)
            assert double(clients, number) == 2 * number
            calls[-1] += counted.calls

    assert calls[1:] == [8, 2]


def test_a_result_of_another_type_is_an_error_at_once(world: World) -> None:
    """J5: and not only for the caller who finds it in memcached."""

    @cached("wrong", ttl_s=60)
    def wrong(clients: Clients) -> int:
        return "seven"  # type: ignore[return-value]

    with world.context(), pytest.raises(TypeError, match="wrong"):
        wrong(world.clients)


def test_a_result_that_is_no_number_is_an_error_also_where_none_is_one(world: World) -> None:
    """J5: it was None for every caller, the one that computed it as well."""

    @cached("mean", ttl_s=60)
    def mean(clients: Clients) -> float | None:
        return math.nan

    with world.context(), pytest.raises(TypeError, match="NaN and infinite numbers are no JSON"):
        mean(world.clients)


def test_a_result_that_is_too_large_is_returned_and_counted(world: World) -> None:
    """J4: memcached takes 1 MiB; what is larger is computed each time."""

    @cached("large", ttl_s=60)
    def large(clients: Clients) -> str:
        return "x" * 2_000_000

    with world.context():
        assert len(large(world.clients)) == len(large(world.clients)) == 2_000_000
        stats = large.stats(world.clients)
    assert (stats.misses, stats.too_large) == (2, 2)


def test_an_error_is_the_callers_and_is_not_kept(world: World) -> None:
    """J4: the next call computes again, in any process and at once."""
    outcomes = iter([OSError("down"), 7])
    other = another_process(world.clients)

    def compute() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with world.context():
        with pytest.raises(OSError, match="down"):
            get_or_compute(world.clients, "seven", compute, returns=int, ttl_s=60)
        failed = world.clock.now()
        assert get_or_compute(other, "seven", compute, returns=int, ttl_s=60) == 7
        assert world.clock.now() == failed


def test_a_refresh_that_fails_leaves_the_old_result(world: World) -> None:
    """J4: until its last moment; and one failure does not make every caller try."""
    room = Newsroom()

    def fail() -> None:
        raise OSError("down")

    with world.context():
        publish("one")
        room.titles(world.clients)
        room.meanwhile = fail
        world.clock.sleep(TTL_S + 1)
        for _ in range(3):
            assert room.headlines.read(world.clients, "news").state == "stale"
        assert room.computed == 2
        world.clock.sleep(STALE_S)
        with pytest.raises(OSError, match="down"):
            room.titles(world.clients)


def test_a_call_caches_as_the_decorator_does(world: World) -> None:
    """J1, J3: under a name and arguments, until it is invalidated by its name."""
    made: list[int] = []

    def total(shop: str) -> int:
        return get_or_compute(
            world.clients, "total", lambda: made.append(1) or len(made), returns=int, ttl_s=60,
            args=(shop,),
        )  # fmt: skip

    with world.context():
        assert [total("a"), total("a"), total("b")] == [1, 1, 2]
        assert query_cache.invalidate(world.clients, "total")
        assert total("a") == 3


def test_statistics_are_of_all_processes_until_they_are_emptied(world: World) -> None:
    """J6: each call is counted once, as what it was; a button empties results and counts."""
    room, other = Newsroom(), another_process(world.clients)
    with world.context():
        publish("one")
        calls = [room.headlines.read(clients, "news") for clients in (world.clients, other, other)]
        world.clock.sleep(TTL_S + 1)
        calls.append(room.headlines.read(other, "news"))
        assert room.headlines.stats(other).calls >= 2
        stats = room.headlines.stats(world.clients)
        assert (stats.misses, stats.hits, stats.refreshes, stats.calls) == (1, 2, 1, 4)
        assert stats.hit_ratio == 0.5
        assert stats.mean_s == pytest.approx((calls[0].took_s + calls[-1].took_s) / 2, abs=1e-6)
        assert stats.is_shared

        assert room.headlines.empty(world.clients)
        assert room.headlines.stats(world.clients).calls == 0
        assert room.headlines.read(world.clients, "news").state == "misses"


@pytest.mark.parametrize(
    "terms",
    [
        {"name": "Über"},
        {"name": ""},
        {"name": "x" * 41},
        {"ttl_s": 0},
        {"ttl_s": 2_592_001},
        {"ttl_s": 60, "stale_s": -1},
        {"ttl_s": 1.5},
        {"ttl_s": 60, "stale_s": 30.0},
        {"lease_s": 10.5},
        {"lease_s": 2},
        {"lease_s": 2_592_001},
        {"beta": -0.5},
        {"beta": math.nan},
        {"beta": math.inf},
        {"ttl_s": math.nan},
        {"stale_s": math.nan},
    ],
)
def test_a_declaration_that_cannot_work_is_refused(terms: dict[str, Any]) -> None:
    """J5: at import, and not at the first call."""
    with pytest.raises(ValueError, match=r"^(name|ttl_s|stale_s|lease_s|beta) must "):
        CachedQuery(lambda clients: 1, **{"name": "n", "returns": int, "ttl_s": 60, **terms})


@pytest.mark.parametrize(
    ("terms", "stale_s"),
    [
        ({"name": "x" * 40, "lease_s": 3, "beta": 0}, 60),
        ({"lease_s": 2_592_000}, 60),
        ({"ttl_s": 1, "stale_s": 2_591_999}, 2_591_999),
        ({"ttl_s": 2_592_000}, 0),
        ({"ttl_s": 2_591_999}, 1),
        ({"stale_s": 0}, 0),
    ],
)
def test_a_declaration_may_have_the_extremes(terms: dict[str, Any], stale_s: int) -> None:
    """J5: the longest name and time; an old result is served as long again, as far as that goes."""
    given = {"name": "n", "returns": int, "ttl_s": 60, **terms}

    assert CachedQuery(lambda clients: 1, **given).terms.stale_s == stale_s


def test_a_function_without_a_return_type_is_refused() -> None:
    """J5: what is found in memcached is checked against it."""
    with pytest.raises(TypeError, match="return type"):

        @cached("untyped", ttl_s=60)
        def untyped(clients: Clients):  # type: ignore[no-untyped-def]
            return 1
