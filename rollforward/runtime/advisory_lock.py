"""An advisory lock in memcached: callers of one name go one after the other, in all processes.

Where the store locks, transactions that read one row and then write it wait for each other until
one gives up: the updates of a row that came together took 46 s, where each takes some
milliseconds. The lock only keeps callers from contending; nothing depends on it. A caller that has
waited for 2 s goes ahead, and none waits without memcached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollforward.runtime.clients import Clients

# Somebody who takes longer than this is not waited for.
WAIT_S = 2.0
TTL_S = 10
MIN_LOOK_S = 0.001
MAX_LOOK_S = 0.02


@contextlib.contextmanager
def advisory_lock(clients: Clients, name: str) -> Iterator[None]:
    """Hold the lock of a name, or go ahead without it, while the block runs."""
    token = clients.new_id().encode()
    for pause_s in looks(WAIT_S):
        if clients.cache.add(name, token, TTL_S) or clients.cache.get(name) is None:
            break
        clients.clock.sleep(pause_s)
    try:
        yield
    finally:
        if clients.cache.get(name) == token:
            clients.cache.delete(name)


def looks(timeout_s: float) -> Iterator[float]:
    """Return pauses that grow, and end after so many seconds."""
    pause_s, waited_s = MIN_LOOK_S, 0.0
    while waited_s < timeout_s:
        yield pause_s
        waited_s += pause_s
        pause_s = min(MAX_LOOK_S, pause_s * 1.5)
