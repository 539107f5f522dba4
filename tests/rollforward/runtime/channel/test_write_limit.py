"""The limit of production, simulated: what writes an entity too often waits, or loses its race."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud.datastore_v1.types import CommitRequest

from pipelines.counters import counters
from rollforward.runtime.cache import NoCache
from rollforward.runtime.channel.write_limit import Contended, EntityWriteLimit, Tickets

pytestmark = pytest.mark.fast


class CountedTickets(NoCache):
    """memcached, as far as tickets need it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        self.counts[key] = self.counts.get(key, 0) + delta
        return self.counts[key]

    def incr_existing(self, key: str, delta: int) -> int | None:
        return self.incr(key, delta, 1)


class Limited:
    """A limit, with a clock of its own, and commits that come to it."""

    def __init__(self, cache: Any = None) -> None:
        self.now_s, self.waits = 1000.0, list[float]()
        self.answer: Future[str] = Future()
        self.answer.set_result("done")
        self.limit = self.process(cache or CountedTickets())

    def process(self, cache: Any) -> EntityWriteLimit:
        """Return the limit of one process."""
        tickets = Tickets(cache, now_s=lambda: self.now_s, sleep=self.sleep)
        return EntityWriteLimit(tickets, lambda key: counters.is_row_of(key, ["likes"]), is_on=True)

    def sleep(self, seconds: float) -> None:
        self.waits.append(round(seconds, 3))
        self.now_s += seconds

    def write(
        self,
        *names: str,
        kind: str = "CounterShard",
        method: str = "Commit",
        operation: str = "update",
        by: EntityWriteLimit | None = None,
    ) -> Any:
        path = [{"key": {"path": [{"kind": kind, "name": name}]}} for name in names]
        request = CommitRequest(mutations=[{operation: key} for key in path])
        details = SimpleNamespace(method=f"/google.datastore.v1.Datastore/{method}")
        limit = by or self.limit
        return limit.intercept_unary_unary(lambda d, r: self.answer, details, request)


def test_a_write_now_and_then_never_waits() -> None:
    """One a second, for a minute."""
    world = Limited()
    for _ in range(60):
        assert world.write("00|likes|000|a").result() == "done"
        world.now_s += 1

    assert world.waits == []


def test_a_second_write_waits_and_a_third_loses_its_race() -> None:
    """A writer waits for at most a second; who would have to wait for longer is aborted."""
    world = Limited()
    world.write("00|likes|000|a")
    world.write("00|likes|000|a")
    waited = list(world.waits)
    world.now_s -= 1  # Side by side with the one that waited.
    with pytest.raises(Contended) as lost:
        world.write("00|likes|000|a")

    assert waited == [1.0]
    assert isinstance(rpc_errors.from_grpc_error(lost.value), rpc_errors.Aborted)
    assert world.write("00|likes|001|a").result() == "done"


def test_ten_seconds_take_ten_writes() -> None:
    """The limit holds for any number of writers."""
    world = Limited()
    written = 0
    while world.now_s < 1009.9:
        try:
            world.write("00|likes|000|a")
            written += 1
        except Contended:
            pass

    assert 9 <= written <= 11


def test_two_processes_share_the_limit() -> None:
    """Each has its first write of a window for nothing; from then on they share ten."""
    world = Limited()
    cache = CountedTickets()
    processes = itertools.cycle([world.process(cache), world.process(cache)])
    written = 0
    while world.now_s < 1009.9:
        with contextlib.suppress(Contended):
            world.write("00|likes|000|a", by=next(processes))
            written += 1

    assert 9 <= written <= 12


def test_a_commit_that_fails_takes_no_ticket() -> None:
    """It has written nothing: else writers who lose races would keep all others from writing.

    The ticket of the write before it, which it took as well, stays taken.
    """
    cache = CountedTickets()
    world = Limited(cache)
    world.write("00|likes|000|a")
    world.now_s += 1
    won, world.answer = world.answer, Future()
    world.answer.set_exception(Contended())
    for _ in range(5):
        world.write("00|likes|000|a")
    world.answer = won
    world.write("00|likes|000|a")

    assert world.waits == []
    assert list(cache.counts.values()) == [2]


def test_a_race_that_is_lost_across_the_end_of_a_window_owes_nothing_of_it() -> None:
    """Others have begun the next one meanwhile."""
    world = Limited()
    for _ in range(2):
        world.write("00|likes|000|a")
    world.now_s = 1000.0

    def others_write(seconds: float) -> None:
        world.now_s += 10
        world.write("00|likes|001|a")

    world.limit._tickets._sleep = others_write
    with pytest.raises(Contended):
        world.write("00|likes|000|a")
    world.limit._tickets._sleep = world.sleep
    waited = len(world.waits)
    world.write("00|likes|000|a")

    assert len(world.waits) == waited


def test_an_entity_that_is_written_once_costs_no_call_of_memcached() -> None:
    """A second write takes a ticket for itself and one for the first."""
    cache = CountedTickets()
    world = Limited(cache)
    world.write("00|likes|000|a", "00|likes|001|a")
    after_one = dict(cache.counts)
    world.write("00|likes|000|a")

    assert (after_one, list(cache.counts.values())) == ({}, [2])


def test_what_is_inserted_is_not_limited() -> None:
    """Nobody has written it before."""
    world = Limited()
    for _ in range(5):
        world.write("00|likes|000|a", operation="insert")

    assert world.waits == []


def test_other_entities_are_not_limited() -> None:
    """Those of other counters, other kinds, other calls; and none while it is off."""
    world = Limited()
    for _ in range(5):
        world.write("00|votes|000|a")
        world.write("00|likes|a", kind="CounterConfig")
        world.write("00|likes|000|a", method="Lookup")
        world.limit.is_on = False
        world.write("00|likes|000|a")
        world.limit.is_on = True

    assert world.waits == []


def test_without_memcached_nothing_is_limited() -> None:
    """It is a simulation, and no guard."""
    world = Limited(NoCache())
    for _ in range(5):
        world.write("00|likes|000|a")

    assert world.waits == []


def test_the_counters_of_the_page_are_all_limited() -> None:
    """By the names that their entities carry."""
    assert {counter.name for counter in counters.WAYS.values()} == {
        *("clicks-one-row", "clicks", "clicks-gathered", "clicks-in-memory")
    }
