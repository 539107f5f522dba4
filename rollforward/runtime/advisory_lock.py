"""An advisory lock in memcached: callers of one name go one after the other, in all processes.

On a service that locks, transactions that read one row and then write it wait for each other until
one gives up. Concurrent updates of a row took 46 s, although each takes some milliseconds. The lock
only avoids contention; nothing depends on it. A caller goes ahead after 2 s, or as long as it asks
for, and at once without memcached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollforward.runtime.clients import Clients

# Callers do not wait longer than this for the holder.
WAIT_S = 2.0
TTL_S = 10
MIN_PAUSE_S = 0.001
MAX_PAUSE_S = 0.02


@contextlib.contextmanager
def advisory_lock(clients: Clients, name: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of a name while the block runs, or run it without the lock.

    Args:
        wait_s: How long to wait for the holder.
    """
    token = clients.new_id().encode()
    for pause_s in pauses(wait_s):
        if _take(clients, name, token):
            break
        clients.clock.sleep(pause_s)
    try:
        yield
    finally:
        if clients.cache.get(name) == token:
            clients.cache.delete(name)


def _take(clients: Clients, name: str, token: bytes) -> bool:
    """Take a lock; return whether to go ahead, with it or without memcached."""
    if clients.cache.add(name, token, TTL_S):
        return True
    if clients.cache.get(name) is not None:
        return False
    # Its holder has just released it, or memcached does not answer.
    return clients.cache.add(name, token, TTL_S) or clients.cache.get(name) is None


def pauses(timeout_s: float) -> Iterator[float]:
    """Return growing pauses, `timeout_s` seconds in all."""
    pause_s, waited_s = MIN_PAUSE_S, 0.0
    while waited_s < timeout_s:
        yield pause_s
        waited_s += pause_s
        pause_s = min(MAX_PAUSE_S, pause_s * 1.5)
