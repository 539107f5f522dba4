"""Lease on the computation of a value, in memcached: one process holds it, the others wait.

Its holder renews it while it computes, so it lasts as long as the holder lives, however slow the
source is. A dead holder's lease ends after `lease_s`. A lease may still be lost, when memcached is
emptied or the holder is suspended for longer. Then two processes compute, with no other effect.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rollforward.runtime import Clients

# So a renewal may be lost, and the next one comes in time.
RENEWALS = 3


class RefreshLease:
    """A lease that this process holds."""

    def __init__(self, clients: Clients, key: str, lease_s: int) -> None:
        self._clients = clients
        self._key = key
        self._lease_s = lease_s
        self._token = clients.new_id()
        self._renewals = 0
        self._has_ended = False
        self._lock = threading.Lock()

    @classmethod
    def take(cls, clients: Clients, key: str, lease_s: int) -> RefreshLease | None:
        """Take a lease; None: another process has it."""
        lease = cls(clients, key, lease_s)
        return lease if clients.cache.add(key, lease._value(), lease_s) else None

    def is_owned(self) -> bool:
        """Return whether it is this process's still."""
        return holder_of(self._clients.cache.get(self._key)) == self._token

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Keep it for as long as the block takes."""
        with self._clients.heart.heartbeat(self._renew, self._lease_s / RENEWALS):
            yield

    def release(self) -> None:
        """End it, unless it is another's by now."""
        with self._lock:  # A renewal may be under way.
            self._has_ended = True
        if self.is_owned():
            self._clients.cache.delete(self._key)

    def _renew(self) -> None:
        with self._lock:
            if self._has_ended:
                return
            cache, self._renewals = self._clients.cache, self._renewals + 1
            value = cache.get(self._key)
            if value is None:  # memcached was emptied.
                cache.add(self._key, self._value(), self._lease_s)
            elif holder_of(value) == self._token:
                cache.set(self._key, self._value(), self._lease_s)

    def _value(self) -> bytes:
        return f"{self._token}.{self._renewals}".encode()


def holder_of(value: bytes | None) -> str | None:
    """Return the holder in a stored lease; each renewal changes the stored value.

    >>> holder_of(b"a1.7"), holder_of(None)
    ('a1', None)
    """
    return None if value is None else value.partition(b".")[0].decode(errors="replace")
