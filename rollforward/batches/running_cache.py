"""Cache of running batches, so that not every member has to read its own.

All of it is a hint. A batch that accepted members may be a second old, and the number of members
that have ended is a counter in memcached, which may forget, or count an end twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud import ndb

from rollforward.batches import policy
from rollforward.batches.entities import BatchState, state_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit

# A cancelled batch may run for so long in a process that has cached it.
CACHED_S = 1.0
MAX_CACHED = 1_000
MAX_READ = 100
# A batch that runs for longer loses a hint.
COUNTED_FOR_S = 24 * 3600


@dataclass(frozen=True)
class _RunningBatch:
    """A batch that was running when it was read, in one of its generations."""

    generation: int
    expires_s: float
    members: int | None  # All that will end in this generation, if that is known.

    def is_valid(self, generation: int, now_s: float) -> bool:
        is_fresh = now_s < self.expires_s <= now_s + CACHED_S  # Also when the clock was put back.
        return is_fresh and self.generation == generation


def accepts_members(clients: Clients, batch: str, generation: int) -> bool:
    """Return whether a batch waits for members; True may be a second old, False is not."""
    cache = _cache(clients)
    now_s = clients.clock.now().timestamp()
    cached = cache.get(batch)
    if cached is not None and cached.is_valid(generation, now_s):
        return True
    state = _reads(clients)(batch)
    if state is None or not policy.is_waiting_for(state, generation):
        return False
    if len(cache) >= MAX_CACHED:
        cache.clear()
    # A batch that is run again does not store how many of its members are.
    is_complete = state.sealed and state.generation == generation == 1
    members = int(state.members) if is_complete else None
    cache[batch] = _RunningBatch(generation, now_s + CACHED_S, members)
    return True


def forget(clients: Clients, batch: str) -> None:
    """Read a batch again before the next of its members runs in this process."""
    _cache(clients).pop(batch, None)


def completes_batch(clients: Clients, batch: str, ends: int) -> bool:
    """Count ends of a batch that are on their way; return whether they are its last ones."""
    cached = _cache(clients).get(batch)
    if cached is None or cached.members is None:
        return False
    ended = clients.cache.incr(f"batches:ended:{batch}", ends, COUNTED_FOR_S)
    return ended is not None and ended - ends < cached.members <= ended


def _cache(clients: Clients) -> dict[str, _RunningBatch]:
    return clients.process_state.get_or_create("batches", dict)


def _reads(clients: Clients) -> GroupCommit[str, BatchState | None]:
    """Return the reader of batches: members that arrive during a read share the next one."""
    return clients.process_state.get_or_create(
        "batches:reads",
        lambda: GroupCommit(
            _read_all, max_calls=MAX_READ, max_bytes=MAX_READ, size=lambda _: 1, max_wait_s=0.05
        ),
    )


def _read_all(batches: Sequence[str]) -> list[BatchState | None]:
    names = list(dict.fromkeys(batches))
    states = dict(zip(names, ndb.get_multi(list(map(state_key, names))), strict=True))
    return [states[batch] for batch in batches]
