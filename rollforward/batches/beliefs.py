"""What a process believes of the batches that run, so that not every member has to read its own.

All of it is a hint. That a batch still wants its members may be a second old, and how many of them
have ended is a counter in memcached, which may forget, or count an end twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud import ndb

from rollforward.batches import policy
from rollforward.batches.entities import BatchState, state_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.group_commit import GroupCommit

# How long a process believes that a batch is running: so long a cancelled one may go on.
BELIEVED_S = 1.0
MAX_BELIEVED = 1_000
MAX_READ = 100
# A batch that runs for longer loses a hint.
COUNTED_FOR_S = 24 * 3600


@dataclass(frozen=True)
class _Belief:
    """A batch that was running when it was read, in one of its generations."""

    generation: int
    until_s: float
    members: int | None  # All that will end in this generation, if that is known.

    def is_true(self, generation: int, now_s: float) -> bool:
        is_fresh = now_s < self.until_s <= now_s + BELIEVED_S  # Also when the clock was put back.
        return is_fresh and self.generation == generation


def is_wanted(clients: Clients, batch: str, generation: int) -> bool:
    """Return whether a batch waits for members; "yes" may be a second old, "no" is not."""
    beliefs = _beliefs(clients)
    now_s = clients.clock.now().timestamp()
    known = beliefs.get(batch)
    if known is not None and known.is_true(generation, now_s):
        return True
    state = _reads(clients)(batch)
    if state is None or not policy.wants(state, generation):
        return False
    if len(beliefs) >= MAX_BELIEVED:
        beliefs.clear()
    # Of a batch that is run again nobody has written down how many are.
    are_all = state.sealed and state.generation == generation == 1
    members = int(state.members) if are_all else None
    beliefs[batch] = _Belief(generation, now_s + BELIEVED_S, members)
    return True


def forget(clients: Clients, batch: str) -> None:
    """Read a batch again before the next of its members runs in this process."""
    _beliefs(clients).pop(batch, None)


def are_last(clients: Clients, batch: str, ends: int) -> bool:
    """Count ends of a batch that are on their way; return whether no member is left behind them."""
    known = _beliefs(clients).get(batch)
    if known is None or known.members is None:
        return False
    ended = clients.cache.incr(f"batches:ended:{batch}", ends, COUNTED_FOR_S)
    return ended is not None and ended - ends < known.members <= ended


def _beliefs(clients: Clients) -> dict[str, _Belief]:
    return clients.process_state.get_or_create("batches", dict)


def _reads(clients: Clients) -> GroupCommit[str, BatchState | None]:
    """Return what reads batches: members that come during a read share the next one."""
    return clients.process_state.get_or_create(
        "batches:reads",
        lambda: GroupCommit(
            _read_each, max_calls=MAX_READ, max_bytes=MAX_READ, size=lambda _: 1, max_wait_s=0.05
        ),
    )


def _read_each(batches: Sequence[str]) -> list[BatchState | None]:
    names = list(dict.fromkeys(batches))
    found = dict(zip(names, ndb.get_multi(list(map(state_key, names))), strict=True))
    return [found[batch] for batch in batches]
