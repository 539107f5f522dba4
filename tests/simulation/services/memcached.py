"""A memcached in this process and in virtual time, as far as the library's cache asks it.

It stands below `MemcachedCache`, in the place of pymemcache's client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pymemcache.exceptions import MemcacheClientError

from rollforward.runtime.cache import MemcachedCache
from tests.simulation.services.channel import ADDRESS

_WRAPS_AT = 2**64
_MAX_DIGITS = 20


@dataclass
class Memcached:
    """The values by key, each with the time at which it ends."""

    now_s: Callable[[], float]
    values: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def get(self, key: str) -> bytes | None:
        value, ends_s = self.values.get(key, (None, 0.0))
        if value is not None and ends_s <= self.now_s():
            del self.values[key]
            return None
        return value

    def set(self, key: str, value: bytes, expire: int) -> bool:
        self.values[key] = (value, self.now_s() + expire)
        return True

    def add(self, key: str, value: bytes, expire: int) -> bool:
        return self.get(key) is None and self.set(key, value, expire)

    def delete(self, key: str) -> bool:
        return self.get(key) is not None and self.values.pop(key) is not None

    def incr(self, key: str, delta: int) -> int | None:
        return self._change(key, lambda count: (count + delta) % _WRAPS_AT)

    def decr(self, key: str, delta: int) -> int | None:
        return self._change(key, lambda count: max(0, count - delta))

    def version(self) -> bytes:
        return b"simulated"

    def close(self) -> None:
        """Do nothing."""

    def _change(self, key: str, step: Callable[[int], int]) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        text = value.rstrip(b" ")
        if not text.isdigit() or len(text) > _MAX_DIGITS:
            raise MemcacheClientError(b"cannot increment or decrement non-numeric value")
        count = step(int(text))
        # A shorter number is written over the longer one, and blanks over the rest.
        self.values[key] = (str(count).encode().ljust(len(value)), self.values[key][1])
        return count


def open_cache(server: Callable[[], Memcached], now_s: Callable[[], float]) -> MemcachedCache:
    """Return the library's cache on a memcached; a test may put another one in its place."""
    cache = MemcachedCache(ADDRESS, monotonic=now_s)
    cache._client = _Current(server)
    return cache


class _Current:
    """Passes each call on to the memcached of the moment."""

    def __init__(self, server: Callable[[], Memcached]) -> None:
        self._server = server

    def __getattr__(self, name: str) -> object:
        return getattr(self._server(), name)
