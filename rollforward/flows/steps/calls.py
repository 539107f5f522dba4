"""Calls of a step's function: in a transaction, or with an effect elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from google.cloud import ndb

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.transactions import TRANSIENT
from rollforward.flows.errors import BadStepError, LeasedError, Suspended, Unwinding
from rollforward.flows.rows import values
from rollforward.flows.rows.entities import UNDOING, FlowRun
from rollforward.flows.rows.records import DONE, FAILED, Kind, StepRecord
from rollforward.flows.rows.values import BadValueError
from rollforward.flows.steps.attempt import BEATS_PER_LEASE, LEASE, FlowAttempt, Wait
from rollforward.flows.steps.policy import RetryPolicy
from rollforward.runtime.clock import utc_at
from rollforward.runtime.texts import describe_error, storable, within_json
from rollforward.tasks.errors import Reject, Retry, Unavailable

log = logging.getLogger(__name__)

MAX_ERROR_BYTES = 300
# Each of hundreds may have one, in a row that is full.
MAX_UNDO_ERROR_BYTES = 100
# The pause after an error that is nobody's fault.
UNAVAILABLE_FOR_S = 5.0
# A delivery that has worked so long goes on in another one: it may take ten minutes.
MAX_DELIVERY_S = 240.0


@dataclass(frozen=True)
class StepCall:
    """A step that calls a function, and its retries."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    policy: RetryPolicy
    is_undo: bool = False

    def run(self) -> Any:
        return run_app(self.function, *self.args, **self.options)

    def first_record(self, now_s: float) -> StepRecord:
        """Return the record of the step as it begins."""
        return StepRecord(self.kind, began=now_s, is_undo=self.is_undo)


def make(attempt: FlowAttempt, call: StepCall) -> StepRecord:
    """Make a call of a step that has not ended; return its record as it has ended.

    Raises:
        Suspended: it is made by another delivery, now or later.
        Unwinding: the flow was cancelled before it began.
        BadStepError: its result cannot be stored.
    """
    if not call.is_undo:
        values.check(call.function)
    record = attempt.row.step(call.name) or call.first_record(attempt.now_s())
    if record.until > attempt.now_s():
        attempt.wait(utc_at(record.until), lambda row: None)
    if attempt.now_s() - attempt.began_s > MAX_DELIVERY_S:
        attempt.wait(attempt.clients.clock.now(), lambda row: None)
    run = _commit if call.kind == "commit" else _call
    return run(attempt, call, record)


def _call(attempt: FlowAttempt, call: StepCall, record: StepRecord) -> StepRecord:
    record = _claim(attempt, call, record)
    if record.has_ended:
        return record
    every_s = LEASE.total_seconds() / BEATS_PER_LEASE
    attempt.is_calling = True
    try:
        with attempt.clients.heart.heartbeat(attempt.beat, every_s):
            value = call.run()
    except APP_ERRORS as error:
        return _failed(attempt, call, record, error)
    finally:
        attempt.is_calling = False
    try:
        fields, rows = _stored(attempt, call, attempt.clients.new_id(), value)
    except BadValueError as error:
        _give_up(attempt, call, record, error)
    return _ended(attempt, call, record.ends(DONE, attempt.now_s(), **fields), rows)


def _claim(attempt: FlowAttempt, call: StepCall, record: StepRecord) -> StepRecord:
    """Take the lease, and note that the call begins: if its worker dies, it is in doubt."""

    def note(row: FlowRun) -> StepRecord:
        begun = row.step(call.name)
        if begun is not None and begun.has_ended:
            return begun
        if begun is None:
            _check_can_start(row, call)
        else:
            _check_pause(attempt, begun)
        if not call.is_undo:  # The room beyond is theirs.
            row.check_capacity()
        claimed = (begun or record).called()
        row.note(call.name, claimed)
        return claimed

    claimed = attempt.lease(note)
    if claimed.doubts > record.doubts:
        log.warning("%s: the step %s may have taken effect before", attempt.run_id, call.name)
        if call.policy.is_over(claimed.attempts, attempt.clients.clock.now()):
            error = f"its worker died over it {claimed.doubts} times"
            return _ended(attempt, call, claimed.ends(FAILED, attempt.now_s(), error=error))
    return claimed


def _commit(attempt: FlowAttempt, call: StepCall, record: StepRecord) -> StepRecord:
    owner = attempt.clients.new_id()

    def body(row: FlowRun) -> StepRecord:
        committed = row.step(call.name)
        if committed is not None and committed.has_ended:
            return committed
        if committed is not None:
            _check_pause(attempt, committed)
        _check_wanted(row, call)
        if not call.is_undo:
            row.check_capacity()
        fields, rows = _stored(attempt, call, owner, call.run())
        ndb.put_multi(rows)
        ended = record.ends(DONE, attempt.now_s(), **fields)
        row.note(call.name, ended)
        return ended

    try:
        return attempt.transact(body)
    except BadValueError as error:
        _give_up(attempt, call, record, error)
    except (*TRANSIENT, BadStepError, LeasedError):
        raise  # No error of the step.
    except APP_ERRORS as error:
        return _failed(attempt, call, record, error)


def _stored(
    attempt: FlowAttempt, call: StepCall, owner: str, value: Any
) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """Return the fields of a record with the call's result, and the rows that it needs.

    Nobody reads what an undo returns: the row has room for all undos without.

    Raises:
        BadValueError: it cannot be stored.
    """
    if call.is_undo:
        return {}, []
    text = values.dump(call.function, value)
    return values.stored(attempt.run_id, owner, text, beside=attempt.row)


def _failed(
    attempt: FlowAttempt, call: StepCall, record: StepRecord, error: BaseException
) -> StepRecord:
    """Note the error of a call: it is made again later, or that was the last time."""
    now_s = attempt.now_s()
    text = _describe(error, MAX_UNDO_ERROR_BYTES if call.is_undo else MAX_ERROR_BYTES)
    if isinstance(error, Reject):
        return _ended(attempt, call, record.ends(FAILED, now_s, error=text, is_reject=True))
    is_late = call.policy.is_over(0, attempt.clients.clock.now())
    is_counted = is_late or (attempt.is_undoing and not call.is_undo)
    if isinstance(error, Retry) and error.after_s is not None and not is_counted:
        pause_s = error.after_s
    elif isinstance(error, (Retry, Unavailable, *TRANSIENT)) and not is_counted:
        pause_s = UNAVAILABLE_FOR_S
    else:
        log.error("%s: the step %s failed", attempt.run_id, call.name, exc_info=error)
        record = replace(record, attempts=record.attempts + 1)
        if call.policy.is_over(record.attempts, attempt.clients.clock.now()):
            return _ended(attempt, call, record.ends(FAILED, now_s, error=text))
        pause_s = call.policy.pause_s(record.attempts)
    waiting = replace(record, error=text, until=now_s + pause_s, is_called=False)

    def transition(row: FlowRun) -> StepRecord | Wait:
        ended = row.step(call.name)
        if ended is not None and ended.has_ended:
            return ended  # By a delivery that overlaps.
        _check_wanted(row, call)
        row.note(call.name, waiting)
        return Wait(utc_at(waiting.until))

    return attempt.continue_or_wait(transition)


def _give_up(
    attempt: FlowAttempt, call: StepCall, record: StepRecord, error: BadValueError
) -> NoReturn:
    """Note that a result cannot be stored; the code's mistake ends the flow's attempt."""
    _ended(attempt, call, record.ends(FAILED, attempt.now_s(), error=_describe(error)))
    raise BadStepError(f"the step {call.name!r}: {error}", step=call.name) from error


def _ended(
    attempt: FlowAttempt, call: StepCall, record: StepRecord, rows: Sequence[Any] = ()
) -> StepRecord:
    def transition(row: FlowRun) -> StepRecord:
        _check_wanted(row, call)
        return row.end_step(call.name, record)

    return attempt.change(transition, rows)


def _check_wanted(row: FlowRun, call: StepCall) -> None:
    """Check that a commit step still counts: what it has read may be of after a cancellation.

    Raises:
        Unwinding: the flow is being undone, and the step has had no effect.
    """
    if call.kind == "commit":
        _check_can_start(row, call)


def _check_pause(attempt: FlowAttempt, record: StepRecord) -> None:
    """Check that a step does not pause: another delivery may have written that since it was read.

    Raises:
        Suspended: it does, and the other delivery has seen to its wake.
    """
    if record.until > attempt.now_s():
        raise Suspended


def _check_can_start(row: FlowRun, call: StepCall) -> None:
    """Check that a call may begin: a flow that is being undone begins none but its undos.

    Raises:
        Unwinding: it may not.
    """
    if row.state == UNDOING and not (call.is_undo or row.passes_new):
        raise Unwinding


def _describe(error: BaseException, most: int = MAX_ERROR_BYTES) -> str:
    return within_json(storable(describe_error(error), most), most)
