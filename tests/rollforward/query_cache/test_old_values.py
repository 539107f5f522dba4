"""Values that nobody may be served: of another type, or older than anybody may know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward.query_cache import CachedQuery, get_or_compute
from rollforward.query_cache.envelope import Envelope
from rollforward.query_cache.single_flight import Flight
from rollforward.runtime import Clients, NoCache
from rollforward.testing.world import in_threads
from tests.infra.stack import until
from tests.rollforward.query_cache.timed import START_S, Time, TimedCache, TimedClock, process

TTL_S = 20
DAY_S = 24 * 3600
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Headline:
    """What this version of the code returns."""

    title: str


@dataclass(frozen=True)
class Signed:
    """The same with a field more, which has a default."""

    title: str
    author: str = "nobody"


@dataclass(frozen=True)
class Initialled:
    """The same with another default."""

    title: str
    author: str = "N. N."


def query(
    returns: Any, compute: Callable[[Clients], Any], *, version: int = 1
) -> CachedQuery[Any, Any]:
    """Return a query of one function, whatever it computes: versions of it share its name."""

    def front(clients: Clients) -> Any:
        return compute(clients)

    return CachedQuery(
        front, "front", returns=returns, ttl_s=TTL_S, stale_s=0, beta=0.0, version=version
    )


def read(asked: CachedQuery[Any, Any], clients: Clients) -> tuple[Any, str]:
    with clients.context():
        reading = asked.read(clients)
    return reading.value, reading.state


@pytest.mark.parametrize(
    ("one", "other"),
    [(Headline, Signed), (Signed, Initialled)],
    ids=["another field", "another default"],
)
def test_versions_whose_results_differ_share_nothing(one: type[Any], other: type[Any]) -> None:
    """J1: side by side neither is served what the other has stored, and each has its own hits."""
    cache = TimedCache(Time())
    versions = {one: query(one, lambda _: one("x")), other: query(other, lambda _: other("x"))}

    states = [read(versions[kind], process(cache)) for kind in (one, other, one, other)]

    assert states == [
        (one("x"), "misses"),
        (other("x"), "misses"),
        (one("x"), "hits"),
        (other("x"), "hits"),
    ]


def test_versions_whose_results_have_one_type_share_nothing() -> None:
    """J1: `version` tells them apart."""
    cache = TimedCache(Time())
    versions = [
        query(str, lambda _, text=text: text, version=version)
        for version, text in ((1, "a title"), (2, "a slug"))
    ]

    states = [read(asked, process(cache)) for asked in versions * 2]

    assert states == [
        ("a title", "misses"),
        ("a slug", "misses"),
        ("a title", "hits"),
        ("a slug", "hits"),
    ]


def test_a_type_without_a_schema_is_cached_all_the_same() -> None:
    """Its results are told apart by `version` alone."""
    cache = TimedCache(Time())
    asked = query(dict[str, Any], lambda _: {"a": 1})

    assert [read(asked, process(cache))[1] for _ in range(2)] == ["misses", "hits"]


def test_a_value_of_another_type_is_a_miss_and_is_replaced() -> None:
    """J5: it stands sound in this very place, whoever has put it there, and is counted."""
    time = Time()
    asked, clients = query(str, lambda _: "front"), process(TimedCache(time))
    entry = asked._call(clients).entry()
    assert entry is not None
    assert entry.store(Envelope(b'["front"]', time.now_s, took_s=0.0, reads=0, round_trips=0))

    assert [read(asked, clients) for _ in range(2)] == [("front", "misses"), ("front", "hits")]
    assert asked.stats(clients).broken == 1


def test_a_value_that_was_stored_late_by_a_clock_ahead_ends_in_time() -> None:
    """J2: the process is 30 s ahead and reads for 12 s: its value ends 20 s after the reading."""
    time = Time()
    cache, began_s = TimedCache(time), time.now_s

    def slow(_: Clients) -> str:
        time.now_s += 12
        return "old"

    ahead = process(cache, clock=TimedClock(time, ahead_s=30))
    read(query(str, slow), ahead)
    time.now_s = began_s + TTL_S + 11.5

    assert read(query(str, lambda _: "new"), process(cache)) == ("new", "misses")


def test_a_result_is_fresh_and_served_until_its_ends_and_not_at_them() -> None:
    """J2: by the clock of the reader, which is ahead of memcached's."""
    time = Time()
    cache = TimedCache(time)
    asked = CachedQuery(front_page, "front", returns=str, ttl_s=TTL_S, stale_s=TTL_S, beta=0.0)
    ahead = process(cache, clock=TimedClock(time, ahead_s=1))
    read(asked, process(cache))
    time.now_s += TTL_S - 1
    entry = asked._call(process(cache)).entry()
    assert entry is not None
    lease = entry.lease(10)  # So nobody refreshes it.
    assert lease is not None

    assert [read(asked, clients)[1] for clients in (process(cache), ahead)] == ["hits", "stale"]
    lease.release()
    time.now_s += TTL_S
    assert read(asked, ahead)[1] == "misses"


def front_page(clients: Clients) -> str:
    return "old"


def test_a_call_keeps_its_old_result_as_long_as_it_says() -> None:
    """J2: beyond `ttl_s` while its source is down, and no longer than `stale_s` more."""
    time = Time()
    clients = process(TimedCache(time))

    def down() -> str:
        raise OSError("down")

    def front(compute: Callable[[], str]) -> str:
        with clients.context():
            return get_or_compute(
                clients, "front", compute, returns=str, ttl_s=TTL_S, stale_s=5 * TTL_S
            )

    assert front(lambda: "old") == "old"
    time.now_s += 5.5 * TTL_S
    assert front(down) == "old"
    time.now_s += TTL_S
    with pytest.raises(OSError, match="down"):
        front(down)


def test_a_process_that_stood_still_replaces_nothing_newer() -> None:
    """J2: it lost its lease, another one has computed since, and what it read is old."""
    time = Time()
    cache = TimedCache(time)

    results = iter(["old", "new", "newest"])

    def stands_still(_: Clients) -> str:
        if (result := next(results)) == "old":
            for lease in cache.ending(":lease"):
                cache.delete(lease)
            time.now_s += 1
            in_threads(lambda: read(query(str, stands_still), process(cache)))
        return result

    served = read(query(str, stands_still), process(cache))

    assert served[0] == "new"
    assert read(query(str, stands_still), process(cache)) == ("new", "hits")


def test_without_memcached_a_call_follows_no_computation_that_began_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J3: another process has invalidated meanwhile, and memcached confirmed it to that one."""
    state, began, may_end = ["old"], threading.Event(), threading.Event()
    waiting = threading.Event()
    wait = Flight.wait

    def compute(_: Clients) -> str:
        seen = state[0]
        began.set()
        assert may_end.wait(PATIENCE_S)
        return seen

    def waits(flight: Flight) -> None:
        waiting.set()
        wait(flight)

    monkeypatch.setattr(Flight, "wait", waits)
    asked, clients, values = query(str, compute), process(NoCache()), list[str]()
    threads = [
        threading.Thread(target=lambda: values.append(read(asked, clients)[0])) for _ in "ab"
    ]
    threads[0].start()
    assert began.wait(PATIENCE_S)
    state[0] = "new"
    threads[1].start()
    until(waiting.is_set, PATIENCE_S, every_s=0.005)
    may_end.set()
    for thread in threads:
        thread.join()

    assert sorted(values) == ["new", "old"]


class FullCache(TimedCache):
    """A memcached that takes no more writes one day, and still answers."""

    is_full = False

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_full and super().set(key, value, ttl_s)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return not self.is_full and super().add(key, value, ttl_s)


def test_a_process_that_has_invalidated_follows_none_of_its_older_computations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J3: although memcached is full, so that the invalidation was not confirmed."""

    def follow(_: Flight) -> None:
        raise AssertionError("it follows a computation that began before")

    monkeypatch.setattr(Flight, "follow", follow)
    cache = FullCache(Time())
    clients, results, served = process(cache), iter(["old", "new"]), list[tuple[str, str]]()

    def compute(_: Clients) -> str:
        if (result := next(results)) == "old":
            cache.is_full = True
            assert not asked.invalidate(clients)
            in_threads(lambda: served.append(read(asked, clients)))
        return result

    asked = query(str, compute)
    read(asked, clients)

    assert served == [("new", "misses")]


def test_a_process_adds_its_counts_once_a_second_and_a_day_has_its_own() -> None:
    """J6: a hit makes no call for them; nor do they wait if the clock is put back."""
    time = Time()
    cache = TimedCache(time)
    asked, clients = query(str, lambda _: "front"), process(cache)
    adds = []
    for pause_s in (0, 0.9, 0.1, -5):
        time.now_s += pause_s
        cache.calls.clear()
        read(asked, clients)
        adds.append("incr" in cache.calls)
    assert adds == [True, False, True, True]

    time.now_s = START_S + DAY_S - 1
    assert asked.stats(clients).calls == 4
    time.now_s += 6
    assert asked.stats(clients).calls == 0
