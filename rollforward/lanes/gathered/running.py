"""A delivery of a gathering lane: it runs the window of a key, if that has ended.

the function           its calls
is done                are deleted
waits, or fails        wait for the next run with the same calls, longer after each failure
can never work         become one dead task, which a replay adds to the key again
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.cloud import ndb

from rollforward import telemetry
from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.transactions import TRANSIENT
from rollforward.lanes import hints
from rollforward.lanes.gathered import replays
from rollforward.lanes.gathered.calls import call_of
from rollforward.lanes.gathered.claiming import ClaimedWindow, next_run, put_state, take
from rollforward.lanes.gathered.window import Window, milliseconds, time_at
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key, unquote
from rollforward.lanes.rows.states import note_over
from rollforward.lanes.runs import ends
from rollforward.lanes.runs.claims import BEAT_S, Holder, Rest
from rollforward.lanes.runs.ends import Dead, End, Later
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version
from rollforward.runtime.texts import both_ends
from rollforward.tasks.declaration import hashed_name
from rollforward.tasks.errors import BadArgumentsError
from rollforward.tracing import caused_by, start_span

if TYPE_CHECKING:
    from rollforward.lanes.gathered.declaration import Gathered

log = logging.getLogger(__name__)


def deliver(gathered: Gathered[Any], clients: Clients, args: LaneArgs) -> None:
    """Run the window of a key, if it has ended and no other run is at work.

    Raises:
        LaneBusyError: others change the key at the same time.
        google.api_core.exceptions.GoogleAPICallError: the service's answer; the queue
            repeats the hint.
    """
    watches = hints.checks_claims(args)
    claimed = take(clients, gathered, args.lane_id, watches=watches)
    if isinstance(claimed, Rest):
        _wait(clients, gathered, args, claimed.until)
        return
    holder = Holder(clients, gathered, args.lane_id, claimed.claim, asked_s=claimed.asked_s)
    try:
        with clients.heart.heartbeat(holder.beat, BEAT_S):
            end: End = Later(0, "its claim is too old to begin")
            if holder.can_start():
                end = _run(gathered, holder, claimed)
    except BaseException as error:
        # The error matters more, and without this the claim expires.
        with contextlib.suppress(Exception):
            is_failure = not isinstance(error, TRANSIENT)  # Before the function was called.
            _close(gathered, holder, claimed, Later(0, type(error).__name__, is_failure))
        raise
    _close(gathered, holder, claimed, end)
    _continue(clients, gathered, args)


def _wait(
    clients: Clients, gathered: Gathered[Any], args: LaneArgs, until: datetime.datetime | None
) -> None:
    """Create a hint for the end of a window; calls that come before it need no hint then."""
    if until is not None:
        hints.hint_at(clients, gathered.task, args.lane_id, until, args)
        hints.mark_until(clients, args.lane_id, until)


def _continue(clients: Clients, gathered: Gathered[Any], args: LaneArgs) -> None:
    """Create a hint for the next window, if the key has calls; look after the claim is gone."""
    hints.unmark(clients, args.lane_id)
    plan = next_run(clients, gathered, args.lane_id, state_key(args.lane_id).get())
    if isinstance(plan, Rest):
        _wait(clients, gathered, args, plan.until)
    else:
        hints.hint(clients, gathered.task, args.lane_id)


def _run(gathered: Gathered[Any], holder: Holder, claimed: ClaimedWindow) -> End:
    """Run the function with the calls of a window; return how that ended."""
    window, head = claimed.window, claimed.rows[0]
    context = telemetry.TaskContext(
        head.key.id(), gathered.queue, gathered.path, int(window.failures)
    )
    with telemetry.in_task(context), caused_by(head.traceparent or ""), start_span("lane calls"):
        began_s = holder.monotonic()
        end = _end(gathered, holder, window, claimed.rows)
        work_s = holder.monotonic() - began_s
        if isinstance(end, Later) and _is_unknown_for_long(holder.clients, end, window):
            end = Dead(end.reason)
        outcome = ends.outcome_of(end)
        # The delivery of the hint, which is due when the window ends, has the delay.
        telemetry.note_run(gathered.path, gathered.queue, outcome, None, work_s)
        if isinstance(end, Later):
            log.info("%s waits for %g s: %s", gathered.path, end.pause_s, end.reason)
        return end


def _end(gathered: Gathered[Any], holder: Holder, window: Window, rows: Sequence[LaneTask]) -> End:
    if window.failures >= gathered.max_attempts:
        return Dead(f"{window.failures} runs failed, or ended without a word: {window.reason}")
    try:
        calls = [call_of(row, gathered.codec) for row in rows]
    except BadArgumentsError as error:
        return ends.unknown(f"BadArgumentsError: {error}")
    try:
        key = unquote(holder.lane_id.partition("|")[2])
        run_app(gathered.work, holder.clients, key, calls)
    except APP_ERRORS as error:
        end = ends.end_of(error, failures=window.failures, max_attempts=gathered.max_attempts)
        if isinstance(end, Dead) or (isinstance(end, Later) and end.is_failure):
            log.exception("%s failed", gathered.path)
        return end
    return None


def _is_unknown_for_long(clients: Clients, end: Later, window: Window) -> bool:
    """Return whether no version has read a call for longer than a deployment takes."""
    if not (end.is_unknown and window.unknown_since_ms):
        return False
    return clients.clock.now() - time_at(window.unknown_since_ms) >= ends.VERSION_WAIT


def _close(gathered: Gathered[Any], holder: Holder, claimed: ClaimedWindow, end: End) -> None:
    """End a run by one commit: delete or keep its calls, and give the key back."""
    clients, lane_id = holder.clients, holder.lane_id
    dead_id = hashed_name("lane", claimed.rows[0].key.id(), claimed.claim.owner)

    def body() -> None:
        state: LaneState | None = state_key(lane_id).get()
        if state is None or state.claim_of(claimed.claim.owner) is None:
            return  # The commit's reply was lost, or another delivery has taken the claim away.
        state.set_claims([])
        window = Window.of(state)
        if isinstance(end, Later):
            _after(clients, window, end).store(state)
        else:
            if isinstance(end, Dead):
                replays.keep_dead(clients, gathered, lane_id, dead_id, claimed.rows, end.reason)
            ndb.delete_multi(window.keys(lane_id))
            window.closed().store(state)
        put_state(clients, gathered, state)

    try:
        transact_by_version(clients, body)
    except TRANSIENT:
        note_over(clients, claimed.claim.owner)  # Nobody needs to watch it.
        raise


def _after(clients: Clients, window: Window, end: Later) -> Window:
    """Return a window that runs again later."""
    now_utc = clients.clock.now()
    not_before_ms = milliseconds(now_utc + datetime.timedelta(seconds=end.pause_s))
    reason = both_ends(end.reason, ends.MAX_REASON_CHARS)
    if end.is_failure:
        return window.failed(reason, not_before_ms)
    since_ms = (window.unknown_since_ms or milliseconds(now_utc)) if end.is_unknown else 0
    return window.put_off(reason, not_before_ms, since_ms)
