"""Ends of a task in a lane: it is deleted, waits for another turn, or becomes a dead task."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions as rpc_errors

from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.commit import Commit
from rollforward.datastore.conversion.protobufs import protobuf_of_key
from rollforward.datastore.transactions import TRANSIENT
from rollforward.lanes import hints
from rollforward.lanes.rows.entities import (
    EPOCH,
    LaneState,
    LaneTask,
    id_at,
    place_of,
    state_key,
    task_key,
)
from rollforward.lanes.runs.claims import Holder, put_state
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc, naive_utc
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.runtime.sharing.optimistic_transaction import transact_by_version
from rollforward.runtime.texts import both_ends, describe_error, error_with_stack
from rollforward.tasks import dead_tasks
from rollforward.tasks.dead_task_entities import error_class
from rollforward.tasks.declaration import Task, hashed_name
from rollforward.tasks.errors import (
    ArgumentsGoneError,
    BadArgumentsError,
    EndedError,
    OtherVersionError,
    Reject,
    Retry,
    TooLargeError,
    Unavailable,
)
from rollforward.tasks.stored import arguments, cancellation, deliveries
from rollforward.tasks.stored.names import MAX_BODY_BYTES
from rollforward.telemetry.metrics import Outcome

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 2_000
DELETE_ATTEMPTS = 4
PAUSE_S = 0.05
# The pause of a task that has lost a race, and of one whose service does not answer.
RACE_PAUSE_S = 0.5
UNAVAILABLE_PAUSE_S = 5.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# A deployment takes no longer.
VERSION_WAIT = datetime.timedelta(hours=1)
VERSION_PAUSE_S = 10.0
_BY_HANDLER = "; its handler failed: "


@dataclass(frozen=True)
class Later:
    """The task runs again after a pause.

    Attributes:
        is_failure: Whether that counts, so that it is given up one day.
        is_unknown: Whether only another version of the code can run it.
        failures: How many it has then; None: one more than before if this is one.
        outcome: As metrics have it.
    """

    pause_s: float
    reason: str
    is_failure: bool = False
    is_unknown: bool = False
    failures: int | None = None
    outcome: Outcome = Outcome.WAITING


@dataclass(frozen=True)
class Dead:
    """The task can never work."""

    reason: str


End = Later | Dead | None  # None: it is done.


def end_of(error: BaseException, *, failures: int, max_attempts: int) -> End:
    """Return what becomes of a task that has raised an error.

    Args:
        failures: How often it had failed before.
    """
    text = describe_error(error)
    if isinstance(error, (Reject, BadArgumentsError, TooLargeError)):
        return Dead(text)
    if isinstance(error, OtherVersionError):
        return unknown(text)
    if isinstance(error, Retry) and error.after_s is not None:
        return Later(error.after_s, text)
    if isinstance(error, (Retry, rpc_errors.Aborted)):
        return Later(RACE_PAUSE_S, text, outcome=Outcome.LOST_RACE)
    if isinstance(error, (Unavailable, *TRANSIENT)):
        return Later(UNAVAILABLE_PAUSE_S, text, outcome=Outcome.UNAVAILABLE)
    failures += 1
    if failures >= max_attempts:
        return Dead(f"gave up after {failures} failures: {error_with_stack(error)}")
    return Later(pause_s(failures), text, is_failure=True, outcome=Outcome.FAILED)


def unknown(reason: str) -> Later:
    """Return the end of a task that only another version of the code can run."""
    outcome = Outcome.OTHER_VERSION
    return Later(VERSION_PAUSE_S, reason, is_unknown=True, outcome=outcome)


def outcome_of(end: End) -> Outcome:
    """Return the outcome of a run, as metrics have it."""
    if isinstance(end, Later):
        return end.outcome
    return Outcome.DONE if end is None else Outcome.DEAD


def pause_s(failures: int) -> float:
    """Return the seconds to wait after a number of failures, at least one.

    >>> [pause_s(failures) for failures in (1, 2, 3, 7, 5_000)]
    [1.0, 2.0, 4.0, 60.0, 60.0]
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10))


def finish(holder: Holder, *tasks: LaneTask) -> None:
    """Delete tasks that are done: by one commit, one with more rows by a commit of its own.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: they may still be there, and run once more.
    """
    _delete(holder.clients, [task for task in tasks if not has_more_rows(task)])
    for task in tasks:
        if has_more_rows(task):
            _finish_all(holder.clients, task)


def _finish_all(clients: Clients, task: LaneTask, *, is_given_up: bool = False) -> None:
    """Delete a task with its stored arguments and its handle: a death leaves all or none."""

    def body() -> None:
        deliveries.finish_in_transaction(clients, task.body.encode(), is_given_up=is_given_up)
        task.key.delete()

    transact_by_version(clients, body)


def _delete(clients: Clients, tasks: Sequence[LaneTask]) -> None:
    """Delete tasks that have one row each."""
    for attempt in range(1, DELETE_ATTEMPTS + 1 if tasks else 0):
        commit = Commit(clients.datastore)
        for task in tasks:
            commit.delete(protobuf_of_key(task.key))
        try:
            apply_together(clients, commit)
        except TRANSIENT:
            if attempt == DELETE_ATTEMPTS:
                raise
            clients.clock.sleep(PAUSE_S * attempt)
        else:
            return


def has_more_rows(task: LaneTask) -> bool:
    """Return whether a task has rows of its own beside its place in the lane."""
    envelope = arguments.envelope_of(task.body.encode())
    return bool(envelope.stored or envelope.handle)


def reschedule(holder: Holder, task: LaneTask, end: Later) -> bool:
    """Let a task wait for another turn: in an order at its place, else behind others.

    Returns:
        False: the delivery has lost its claim, or the task is gone, and nothing was changed.
    """
    clients, lane = holder.clients, holder.lane
    now_utc = clients.clock.now()
    # Tasks of a key that fail together share a hint.
    until = rounded(now_utc + datetime.timedelta(seconds=end.pause_s))

    moved_id = _id_at(task, holder.lane_id, place_of(until))

    def body() -> bool:
        row, state = _owned(holder, task)
        if row is None or state is None:
            # The reply to a commit that has moved it may have been lost.
            return state is not None and not lane.order and task_key(moved_id).get() is not None
        row.failures = task.failures + end.is_failure if end.failures is None else end.failures
        row.waits = task.waits + (not end.is_failure)
        row.reason = both_ends(end.reason, MAX_REASON_CHARS)
        row.not_before = naive_utc(until)
        row.unknown_since = (row.unknown_since or naive_utc(now_utc)) if end.is_unknown else None
        if lane.order:
            state.head = row.key.id()
            put_state(clients, state)
            row.put()
        else:
            _move(row, moved_id)
        return True

    is_postponed = transact_by_version(clients, body)
    if is_postponed:
        arguments.keep(clients, task.body.encode())
        hints.hint_at(clients, lane.task, holder.lane_id, until)
    return is_postponed


def _id_at(task: LaneTask, lane_id: str, place: int) -> str:
    return id_at(lane_id, place, task.key.id().rpartition("-")[2])


def _move(row: LaneTask, row_id: str) -> None:
    """Write a task at another place, in a transaction."""
    row.key.delete()
    row.key, row.place = task_key(row_id), row_id
    row.put()


def give_up(
    holder: Holder, task: LaneTask, declared: Task[Any] | None, reason: str
) -> Dead | Later:
    """Let a task's declaration handle its end, or keep it as a dead task; then delete it.

    A handler that fails is called again later, as often as the task may fail; an outage does
    not count. One whose arguments cannot be read is not called.
    """
    clients = holder.clients
    if declared is not None and declared.on_give_up is not None:
        try:
            args = declared.read(deliveries.begin(clients, task.body.encode()))
        except (ArgumentsGoneError, BadArgumentsError, EndedError):
            args = None
        if args is not None and task.failures < 2 * declared.max_attempts:
            return _handled(holder, task, declared, args, reason)
    _keep_dead_task(holder, task, reason)
    return Dead(reason)


def _handled(
    holder: Holder, task: LaneTask, declared: Task[Any], args: Any, reason: str
) -> Dead | Later:
    clients = holder.clients
    assert declared.on_give_up is not None
    try:
        run_app(declared.on_give_up, clients, args, reason)
    except APP_ERRORS as error:
        log.exception("the handler of a task that was given up failed: %r", task.path[:100])
        return _handled_later(task, declared, error, reason)
    fields = {"error_class": error_class(reason)}
    log.error("gave up %r: %s", task.path[:100], reason, extra=fields)
    _finish_all(clients, task, is_given_up=True)
    return Dead(reason)


def _handled_later(task: LaneTask, declared: Task[Any], error: BaseException, reason: str) -> Later:
    """Let a task wait that is still to be given up when its turn comes."""
    if task.failures >= declared.max_attempts and task.reason:  # It was tried before.
        reason = str(task.reason).partition(_BY_HANDLER)[0]
    text = f"{reason}{_BY_HANDLER}{describe_error(error)}"
    if isinstance(error, (Retry, Unavailable, *TRANSIENT)):
        after_s = getattr(error, "after_s", None) or UNAVAILABLE_PAUSE_S
        failures = max(declared.max_attempts, int(task.failures))
        return Later(after_s, text, failures=failures, outcome=Outcome.UNAVAILABLE)
    failures = max(declared.max_attempts, int(task.failures) + 1)
    return Later(
        pause_s(failures), text, is_failure=True, failures=failures, outcome=Outcome.FAILED
    )


def _keep_dead_task(holder: Holder, task: LaneTask, reason: str) -> None:
    """Keep a task as a dead task, and delete it."""
    clients, lane, body = holder.clients, holder.lane, task.body.encode()
    dead_id = hashed_name("lane", task.key.id())

    def keep() -> None:
        row, state = _owned(holder, task)
        if row is None or state is None:
            return
        dead_tasks.dead_letter_in_transaction(
            clients,
            dead_id=dead_id,
            path=task.path,
            queue=lane.queue,
            body=arguments.hold(body, dead_id, MAX_BODY_BYTES),
            reason=reason,
            deliveries=task.failures + task.waits + 1,
            lane_task=task.key.id(),
        )
        handle = arguments.envelope_of(body).handle
        cancellation.expire_row(clients, handle)
        cancellation.note_death(handle, dead_id)
        row.key.delete()
        if lane.order and lane.on_dead == "block":
            state.blocked_by = dead_id
            put_state(clients, state)

    transact_by_version(clients, keep)


def rounded(at: datetime.datetime) -> datetime.datetime:
    """Return a time, rounded up to a quarter of a second."""
    quarter = datetime.timedelta(seconds=0.25)
    return at + (EPOCH.replace(tzinfo=datetime.UTC) - at) % quarter


def is_unknown_for_long(end: Later, task: LaneTask, now_utc: datetime.datetime) -> bool:
    """Return whether no version has known a task for longer than a deployment takes."""
    since = aware_utc(task.unknown_since)
    return end.is_unknown and since is not None and now_utc - since >= VERSION_WAIT


def _owned(holder: Holder, task: LaneTask) -> tuple[LaneTask | None, LaneState | None]:
    """Return the row of a task and the state of its key, if both are still this delivery's.

    The row first: who takes the claim away writes it (`put_without_claim`), and a delivery that
    gives its claim back with an error does. So a commit under a claim that is gone is refused,
    although it may not write the state.
    """
    row: LaneTask | None = task.key.get()
    state: LaneState | None = state_key(holder.lane_id).get()
    if state is None or state.claim_of(holder.claim.owner) is None:
        return None, None
    return row, state
