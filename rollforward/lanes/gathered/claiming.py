"""Claims of windows: one run of a key at a time, with calls that are fixed by one commit."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.lanes import hints
from rollforward.lanes.errors import LaneBusyError
from rollforward.lanes.gathered.window import Window, milliseconds, place_in_key, time_at
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    last_of,
    state_key,
    time_of,
    waiting,
)
from rollforward.lanes.rows.states import KEEP_STATE, keep, note_over, remove_claims, write_claim
from rollforward.lanes.runs.claims import MAX_ATTEMPTS, Rest
from rollforward.lanes.runs.dead_claims import dead_claims
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version

if TYPE_CHECKING:
    from rollforward.lanes.gathered.declaration import Gathered

# Of one run: its end deletes its calls by one commit.
MAX_CALLS = 400
MAX_CALLS_BYTES = 1_000_000


@dataclass(frozen=True)
class ClaimedWindow:
    """A window whose run may begin.

    Attributes:
        claim: The right of this delivery to run it.
        rows: The calls in it.
        asked_s: When the claim was asked for, by this process's clock that never goes back.
    """

    claim: Claim
    window: Window
    rows: Sequence[LaneTask]
    asked_s: float = 0.0


def take(
    clients: Clients, gathered: Gathered[Any], lane_id: str, *, watches: bool
) -> ClaimedWindow | Rest:
    """Claim the window of a key, if it may run now.

    Args:
        watches: Whether to find out if a dead delivery holds the key, which takes 15 seconds.

    Raises:
        LaneBusyError: others change the key all the time.
    """
    for _ in range(MAX_ATTEMPTS):
        state: LaneState | None = state_key(lane_id).get()
        if state is not None and state.rests:
            return Rest()
        if state is not None and state.claims:
            dead = dead_claims(clients, state, watches=watches)
            remove_claims(clients, lane_id, dead, partial(put_without_claim, clients, gathered))
            if dead or watches:
                watches = False
                continue
            return Rest()
        hints.unmark(clients, lane_id)
        plan = next_run(clients, gathered, lane_id, state)
        if isinstance(plan, Rest):
            if plan.until is None and state is not None and Window.of(state).calls:
                transact_by_version(
                    clients,
                    lambda: _forget(clients, gathered, state),  # noqa: B023
                )
            return plan
        asked_s = time.monotonic()
        try:
            if _is_claimed(clients, gathered, lane_id, state, plan):
                return replace(plan, asked_s=asked_s)
        except Exception:
            note_over(clients, plan.claim.owner)  # It may have been written.
            raise
    raise LaneBusyError(f"other deliveries change {lane_id} at the same time")


def next_run(
    clients: Clients, gathered: Gathered[Any], lane_id: str, state: LaneState | None
) -> ClaimedWindow | Rest:
    """Return the run that a key has next, if that may begin now."""
    now_utc = clients.clock.now()
    window = Window.of(state)
    if window.calls:
        not_before = time_at(window.not_before_ms)
        if not_before > now_utc:
            return Rest(not_before)
        rows = [row for row in _get_multi(window.keys(lane_id)) if row is not None]
        if rows:
            return ClaimedWindow(_new_claim(clients, now_utc, rows), window, rows)
        window = window.closed()  # An operator has deleted them.
    head, tail = waiting(lane_id).get(keys_only=True), last_of(lane_id).get(keys_only=True)
    if head is None or tail is None:
        return Rest()
    if place_in_key(head.id()) > window.rest_until:
        # A caller's clock may be ahead: its call waits for no time of its own.
        opened = min(time_of(head.id()), now_utc)
        due = gathered.timing.due(opened, time_of(tail.id()), _valid(window.began, now_utc))
        if due > now_utc:
            return Rest(due)
    rows, has_more = _next_calls(lane_id)
    if not rows:
        return Rest()
    rest_until = _rest_until(window, rows, tail.id()) if has_more else ""
    started = window.started(rows, rest_until, milliseconds(now_utc))
    return ClaimedWindow(_new_claim(clients, now_utc, rows), started, rows)


def _valid(began: datetime.datetime | None, now_utc: datetime.datetime) -> datetime.datetime | None:
    """Return when the last run began; None: there was none, or the clock that says so was ahead."""
    skew = datetime.timedelta(seconds=CLOCK_SKEW_S)
    return None if began is not None and began > now_utc + skew else began


def _rest_until(window: Window, rows: Sequence[LaneTask], tail_id: str) -> str:
    """Return the last place of a window of which one run takes a part; "": it takes the rest.

    The rest of a window does not grow by the calls that came after its end.
    """
    is_rest = place_in_key(rows[0].key.id()) <= window.rest_until
    end = window.rest_until if is_rest else place_in_key(tail_id)
    return end if place_in_key(rows[-1].key.id()) < end else ""


def _next_calls(lane_id: str) -> tuple[list[LaneTask], bool]:
    """Return the first calls of a key, as many as one run may have, and whether more wait."""
    rows: list[LaneTask] = []
    size = 0
    for row in waiting(lane_id).iter(limit=MAX_CALLS + 1):
        size += len(row.body.encode())
        if len(rows) == MAX_CALLS or (rows and size > MAX_CALLS_BYTES):
            return rows, True
        rows.append(row)
    return rows, False


def _get_multi(keys: Sequence[Any]) -> list[LaneTask | None]:
    return ndb.get_multi(keys)  # type: ignore[no-any-return]


def _new_claim(clients: Clients, now_utc: datetime.datetime, rows: Sequence[LaneTask]) -> Claim:
    ids = tuple(row.key.id() for row in rows)
    return Claim(clients.new_owner(), ids, began=now_utc.timestamp())


def _is_claimed(
    clients: Clients,
    gathered: Gathered[Any],
    lane_id: str,
    seen: LaneState | None,
    plan: ClaimedWindow,
) -> bool:
    """Claim a window by the state that was seen; return whether its run may begin."""

    def body() -> bool:
        return _claim(clients, gathered, lane_id, seen, plan)

    if seen is not None:
        return transact_by_version(clients, body)
    # A key without a state may have had one meanwhile, and these calls have run. So their rows
    # are read with the claim: a claim by mistake would drop calls as if a run were at work.
    keys = [row.key for row in plan.rows]
    return transact(lambda: None not in _get_multi(keys) and body())


def _claim(
    clients: Clients,
    gathered: Gathered[Any],
    lane_id: str,
    seen: LaneState | None,
    plan: ClaimedWindow,
) -> bool:
    """Write a claim and its window, unless the state is another one than was seen."""

    def write(state: LaneState) -> None:
        plan.window.store(state)
        put_state(clients, gathered, state)

    return write_claim(lane_id, seen, plan.claim, write)


def _forget(clients: Clients, gathered: Gathered[Any], seen: LaneState) -> None:
    """Close a window whose calls an operator has deleted: nothing will run it."""
    state: LaneState | None = seen.key.get()
    if state is not None and state.stamp == seen.stamp:
        Window.of(state).closed().store(state)
        put_state(clients, gathered, state)


def put_without_claim(
    clients: Clients, gathered: Gathered[Any], state: LaneState, claim: Claim, *, counts: bool
) -> None:
    """Write a state without the claim of a dead delivery.

    Args:
        counts: Whether its run has failed.
    """
    if counts:
        Window.of(state).failed("its worker died over it, or was too slow").store(state)
    put_state(clients, gathered, state)


def put_state(clients: Clients, gathered: Gathered[Any], state: LaneState) -> None:
    """Write the state of a key, or delete it if nothing is to be remembered."""
    window = Window.of(state)
    memory_s = gathered.timing.memory_s
    is_open = bool(window.calls or state.claims or state.rests)
    if not (is_open or window.rest_until or (memory_s and window.began_ms)):
        state.key.delete()
        return
    state.stamp = clients.new_id()
    keep(clients, state, max(KEEP_STATE, datetime.timedelta(seconds=2 * memory_s)))
