"""Recovery at a worker's start: a sweep for the work that its predecessor left.

A worker that is killed leaves rows whose tasks were never created, and batches without a joiner.
Cron's sweep would find them within a minute; the worker that takes its place looks at once, in the
background, and again some seconds later, when batches that were open are due. A look costs four
queries when there is nothing. Workers that start together share looks: memcached says when the last
one began. Without memcached each worker looks.

Lost on failure: nothing. The next sweep finds work that a look has missed.
"""

from __future__ import annotations

import logging
import math
import threading

from rollforward.registry import Registry
from rollforward.runtime import Clients

log = logging.getLogger(__name__)

# A living worker cares for what is younger.
STALE_S = 1.0
# When a worker looks, after its start.
LOOKS_S = (1.0, 6.0)
# Two workers' looks begin so long apart; a worker that has waited too long for its turn takes it.
APART_S = 3.0
MAX_WAIT_S = 20.0
LAST_LOOK = "recovery:began"


def start(clients: Clients, registry: Registry) -> threading.Thread:
    """Begin to look for abandoned work, on a thread of its own that ends with the process."""

    def run() -> None:
        with clients.context():
            recover(clients, registry)

    thread = threading.Thread(target=run, name="recovery", daemon=True)
    thread.start()
    return thread


def recover(clients: Clients, registry: Registry) -> int:
    """Look as often as a starting worker does; return how many looks no other worker took over."""
    started_s = clients.clock.now().timestamp()
    looks = 0
    for look_s in LOOKS_S:
        due_s = started_s + look_s
        clients.clock.sleep(max(0.0, due_s - clients.clock.now().timestamp()))
        if _should_check(clients, due_s):
            registry.sweep_all(clients, stale_s=STALE_S)
            looks += 1
    return looks


def _should_check(clients: Clients, due_s: float) -> bool:
    """Wait for a turn to look; False: a look has begun since this one was due."""
    waited_s = 0.0
    while waited_s < MAX_WAIT_S:
        now_s = clients.clock.now().timestamp()
        token = str(now_s).encode()
        if clients.cache.add(LAST_LOOK, token, ttl_s=int(APART_S)):
            return True
        last_s = _number(clients.cache.get(LAST_LOOK))
        if last_s is None:
            return True  # There is no memcached, or something else stands there.
        if due_s <= last_s <= now_s + APART_S:
            return False
        if last_s + APART_S <= now_s:
            clients.cache.set(LAST_LOOK, token, ttl_s=int(APART_S))
            return True
        clients.clock.sleep(1)
        waited_s += 1
    return True


def _number(text: bytes | None) -> float | None:
    try:
        number = float((text or b"").decode())
    except ValueError:
        return None
    return number if math.isfinite(number) else None
