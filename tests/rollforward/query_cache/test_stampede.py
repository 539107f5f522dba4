"""Many callers at the moment when a result expires: one computes, and the others do not wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial

import pytest

from rollforward.query_cache.call import is_due
from rollforward.runtime import Clients, NoCache
from rollforward.testing.world import in_threads
from tests.infra.clocks import ahead
from tests.infra.world import World
from tests.rollforward.query_cache.headlines import (
    STALE_S,
    TTL_S,
    Newsroom,
    RealPauses,
    another_process,
    crowded,
    entry_of,
    publish,
)

THREADS = 64
PATIENCE_S = 30.0


def read_all(room: Newsroom, processes: list[Clients]) -> list[list[str]]:
    """Have 64 threads of some processes read at once."""
    start = threading.Barrier(THREADS)
    seen: list[list[str]] = []

    def read(clients: Clients) -> None:
        with clients.context():
            start.wait(PATIENCE_S)
            seen.append(room.titles(clients))

    in_threads(*[partial(read, processes[i % len(processes)]) for i in range(THREADS)])
    return seen


def test_at_its_end_one_refreshes_and_all_others_are_served_the_old_value(world: World) -> None:
    """J2: of 64 threads in two processes one computes; it ends when the others are served."""
    room = Newsroom()
    others_are_served = threading.Event()
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")
    world.clock.sleep(TTL_S + 1)
    room.meanwhile = lambda: others_are_served.wait(PATIENCE_S) or None
    processes = [crowded(world), crowded(world)]
    served: list[str] = []
    lock = threading.Lock()
    start = threading.Barrier(THREADS)

    def read(clients: Clients) -> None:
        with clients.context():
            start.wait(PATIENCE_S)
            reading = room.headlines.read(clients, "news")
        with lock:
            served.append(f"{reading.state} {reading.value[0].title}")
            if len(served) == THREADS - 1:
                others_are_served.set()

    in_threads(*[partial(read, processes[i % 2]) for i in range(THREADS)])

    assert sorted(served) == ["refreshes two", *["stale one"] * (THREADS - 1)]
    assert room.computed == 2


def test_where_there_is_no_value_one_computes_for_all(world: World) -> None:
    """J2: of 64 threads of two processes that find nothing, one computes."""
    room = Newsroom()
    with world.context():
        publish("one")

    seen = read_all(room, [crowded(world), crowded(world)])

    assert seen == [["one"]] * THREADS
    assert room.computed == 1


@pytest.mark.parametrize("is_away", [True, False])
def test_a_process_computes_one_value_at_a_time(world: World, is_away: bool) -> None:
    """J2: also without memcached, and over many expiries: never two in flight in a process."""
    room = Newsroom()
    clients = replace(world.clients, cache=NoCache()) if is_away else crowded(world)
    with world.context():
        publish("one")

    for _ in range(3):
        read_all(room, [clients, another_process(clients)])
        world.clock.sleep(TTL_S + 1)

    assert room.most_in_flight == 1
    assert room.computed >= 3


def test_an_error_reaches_all_who_wait_for_it(world: World) -> None:
    """J4: a source that is down is asked once, and not by each of those that wait."""
    room = Newsroom()
    everybody_waits = threading.Event()
    failed: list[str] = []

    def fail() -> None:
        everybody_waits.wait(PATIENCE_S)
        raise OSError("down")

    room.meanwhile = fail
    waiting = threading.Barrier(9, action=everybody_waits.set)

    def read() -> None:
        with world.clients.context():
            waiting.wait(PATIENCE_S)
            try:
                room.titles(world.clients)
            except OSError as error:
                failed.append(str(error))

    in_threads(*[read] * 9)

    assert failed == ["down"] * 9
    assert room.most_in_flight == 1


def test_the_lease_of_a_dead_process_holds_nobody_up(world: World) -> None:
    """J4: the old value is served meanwhile; after the lease the next caller refreshes."""
    room = Newsroom()
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")
        world.clock.sleep(TTL_S + 1)
        entry = entry_of(room, world.clients)
        assert entry.lease(60) is not None
        assert room.titles(world.clients) == ["one"]
        world.clients.cache.delete(f"{entry.key}:lease")  # As memcached does in the end.
        assert room.titles(world.clients) == ["two"]


def test_another_process_value_is_waited_for(world: World) -> None:
    """J2: who finds nothing but a lease takes the value that its holder stores."""
    room, other = Newsroom(), another_process(world.clients)
    has_begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        has_begun.set()
        may_end.wait(PATIENCE_S)

    with world.context():
        publish("one")
    room.meanwhile = slow
    states: list[str] = []

    def read(clients: Clients) -> None:
        with clients.context():
            states.append(room.headlines.read(clients, "news").state)

    def follow() -> None:
        assert has_begun.wait(PATIENCE_S)
        read(replace(other, clock=Letting(world.clients.clock, may_end)))

    in_threads(lambda: read(world.clients), follow)

    assert sorted(states) == ["misses", "shared"]
    assert room.computed == 1


@dataclass(frozen=True)
class Letting(RealPauses):
    """A clock at whose first pause another thread may end."""

    may_end: threading.Event

    def sleep(self, seconds: float) -> None:
        self.may_end.set()
        super().sleep(seconds)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps_makes_no_value_older(world: World, jump_s: float) -> None:
    """J2: a process whose clock is an hour off computes anew, and so do the others after it."""
    room, wrong = Newsroom(), ahead(another_process(world.clients), jump_s)
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")
        assert room.titles(wrong) == ["two"]
        publish("three")
        assert room.titles(world.clients) == ["three"]
        world.clock.sleep(TTL_S + STALE_S)
        publish("four")
        assert room.titles(world.clients) == ["four"]


def test_a_clock_that_is_a_little_off_changes_nothing(world: World) -> None:
    """J2: a value of a second ahead is a value."""
    room = Newsroom()
    with world.context():
        publish("one")
        room.titles(ahead(another_process(world.clients), 1))
        reading = room.headlines.read(world.clients, "news")
    assert (reading.state, reading.age_s) == ("hits", 0.0)


def test_an_early_refresh_is_by_chance_and_likelier_towards_the_end() -> None:
    """J2: XFetch: never long before the end, ever more often near it, earlier what takes longer."""
    draws = [(i + 0.5) / 1000 for i in range(1000)]

    def share(age_s: float, took_s: float) -> float:
        return sum(is_due(age_s, 60, took_s, 1.0, draw) for draw in draws) / 1000

    assert share(50, 0.1) == 0
    assert 0 < share(59.7, 0.1) < share(59.9, 0.1) < share(59.99, 0.1) < 1
    assert share(58, 2.0) > share(58, 0.5)
    assert share(60, 0.1) == 1


def test_a_busy_value_is_refreshed_before_its_end(world: World) -> None:
    """J2: by one caller; and the others are served a value that has not expired."""
    room = Newsroom(beta=1e15)
    with world.context():
        publish("one")
        room.titles(world.clients)
        publish("two")
        assert room.headlines.read(world.clients, "news").state == "refreshes"
        assert room.computed == 2
