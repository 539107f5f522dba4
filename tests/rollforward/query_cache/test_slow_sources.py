"""A source that is slow: one computes for as long as it lives, and all others wait for it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.app_code import ControlFlow
from rollforward.query_cache import CachedQuery
from rollforward.query_cache.call import MAX_HOLDERS
from rollforward.query_cache.entry import CacheEntry
from rollforward.query_cache.lease import RENEWALS, RefreshLease
from rollforward.query_cache.single_flight import Flight
from rollforward.runtime import Clients, NoCache
from rollforward.testing.world import in_threads
from tests.infra.stack import until
from tests.rollforward.query_cache.timed import Time, TimedCache, TimedHeart, process

PATIENCE_S = 60.0
LEASE_S = 9


class Source:
    """A query whose first computation ends when a test says so, and what happens meanwhile."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.computed = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._lock = threading.Lock()
        self.query = CachedQuery(self.compute, "slow", returns=int, ttl_s=3600, lease_s=LEASE_S)

    def compute(self, clients: Clients) -> int:
        with self._lock:
            self.computed += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)
        with self._lock:
            self.in_flight -= 1
        return 7

    def read(self, clients: Clients) -> str:
        with clients.context():
            return self.query.read(clients).state

    def reading(self, states: list[str], *readers: Clients) -> list[threading.Thread]:
        """Have each of these read on a thread of its own."""
        threads = [
            threading.Thread(target=lambda c=clients: states.append(self.read(c)))
            for clients in readers
        ]
        for thread in threads:
            thread.start()
        return threads


@pytest.mark.parametrize("is_away", [True, False], ids=["no-memcached", "memcached"])
def test_a_thread_waits_for_another_one_beyond_the_lease(
    monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """J2: of twenty threads of a process one computes, however long it takes.

    Without memcached no generation says what was read after they came: they wait for a later one.
    """
    source, states, followers = Source(), list[str](), list[int]()
    time = Time()
    clients = process(NoCache() if is_away else TimedCache(time))
    name = "wait" if is_away else "follow"
    wait = getattr(Flight, name)

    def counted(flight: Flight) -> object:
        followers.append(1)
        return wait(flight)

    monkeypatch.setattr(Flight, name, counted)
    threads = source.reading(states, *[clients] * 20)
    until(lambda: len(followers) >= 19, PATIENCE_S, every_s=0.005)
    time.now_s += 10 * LEASE_S
    source.may_end.set()
    for thread in threads:
        thread.join()

    assert source.most_in_flight == 1
    assert source.computed > 1 if is_away else source.computed == 1
    assert len(states) == 20


class KilledError(ControlFlow):
    """Ends a thread."""


def test_the_end_of_the_thread_that_computes_is_no_error_of_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """J4: it is killed while it computes; one that waits for it computes in its place."""
    time = Time()
    clients, waits, computed = process(TimedCache(time)), threading.Event(), list[int]()
    follow, states = Flight.follow, list[str]()

    def following(flight: Flight) -> object:
        waits.set()
        return follow(flight)

    def compute(clients: Clients) -> int:
        computed.append(1)
        if len(computed) == 1:
            other.start()
            assert waits.wait(PATIENCE_S)
            raise KilledError
        return 7

    def read() -> None:
        with clients.context():
            states.append(slow.read(clients).state)

    monkeypatch.setattr(Flight, "follow", following)
    slow = CachedQuery(compute, "slow", returns=int, ttl_s=3600, lease_s=LEASE_S)
    other = threading.Thread(target=read)
    with pytest.raises(KilledError):
        read()
    other.join(PATIENCE_S)

    assert (states, len(computed)) == (["misses"], 2)


def test_a_process_waits_for_another_one_for_as_long_as_that_lives() -> None:
    """J2: the holder of the lease renews it, and the others wait for a hundred times its length."""
    source, states = Source(), list[str]()
    time, heart = Time(), TimedHeart()
    cache = TimedCache(time)
    ends_s = time.now_s + 100 * LEASE_S

    def beat() -> None:
        heart.beat()
        if time.now_s > ends_s:
            source.may_end.set()

    time.on_sleep = beat
    threads = source.reading(states, process(cache, heart=heart))
    assert source.began.wait(PATIENCE_S)
    threads += source.reading(states, process(cache))
    for thread in threads:
        thread.join()

    assert sorted(states) == ["misses", "shared"]
    assert source.computed == 1
    assert time.now_s > ends_s
    assert cache.ending(":lease") == []


def test_the_lease_of_a_dead_process_ends_and_one_takes_it() -> None:
    """J2, J4: nobody renews it; of those who wait one computes, and the others take its value."""
    source, time = Source(), Time()
    cache, first = TimedCache(time), Time()
    dead = process(cache)
    assert entry_of(source, dead).lease(LEASE_S) is not None
    source.may_end.set()

    states = [source.read(process(cache)) for _ in range(3)]

    assert states == ["misses", "hits", "hits"]
    assert LEASE_S - 1 <= time.now_s - first.now_s < LEASE_S + 1


def test_a_lease_that_memcached_never_drops_is_over_when_nobody_renews_it() -> None:
    """J4: it was planted, or is of another version; each miss would wait for ever."""
    source, time = Source(), Time()
    clients = process(TimedCache(time))
    clients.cache.set(f"{entry_of(source, clients).key}:lease", b"planted", 10**6)
    source.may_end.set()
    began_s = time.now_s

    assert source.read(clients) == "misses"
    assert LEASE_S < time.now_s - began_s < 2 * LEASE_S
    assert source.read(clients) == "hits"


def test_of_processes_that_end_without_a_value_a_caller_waits_for_few() -> None:
    """J4: each look meets another holder; after three the caller computes beside the next."""
    source, time, holders = Source(), Time(), list[int]()
    clients = process(TimedCache(time))
    lease = f"{entry_of(source, clients).key}:lease"

    def next_holder() -> None:
        holders.append(1)
        assert len(holders) < 50
        clients.cache.set(lease, f"holder{len(holders)}.0".encode(), 10**6)

    next_holder()
    time.on_sleep = next_holder
    source.may_end.set()

    assert source.read(clients) == "misses"
    assert len(holders) == 1 + MAX_HOLDERS


@pytest.mark.parametrize(
    ("is_old", "expected"),
    [(True, (["refreshes", "hits"], 2)), (False, (["misses", "shared"], 1))],
    ids=["an old value", "no value"],
)
def test_a_value_that_another_process_has_just_computed_is_not_computed_again(
    *, is_old: bool, expected: tuple[list[str], int]
) -> None:
    """J2: it ended between this caller's look and its lease."""
    source, time = Source(), Time()
    cache = TimedCache(time)
    mine, other, add = process(cache), process(cache), cache.add
    source.may_end.set()
    if is_old:
        source.read(mine)
        time.now_s += 3600

    def overtaken(key: str, value: bytes, ttl_s: int) -> bool:
        if key.endswith(":lease"):
            cache.add = add  # type: ignore[method-assign]
            in_threads(lambda: states.append(source.read(other)))
        return add(key, value, ttl_s)

    states = list[str]()
    cache.add = overtaken  # type: ignore[method-assign]
    states.append(source.read(mine))

    assert (states, source.computed) == expected


def test_a_lease_is_kept_while_its_holder_lives_and_no_other_is_touched() -> None:
    """J2: a renewal keeps it, makes it again after a flush, and leaves another process's alone."""
    time, heart = Time(), TimedHeart()
    cache = TimedCache(time)
    source, mine, other = Source(), process(cache, heart=heart), process(cache)
    entry = entry_of(source, mine)
    lease = entry.lease(LEASE_S)
    assert lease is not None
    with lease.renewed():
        for _ in range(3 * RENEWALS):
            time.now_s += LEASE_S / RENEWALS
            heart.beat()
        kept = replace(entry, clients=other).lease(LEASE_S)
        cache.values.clear()
        heart.beat()
        again = replace(entry, clients=other).lease(LEASE_S)
        time.now_s += LEASE_S
        theirs = replace(entry, clients=other).lease(LEASE_S)
        heart.beat()
    lease.release()
    heart.beat()

    assert (kept, again) == (None, None)
    assert theirs is not None
    assert theirs.is_owned()
    theirs.release()
    heart.beat()
    assert cache.ending(":lease") == []


def test_a_renewal_that_fails_loses_no_lease() -> None:
    """J2: another one comes before the end."""
    every_s: list[float] = []

    def heartbeat(beat: object, pause_s: float) -> contextlib.AbstractContextManager[None]:
        every_s.append(pause_s)
        return contextlib.nullcontext()

    clients: Any = SimpleNamespace(heart=SimpleNamespace(heartbeat=heartbeat))
    lease: Any = object.__new__(RefreshLease)
    lease._clients, lease._lease_s = clients, LEASE_S
    with lease.renewed():
        assert 2 * every_s[0] < LEASE_S


def entry_of(source: Source, clients: Clients) -> CacheEntry:
    """Return the place of a source's value."""
    entry = source.query._call(clients).entry()
    assert entry is not None
    return entry
