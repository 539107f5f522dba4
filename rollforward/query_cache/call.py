"""One call of a cached query: what is served, who computes, and who waits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import pydantic
import pydantic_core
from google.cloud import ndb

from rollforward.query_cache import stats as kinds
from rollforward.query_cache.entry import CacheEntry, generation, space_of
from rollforward.query_cache.envelope import Envelope
from rollforward.query_cache.lease import RefreshLease
from rollforward.query_cache.single_flight import Flights
from rollforward.query_cache.stats import Counts
from rollforward.runtime import Clients
from rollforward.runtime.type_adapters import json_of

log = logging.getLogger(__name__)

T = TypeVar("T")

# A caller waits for so many processes that end without a value, then it computes beside others.
MAX_HOLDERS = 3


@dataclass(frozen=True)
class Terms:
    """The lifetime of a query's results: the arguments of `cached`."""

    name: str
    ttl_s: int
    stale_s: int
    lease_s: int
    beta: float
    version: int


@dataclass(frozen=True)
class CachedResult(Generic[T]):
    """A result, its age and its cost.

    Attributes:
        value: A copy of the caller's own.
        state: "hits", "stale", "misses", "refreshes", "shared" or "uncached": see CacheStats.
        age_s: Seconds since its computation began, whoever made it.
        took_s, reads, round_trips: The cost of its computation, by any caller.
    """

    value: T
    state: str
    age_s: float
    took_s: float
    reads: int
    round_trips: int


@dataclass(frozen=True)
class QueryState:
    """A process's memory of a query."""

    flights: Flights
    tally: Counts
    epoch: list[int]  # How often this process has invalidated it.


class QueryCall(Generic[T]):
    """One call of a cached query."""

    def __init__(
        self,
        clients: Clients,
        terms: Terms,
        state: QueryState,
        adapter: pydantic.TypeAdapter[T],
        asked: str,
        compute: Callable[[], T],
    ) -> None:
        self._clients = clients
        self._terms = terms
        self._state = state
        self._tally = state.tally
        self._adapter = adapter
        self._asked = asked
        self._compute = compute

    def read(self) -> CachedResult[T]:
        if ndb.in_transaction():  # What it reads has to be of its own moment.
            return self._to_result(self._call_function(), kinds.UNCACHED)
        entry = self.entry()
        if entry is None:
            return self._compute_once(
                f"{space_of(self._clients, self._terms.name)}:{self._asked}", None
            )
        envelope, is_broken = entry.load()
        value = self._decoded(envelope)
        if is_broken or (envelope is not None and value is None):
            self._tally.record(kinds.BROKEN)
        if envelope is None or value is None:
            return self._compute_once(entry.key, entry)
        age_s, terms = entry.age_s(envelope), self._terms
        if is_due(age_s, terms.ttl_s, envelope.took_s, terms.beta, self._clients.random.random()):
            fresh = self._refresh(entry, envelope)
            if fresh is not None:
                return fresh
        return self._to_result(envelope, kinds.HIT if age_s < terms.ttl_s else kinds.STALE, value)

    def entry(self) -> CacheEntry | None:
        """Return the place of the value; None: memcached is away."""
        terms, space = self._terms, space_of(self._clients, self._terms.name)
        current = generation(self._clients, space)
        if current is None:
            return None
        return CacheEntry.of(self._clients, space, current, self._asked, terms.ttl_s, terms.stale_s)

    def _refresh(self, entry: CacheEntry, expired: Envelope) -> CachedResult[T] | None:
        """Compute a value that may still be served; None: another caller does, or it failed."""
        key = self._flight_key(entry.key)
        flight, is_mine = self._state.flights.join(key)
        if not is_mine:
            return None
        fresh: Envelope | None = None
        state = kinds.REFRESHED
        try:
            if (lease := entry.lease(self._terms.lease_s)) is not None:
                fresh = self._stored_meanwhile(entry, expired)
                state = kinds.REFRESHED if fresh is None else kinds.HIT
                with lease.renewed():
                    fresh = fresh or self._call_and_store(entry)
                lease.release()
        except Exception as error:
            # The lease and the old value stay until their end, so no other caller tries at once.
            log.warning("%s is not refreshed, its old value stays: %s", self._terms.name, error)
            self._tally.record(kinds.FAILED)
        finally:
            self._state.flights.end(key)
            flight.resolve(fresh)
        return None if fresh is None else self._to_result(fresh, state)

    def _compute_once(self, key: str, entry: CacheEntry | None) -> CachedResult[T]:
        """Compute a missing value, or wait for the thread that computes it."""
        key = self._flight_key(key)
        flight, is_mine = self._state.flights.join(key)
        if entry is None and not is_mine:
            # It may have begun before another process invalidated; the next one has not.
            flight.wait()
            flight, is_mine = self._state.flights.join(key)
        while not is_mine:
            shared = flight.follow()
            if shared is not None:
                return self._to_result(shared, kinds.SHARED)
            flight, is_mine = self._state.flights.join(key)
        try:
            envelope, state = self._missed(entry)
        except BaseException as error:
            self._state.flights.end(key)
            flight.crash(error)
            raise
        self._state.flights.end(key)
        flight.resolve(envelope)
        return self._to_result(envelope, state)

    def _missed(self, entry: CacheEntry | None) -> tuple[Envelope, str]:
        """Compute and store, or take the value that another process computes meanwhile."""
        if entry is None:
            return self._call_function(), kinds.UNCACHED
        for _ in range(MAX_HOLDERS):
            lease = entry.lease(self._terms.lease_s)
            if lease is not None:
                return self._led(entry, lease)
            theirs = entry.wait(self._terms.lease_s, self._is_decodable)
            if theirs is not None:
                return theirs, kinds.SHARED
        return self._call_and_store(entry), kinds.MISS

    def _led(self, entry: CacheEntry, lease: RefreshLease) -> tuple[Envelope, str]:
        """Compute and store under a lease, unless its last holder has."""
        try:
            theirs = self._stored_meanwhile(entry, None)
            if theirs is not None:
                return theirs, kinds.SHARED
            with lease.renewed():
                return self._call_and_store(entry), kinds.MISS
        finally:
            lease.release()

    def _stored_meanwhile(self, entry: CacheEntry, seen: Envelope | None) -> Envelope | None:
        """Return a newer value than the one seen, as a former holder of the lease may store one."""
        stored, _ = entry.load()
        is_newer = stored is not None and (seen is None or stored.at_s > seen.at_s)
        return stored if is_newer and self._decoded(stored) is not None else None

    def _call_and_store(self, entry: CacheEntry) -> Envelope:
        envelope = self._call_function()
        if (newer := self._stored_meanwhile(entry, envelope)) is not None:
            return newer  # This process stood still, and another one has computed since.
        if not entry.store(envelope) and entry.is_too_large(envelope):
            self._tally.record(kinds.TOO_LARGE)
        return envelope

    def _call_function(self) -> Envelope:
        """Call the function.

        Raises:
            TypeError: its result is not of its return type, or is no JSON.
        """
        cost_before, at_s = self._clients.meter.cost(), self._clients.clock.now().timestamp()
        started = time.perf_counter()
        value = self._compute()
        took_s = time.perf_counter() - started
        cost = self._clients.meter.cost() - cost_before
        self._tally.record(kinds.MICROSECONDS, round(took_s * 1e6))
        try:
            body = json_of(self._adapter, value)
            # What a miss returns has been through JSON, too: it equals what a hit returns.
            self._adapter.validate_json(body)
        except (pydantic_core.PydanticSerializationError, pydantic.ValidationError) as error:
            raise TypeError(f"{self._terms.name!r} cannot be cached: {error}") from error
        return Envelope(body, at_s, took_s, cost.reads, cost.round_trips)

    def _is_decodable(self, envelope: Envelope) -> bool:
        return self._decoded(envelope) is not None

    def _decoded(self, envelope: Envelope | None) -> tuple[T] | None:
        """Return the value, in a tuple: it may be None itself; None: it is not of the type."""
        if envelope is None:
            return None
        try:
            return (self._adapter.validate_json(envelope.body),)
        except pydantic.ValidationError:
            return None

    def _to_result(
        self, envelope: Envelope, state: str, value: tuple[T] | None = None
    ) -> CachedResult[T]:
        self._tally.record(state)
        decoded = value or cast(tuple[T], self._decoded(envelope))
        age_s = max(0.0, self._clients.clock.now().timestamp() - envelope.at_s)
        return CachedResult(
            decoded[0], state, age_s, envelope.took_s, envelope.reads, envelope.round_trips
        )

    def _flight_key(self, key: str) -> str:
        # A caller that has just invalidated must not follow a computation that began before.
        return f"{self._state.epoch[0]}:{key}"


def is_due(age_s: float, ttl_s: float, took_s: float, beta: float, chance: float) -> bool:
    """Return whether a caller should refresh a value of this age: XFetch.

    Args:
        took_s: Duration of its computation: the longer, the earlier.
        beta: Eagerness; 0 refreshes nothing before its end.
        chance: Drawn for each call, from 0 to 1.

    >>> is_due(61, 60, 0.1, 1.0, 0.99), is_due(30, 60, 0.1, 1.0, 0.01)
    (True, False)
    >>> is_due(59.9, 60, 0.1, 1.0, 0.01), is_due(59.9, 60, 0.1, 0.0, 0.01)
    (True, False)
    """
    early_s = -took_s * beta * math.log(max(chance, 1e-300))
    return age_s + early_s >= ttl_s
