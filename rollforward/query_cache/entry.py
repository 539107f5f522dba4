"""The place of a value in memcached: its generation, its key and the lease to refresh it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from rollforward.query_cache.envelope import Envelope, pack, unpack
from rollforward.query_cache.lease import RefreshLease, holder_of
from rollforward.runtime import Clients
from rollforward.runtime.cache import MAX_TTL_S
from rollforward.runtime.clock import CLOCK_SKEW_S

GENERATION_BYTES = 32
# Polling for a value that another process computes.
POLL_S, MAX_POLL_S = 0.02, 0.25
POLL_FACTOR = 1.2


def space_of(clients: Clients, name: str) -> str:
    """Return the beginning of all keys of a name: two databases of one memcached share nothing."""
    client = clients.datastore
    place = [client.project, client.database or "", client.namespace or "", name]
    return f"query-cache:{json.dumps(place)}"


def generation(clients: Clients, space: str) -> str | None:
    """Return the generation of a name, a new one if there is none; None: memcached is away."""
    key = f"{space}:generation"
    current = _generation_in(clients.cache.get(key))
    if current is None:
        # Anything else under the key is replaced: `add` would leave it for ever.
        fresh = clients.new_id()
        if not clients.cache.add(key, fresh.encode(), MAX_TTL_S):
            current = _generation_in(clients.cache.get(key))
            if current is None and new_generation(clients, space):
                current = _generation_in(clients.cache.get(key))
        else:
            current = fresh
    return current


def new_generation(clients: Clients, space: str) -> bool:
    """Begin a new generation: no value of an older one is found again. False: not confirmed."""
    return clients.cache.set(f"{space}:generation", clients.new_id().encode(), MAX_TTL_S)


def _generation_in(data: bytes | None) -> str | None:
    if data is None or len(data) != GENERATION_BYTES or not data.isalnum() or not data.isascii():
        return None
    return data.decode()


@dataclass(frozen=True)
class CacheEntry:
    """The place of one value, in one generation of its name."""

    clients: Clients
    key: str
    ttl_s: int
    stale_s: int

    @classmethod
    def of(
        cls, clients: Clients, space: str, generation: str, asked: str, ttl_s: int, stale_s: int
    ) -> CacheEntry:
        digest = hashlib.sha256(asked.encode()).hexdigest()
        return cls(clients, f"{space}:{generation}:{digest}", ttl_s, stale_s)

    def load(self) -> tuple[Envelope | None, bool]:
        """Return the value here, if it may be served, and whether the stored data are broken."""
        data = self.clients.cache.get(self.key)
        envelope = unpack(self.key, data)
        if envelope is None or not -CLOCK_SKEW_S <= self._age_s(envelope) < self._lifetime_s:
            # Too old, or of a time to come: one of two clocks is wrong.
            return None, data is not None and envelope is None
        return envelope, False

    def age_s(self, envelope: Envelope) -> float:
        """Return how old a value is; 0 for one of a clock that is a little ahead."""
        return max(0.0, self._age_s(envelope))

    def store(self, envelope: Envelope) -> bool:
        """Keep a value until the end of its lifetime, counted from when it was read."""
        data, left_s = pack(self.key, envelope), self._lifetime_s - math.ceil(self.age_s(envelope))
        return data is not None and left_s > 0 and self.clients.cache.set(self.key, data, left_s)

    def is_too_large(self, envelope: Envelope) -> bool:
        """Return whether a value is too large for memcached."""
        return pack(self.key, envelope) is None

    # The lease

    def lease(self, lease_s: int) -> RefreshLease | None:
        """Take the right to compute this value; None: another process has it."""
        return RefreshLease.take(self.clients, self._lease_key, lease_s)

    def wait(self, lease_s: int, is_value: Callable[[Envelope], bool]) -> Envelope | None:
        """Wait for the process that has the lease; None: it has ended without a value.

        Args:
            lease_s: A lease not renewed for this long belongs to a dead process.
            is_value: Tells a value of the query from foreign data under the same key.
        """
        seen, unchanged_s, pause_s = self._leased(), 0.0, POLL_S
        while seen is not None:
            self.clients.clock.sleep(pause_s)
            current = self._leased()
            envelope, _ = self.load()
            if envelope is not None and is_value(envelope):
                return envelope
            if holder_of(current) != holder_of(seen):
                return None
            unchanged_s = unchanged_s + pause_s if current == seen else 0.0
            if unchanged_s > lease_s:  # memcached itself drops it by then, as a rule.
                self.clients.cache.delete(self._lease_key)
                return None
            seen, pause_s = current, min(MAX_POLL_S, POLL_FACTOR * pause_s)
        return None

    def _leased(self) -> bytes | None:
        return self.clients.cache.get(self._lease_key)

    @property
    def _lease_key(self) -> str:
        return f"{self.key}:lease"

    @property
    def _lifetime_s(self) -> int:
        return self.ttl_s + self.stale_s

    def _age_s(self, envelope: Envelope) -> float:
        return self.clients.clock.now().timestamp() - envelope.at_s
