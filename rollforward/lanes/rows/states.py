"""Changes of the state of a key that all lanes share, each in a transaction by versions.

A claim is written if the state is the one that it was decided by. A claim of a dead delivery is
taken away if it has not beaten since. And each state says until when it is kept.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from functools import partial

from rollforward.lanes.rows.entities import EPOCH, Claim, LaneState, state_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version

log = logging.getLogger(__name__)

KEEP_STATE = datetime.timedelta(days=1)
# Two of the longest periods of a throttle: what changes a state may not know the period.
KEEP_BEGUN = datetime.timedelta(days=14)
KEEP_HEAD = datetime.timedelta(days=40)  # A task of an order may wait for so long.
# The state of a window that has calls is kept: None would list its key among those that rest.
LONG_AFTER = datetime.timedelta(days=3650)
# A note in memcached that work is over: far longer than a claim lasts without beats.
OVER_S = 3600


def write_claim(
    lane_id: str,
    seen: LaneState | None,
    claim: Claim,
    write: Callable[[LaneState], None],
) -> bool:
    """Write a claim of some tasks, unless the state is another one than was seen.

    A state that is gone has no stamp: another delivery may have made one, and deleted it with its
    last task. So whoever claims a key without a state looks at its tasks again.

    Args:
        write: Writes the state with the claim.
    """
    state: LaneState | None = state_key(lane_id).get()
    if state is not None and state.claim_of(claim.owner) is not None:
        return True  # The commit's reply was lost.
    if (state.stamp if state else None) != (seen.stamp if seen else None):
        return False
    state = state or LaneState(key=state_key(lane_id))
    state.set_claims([*state.claims, claim])
    write(state)
    return True


def remove_claims(
    clients: Clients, lane_id: str, dead: Sequence[Claim], write: Callable[..., None]
) -> None:
    """Take claims of dead deliveries away.

    Args:
        write: As of `remove_claim`; its argument `counts` says whether what the delivery was at has
            failed.
    """
    for claim in dead:
        has_ended = is_over(clients, claim.owner)
        if not has_ended:
            log.warning("a delivery of %s died over its work", lane_id)
        counted = partial(write, counts=not has_ended)
        if transact_by_version(clients, partial(remove_claim, lane_id, claim, counted)):
            over_in(clients).discard(claim.owner)


def remove_claim(lane_id: str, dead: Claim, write: Callable[[LaneState, Claim], None]) -> bool:
    """Take the claim of a dead delivery away; return whether it is gone.

    Args:
        write: Writes the state without the claim; not called for a claim that was gone, or has
            beaten meanwhile.
    """
    state: LaneState | None = state_key(lane_id).get()
    claim = state.claim_of(dead.owner) if state is not None else None
    if state is None or claim is None:
        return True
    if claim.beats != dead.beats:
        return False
    state.set_claims([other for other in state.claims if other.owner != dead.owner])
    write(state, claim)
    return True


def over_in(clients: Clients) -> set[str]:
    """Return the owners of this process whose work has ended, and whose claims may be there."""
    return clients.process_state.get_or_create("lanes-over", set)


def note_over(clients: Clients, owner: str) -> None:
    """Note that the work of an owner has ended, and that its claim may be there.

    Datastore did not take the claim back, and memcached tells other processes why it is silent.
    """
    over_in(clients).add(owner)
    clients.cache.set(_over_key(owner), owner.encode(), OVER_S)


def is_over(clients: Clients, owner: str) -> bool:
    """Return whether the work of an owner is known to have ended, in whichever process."""
    return owner in over_in(clients) or clients.cache.get(_over_key(owner)) == owner.encode()


def _over_key(owner: str) -> str:
    return f"lanes:over:{owner}"


def keep(
    clients: Clients, state: LaneState, for_at_least: datetime.timedelta | None = None
) -> None:
    """Write a state, and say until when it is kept: full hours, so a beat changes no index."""
    if for_at_least is None:
        for_at_least = KEEP_BEGUN if (state.gathered or {}).get("began_ms") else KEEP_STATE
    lasts = max(KEEP_HEAD, for_at_least) if state.head else for_at_least
    if (state.gathered or {}).get("calls"):
        lasts = LONG_AFTER
    expires = naive_utc(clients.clock.now() + lasts)
    # A rate is remembered for as long as it holds a task up.
    expires = max(expires, EPOCH + datetime.timedelta(milliseconds=state.arrival_ms))
    hour = expires.replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)
    state.expires = None if state.rests else hour
    state.put()
