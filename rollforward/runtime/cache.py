"""memcached, as a hint: every value may vanish, be old, or never have been stored.

Only latency and batch size may depend on it. Each operation returns None or False when the server
is away; nothing here raises because of the cache. A circuit breaker skips a server that failed for
half a second, so an outage costs one time-out and not one per call.

Keys are hashed, so that no user's text can reach the protocol. Values are bytes; nothing is
pickled. The server confirms every write (`default_noreply=False`). With pymemcache's default, `add`
returns True to every caller, and twenty holders share one lock.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from pymemcache.client.base import PooledClient

from rollforward.tracing.spans import leaf_span

log = logging.getLogger(__name__)

T = TypeVar("T")

# For connecting, and for each answer.
TIMEOUT_S = 0.25
# No calls for this long after a failure: a server that hangs would cost each its time-out.
COOLDOWN_S = 0.5
# Refusals of one kind are logged this often: a server that refuses all calls would fill the log.
REFUSALS_LOGGED_EVERY_S = 60.0
MAX_TTL_S = 2_592_000  # Beyond 30 days memcached reads a date, mostly one in the past.


class Cache(Protocol):
    """The operations of memcached that pipelines use."""

    def get(self, key: str) -> bytes | None:
        """Return a value; None: there is none, or the server is away."""
        ...

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        """Store a value for a time; return whether the server has it."""
        ...

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        """Store a value if the key has none; return whether this call stored it."""
        ...

    def delete(self, key: str) -> bool:
        """Delete a value; return whether there was one."""
        ...

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        """Add to a counter, which starts at 0; return its new value, None if it is unknown."""
        ...

    def incr_existing(self, key: str, delta: int) -> int | None:
        """Add to a counter that exists, down to 0; return its new value, None if unknown.

        Its time to live does not change.
        """
        ...

    def ping(self) -> bool:
        """Return whether the server answers."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class MemcachedCache(Cache):
    """A Cache on one memcached server."""

    def __init__(
        self,
        host: str,
        *,
        scope: str = "",
        timeout_s: float = TIMEOUT_S,
        pool_size: int = 32,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect lazily.

        Args:
            host: "host:port".
            scope: Separates its keys from the keys of other apps, databases and namespaces on this
                server.
            timeout_s: For connecting and for each answer.
            pool_size: More than the process has threads; an empty pool raises at once.
        """
        self._client = PooledClient(
            host,
            connect_timeout=timeout_s,
            timeout=timeout_s,
            max_pool_size=pool_size,
            default_noreply=False,
            no_delay=True,
        )
        self._scope = scope
        self._monotonic = monotonic
        self._away_until = 0.0
        # By the class of the error: when it may be logged again, and the number since it was.
        self._refusals: dict[type[Exception], tuple[float, int]] = {}

    def get(self, key: str) -> bytes | None:
        value = self._attempt("get", lambda: self._client.get(self._name(key)), None)
        return value if isinstance(value, bytes) else None

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        ttl_s = _checked(ttl_s)
        return bool(
            self._attempt("set", lambda: self._client.set(self._name(key), value, ttl_s), False)
        )

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        ttl_s = _checked(ttl_s)
        return bool(
            self._attempt("add", lambda: self._client.add(self._name(key), value, ttl_s), False)
        )

    def delete(self, key: str) -> bool:
        return bool(self._attempt("delete", lambda: self._client.delete(self._name(key)), False))

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        name, ttl_s = self._name(key), _checked(ttl_s)

        def incr() -> int | None:
            counted = self._client.incr(name, delta)
            if counted is None:  # There is no such key, and incr makes none.
                self._client.add(name, b"0", ttl_s)
                counted = self._client.incr(name, delta)
            return int(counted) if counted is not None else None

        return self._attempt("incr", incr, None)

    def incr_existing(self, key: str, delta: int) -> int | None:
        name = self._name(key)
        step = self._client.incr if delta >= 0 else self._client.decr
        changed = self._attempt("incr", lambda: step(name, abs(delta)), None)
        return int(changed) if changed is not None else None

    def ping(self) -> bool:
        return bool(self._attempt("version", self._client.version, b""))

    def close(self) -> None:
        self._client.close()

    def _name(self, key: str) -> str:
        # A text of a visitor may have half of a surrogate pair, as JSON can.
        whole = f"{self._scope}\n{key}".encode(errors="surrogatepass")
        return hashlib.sha256(whole).hexdigest()

    def _attempt(self, name: str, operation: Callable[[], T], otherwise: T) -> T:
        if self._monotonic() < self._away_until:
            return otherwise
        with leaf_span(f"memcached {name}", {"db.system": "memcached"}):
            return self._call_or(operation, otherwise)

    def _call_or(self, operation: Callable[[], T], otherwise: T) -> T:
        try:
            answer = operation()
        except OSError as error:
            if not self._away_until:  # Once an outage, and not twice a second and thread.
                log.warning("memcached is away; this process goes on without it: %s", error)
            self._away_until = self._monotonic() + COOLDOWN_S
        except Exception as error:
            # This operation alone: a value too large, an empty pool, or a connection of the pool
            # from before the server was restarted, of which each fails once. pymemcache has no
            # error of its own for an answer to another question, as of another program.
            self._note_refusal(error)
        else:
            if self._away_until:
                self._away_until = 0.0
                log.warning("memcached answers again")
            return answer
        return otherwise

    def _note_refusal(self, error: Exception) -> None:
        now_s = self._monotonic()
        until_s, unlogged = self._refusals.get(type(error), (now_s, 0))
        if now_s < until_s:
            self._refusals[type(error)] = until_s, unlogged + 1
            return
        self._refusals[type(error)] = now_s + REFUSALS_LOGGED_EVERY_S, 0
        others = f", and {unlogged:,} calls before it" if unlogged else ""
        log.warning("memcached refuses: %r%s", error, others)


class NoCache(Cache):
    """A Cache that never holds anything: correct, and slower."""

    def get(self, key: str) -> bytes | None:
        return None

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return False

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return False

    def delete(self, key: str) -> bool:
        return False

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        return None

    def incr_existing(self, key: str, delta: int) -> int | None:
        return None

    def ping(self) -> bool:
        return False

    def close(self) -> None:
        pass


def open_cache(host: str | None, *, scope: str = "", timeout_s: float = TIMEOUT_S) -> Cache:
    """Return the cache at "host:port", or one that never holds anything.

    Args:
        scope: Separates its keys from the keys of other apps, databases and namespaces on this
            server.
    """
    return MemcachedCache(host, scope=scope, timeout_s=timeout_s) if host else NoCache()


def parse_counter(value: bytes | None) -> int | None:
    """Return the number in a counter's value; None for any other value.

    >>> [parse_counter(value) for value in (b"7 ", b"seven", b"9" * 5000, None)]
    [7, None, None, None]
    """
    # After a decrement memcached may leave a blank behind the number.
    is_number = value is not None and len(value) <= 20 and value.strip().isdigit()
    return int(value) if value is not None and is_number else None


def _checked(ttl_s: int) -> int:
    if not 0 < ttl_s <= MAX_TTL_S:
        raise ValueError(f"ttl_s must be between 1 and {MAX_TTL_S}, got {ttl_s}")
    return ttl_s
