"""One delivery of a flow: its code runs until a step has to wait, or to its end."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from rollforward.datastore.expiry import expiry
from rollforward.datastore.transactions import transact
from rollforward.flows.errors import (
    BadStepError,
    Interrupted,
    LeasedError,
    StepFailedError,
    Suspended,
    Unwinding,
)
from rollforward.flows.rows import values
from rollforward.flows.rows.entities import (
    FAILED,
    REJECTED,
    RUNNING,
    SUCCEEDED,
    UNDOING,
    FlowRun,
    run_key,
)
from rollforward.flows.rows.values import BadValueError
from rollforward.flows.steps.attempt import MAX_REASON_CHARS, FlowAttempt, check_silent
from rollforward.flows.steps.steps import Steps
from rollforward.flows.steps.undoing import Undos
from rollforward.flows.steps.waits import open_batches
from rollforward.flows.turns import has_turns_elsewhere, take_turn
from rollforward.flows.wakes import FlowArgs
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.texts import both_ends, describe_error, storable
from rollforward.tasks.errors import BadArgumentsError, OtherVersionError, Reject
from rollforward.tasks.stored.names import hashed_name

if TYPE_CHECKING:
    from rollforward.flows.declaration import Flow

log = logging.getLogger(__name__)

MAX_RESULT_BYTES = 100_000
MOST_NAMED = 5


def deliver(flow: Flow[Any], clients: Clients, args: FlowArgs) -> None:
    """Run a flow's code, from its beginning, as far as it goes now.

    A flow that has its turns in a lane is only put there.

    Raises:
        LeasedError: another delivery works on it.
        OtherVersionError: this version of the code does not read its arguments, or has no such
            lane.
    """
    attempt = FlowAttempt(clients, flow.task, args.run_id)
    if not attempt.open():
        return
    try:
        if has_turns_elsewhere(attempt.row, args):
            take_turn(clients, flow.task, attempt.row)
        else:
            _run(flow, attempt, _read(flow, attempt))
    except Suspended:
        _complete(attempt)
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, Interrupted) else None
        # The error matters more, and without this the lease expires.
        with contextlib.suppress(Exception, Suspended):
            if isinstance(other := cause or error, OtherVersionError):
                attempt.note_version(str(other))
            else:
                attempt.release()
        if cause is not None:
            raise cause from None
        raise


def _read(flow: Flow[Any], attempt: FlowAttempt) -> Any:
    try:
        return flow.read(attempt.row.args)
    except BadArgumentsError as error:
        raise OtherVersionError(f"{attempt.run_id}: {error}") from error


def _complete(attempt: FlowAttempt) -> None:
    """Note that this version of the code continues a flow that another could not."""
    if attempt.row.state in (RUNNING, UNDOING):
        with contextlib.suppress(LeasedError, Suspended):
            attempt.note_version("")


def _run(flow: Flow[Any], attempt: FlowAttempt, args: Any) -> None:
    undos = Undos(attempt, flow.batch)
    with contextlib.suppress(Unwinding):
        _run_forward(flow, attempt, undos, args)
        if not attempt.is_undoing:
            return
    _undo(flow, attempt, undos)


def _run_forward(flow: Flow[Any], attempt: FlowAttempt, undos: Undos, args: Any) -> None:
    """Run the code, and end the flow as it ends.

    Raises:
        Unwinding: the flow is being undone.
    """
    steps = Steps(attempt, flow.batch, flow.retries, undos)
    try:
        result = _called(flow, attempt, steps, args)
        if not attempt.is_undoing:
            _finish(flow, attempt, result)
    except StepFailedError as error:
        if not attempt.is_undoing:
            _fail(attempt, error)
    except (BadStepError, BadValueError) as error:
        _fail(attempt, error)
    except Reject as error:
        if not attempt.is_undoing:
            _reject(flow, attempt, undos, str(error))


def _called(flow: Flow[Any], attempt: FlowAttempt, steps: Steps, args: Any) -> Any:
    """Run the code, and end as the delivery does, even if the code has caught that.

    Raises:
        BadStepError: it has a mistake.
    """
    raised: BaseException | None = None
    try:
        result = flow.work(steps, args)
    except BaseException as error:
        if attempt.stopped is None:
            raise
        raised = error
    if (stopped := attempt.stopped) is None:
        return result
    if raised is not stopped:
        log.warning("%s: the code has caught the end of its delivery", attempt.run_id)
    if isinstance(stopped.__cause__, BadStepError):
        raise stopped.__cause__
    raise stopped from stopped.__cause__


def _finish(flow: Flow[Any], attempt: FlowAttempt, result: Any) -> None:
    """End a flow, unless it was cancelled meanwhile."""
    text = values.dump(flow.function, result)
    if len(text.encode()) > MAX_RESULT_BYTES:
        raise BadValueError(
            f"a flow returns at most {MAX_RESULT_BYTES:,} bytes: store more in rows"
        )

    def transition(row: FlowRun) -> None:
        if row.state == UNDOING:
            raise Unwinding
        row.result = text
        _end(flow, attempt, row, SUCCEEDED)

    attempt.change(transition)


def _reject(flow: Flow[Any], attempt: FlowAttempt, undos: Undos, reason: str) -> None:
    """Note that a flow is rejected; it has ended if nothing is to be undone.

    Raises:
        Suspended: it has ended.
    """

    def transition(row: FlowRun) -> None:
        row.verdict = row.verdict or REJECTED
        row.reason = row.reason or storable(reason, MAX_REASON_CHARS)
        row.state = UNDOING
        if not (undos.calls or undos.unknown() or open_batches(row)):
            _end(flow, attempt, row, row.verdict)

    attempt.change(transition)
    if attempt.row.has_ended:
        raise Suspended


def _undo(flow: Flow[Any], attempt: FlowAttempt, undos: Undos) -> None:
    try:
        _check_met(undos)
        undos.run()
    except (BadStepError, StepFailedError) as error:
        _fail(attempt, error)
        return
    attempt.change(lambda row: _end(flow, attempt, row, row.verdict))


def _check_met(undos: Undos) -> None:
    """Check that the code has come to all calls that are to be undone.

    Raises:
        BadStepError: this version of the code ends before.
    """
    if unmet := undos.unknown():
        names = ", ".join(map(repr, unmet[:MOST_NAMED]))
        raise BadStepError(
            f"{names} may have taken effect, and it is unknown how to undo that: the code does not "
            "come there, or the call has failed after a worker died over it. Retry when that is "
            "mended, with new_calls=True if calls that never began stand before it, or cancel once "
            "more to leave it",
            step=unmet[0],
        )


def _end(flow: Flow[Any], attempt: FlowAttempt, row: FlowRun, state: str) -> None:
    """End a flow: its row is deleted after a while."""
    now_utc = naive_utc(attempt.clients.clock.now())
    row.state, row.ended, row.due = state, now_utc, None
    row.expires = expiry(hashed_name(row.key.id()), now_utc + flow.keep)
    attempt.is_leased = False


def _fail(attempt: FlowAttempt, error: Exception) -> None:
    """Note that a flow waits for a person, who retries or cancels it."""
    reason = describe_error(error)
    step, was_undoing = getattr(error, "step", ""), attempt.is_undoing
    log.error("the flow %s failed: %s", attempt.run_id, reason, exc_info=error)

    def transition(row: FlowRun) -> None:
        if row.state == UNDOING and not was_undoing:
            raise Unwinding  # It was cancelled meanwhile.
        fail(row, reason, step)
        attempt.is_leased = False

    attempt.change(transition)


def fail(row: FlowRun, reason: str, step: str = "") -> None:
    """Mark a row as failed, at a step or in the code between, in a write of the caller's."""
    row.failed_step = step or None
    row.state, row.failure, row.due = FAILED, both_ends(reason, MAX_REASON_CHARS), None
    row.failed = row.created
    row.other_version = row.other_version_since = row.turn = None
    row.owner = row.lease_expires_at = None


def give_up(clients: Clients, args: FlowArgs, reason: str) -> None:
    """Mark a flow as failed whose code has failed too often between its steps."""

    def body() -> None:
        row: FlowRun | None = run_key(args.run_id).get()
        if row is None or args.run not in ("", row.run):
            return  # A run before this one has failed.
        if row.state in (RUNNING, UNDOING):
            check_silent(clients, row)
            fail(row, reason)
            row.put()

    log.error("the flow %s failed: %s", args.run_id, reason)
    transact(body)
