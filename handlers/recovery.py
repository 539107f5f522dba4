"""What a worker does when it starts: it looks for what its predecessor left.

A worker that is killed leaves rows whose tasks were never created, and batches without a joiner.
Cron's sweep would find them within a minute; the worker that takes its place looks at once, in the
background. It costs four queries when there is nothing. Workers that start together share a look:
memcached says when the last one began. Without memcached each worker looks.

Lost on failure: nothing. What a look misses, the next sweep finds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from handlers.registry import Registry
from pipelines import continuations, fork_join_sweeps, outbox
from pipelines.clients import Clients

log = logging.getLogger(__name__)

# A living worker cares for what is younger.
STALE_S = 1.0
# No two looks begin within so long of each other; beside a look that hangs, one begins anyway.
APART_S = 5.0
LONGEST_WAIT_S = 20.0
_LAST_LOOK = "recovery:began"


def start(clients: Clients, registry: Registry) -> threading.Thread:
    """Begin to look for what is left, on a thread of its own that ends with the process."""

    def run() -> None:
        with clients.context():
            recover(clients, registry)

    thread = threading.Thread(target=run, name="recovery", daemon=True)
    thread.start()
    return thread


def recover(clients: Clients, registry: Registry) -> bool:
    """Sweep once, unless another worker does; return whether this one did."""
    started_s = clients.clock.now().timestamp()
    clients.clock.sleep(STALE_S)
    if not _is_my_turn(clients, started_s):
        return False
    sweeps: list[tuple[str, Callable[[], object]]] = [
        ("outbox", lambda: outbox.sweep(clients, stale_s=STALE_S)),
        ("continuations", lambda: continuations.sweep(clients, registry.jobs)),
        (
            "fork-join",
            lambda: fork_join_sweeps.sweep_all(clients, registry.fork_joins, stale_s=STALE_S),
        ),
        *(("views", partial(builds.sweep, clients)) for builds in registry.builds),
    ]
    for name, sweep in sweeps:
        try:
            sweep()
        except Exception:
            log.warning("a starting worker could not sweep: %s", name, exc_info=True)
    return True


def _is_my_turn(clients: Clients, started_s: float) -> bool:
    """Wait for a turn to look; False: a look has begun since this worker started."""
    waited_s = 0.0
    while waited_s < LONGEST_WAIT_S:
        now_s = clients.clock.now().timestamp()
        if clients.cache.add(_LAST_LOOK, str(now_s).encode(), ttl_s=int(APART_S)):
            return True
        last_s = _number(clients.cache.get(_LAST_LOOK))
        if last_s is None:
            return True  # There is no memcached, or something else stands there.
        if started_s + STALE_S <= last_s <= now_s + APART_S:
            return False
        clients.clock.sleep(1)
        waited_s += 1
    return True


def _number(text: bytes | None) -> float | None:
    try:
        return float((text or b"").decode())
    except ValueError:
        return None
