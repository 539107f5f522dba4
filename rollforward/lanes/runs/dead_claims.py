"""Claims of deliveries that have ended or died: a delivery of their key takes them away."""

from __future__ import annotations

from rollforward.lanes.rows.entities import Claim, LaneState
from rollforward.lanes.rows.states import is_over, over_in
from rollforward.runtime.clients import Clients

# A claim without a beat for so many seconds, each of them watched, is one of a dead delivery.
LEASE_S = 15


def dead_claims(clients: Clients, state: LaneState, *, watches: bool) -> list[Claim]:
    """Return the claims of deliveries that are known to be over, or do not beat when watched."""
    over = over_in(clients)
    dead = [
        claim
        for claim in state.claims
        if claim.owner in over or clients.processes.is_dead(claim.owner)
    ]
    if dead or not watches:
        return dead
    silent = list(state.claims)
    for _ in range(LEASE_S):
        if dead := _known_to_be_over(clients, silent):
            return dead
        clients.clock.sleep(1)
        seen = {claim.last_beat for claim in silent}
        row: LaneState | None = state.key.get()
        alive = row.claims if row is not None else []
        silent = [claim for claim in alive if claim.last_beat in seen]
        if not silent:
            return []
    return silent


def _known_to_be_over(clients: Clients, claims: list[Claim]) -> list[Claim]:
    """Return claims of dead processes, whose neighbours know after a second, and ended ones."""
    return [
        claim
        for claim in claims
        if clients.processes.is_dead(claim.owner) or is_over(clients, claim.owner)
    ]
