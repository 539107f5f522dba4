"""Changes of a flow by others: start, signal, cancel and retry, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from google.api_core import exceptions as rpc_errors

from rollforward.datastore import current
from rollforward.datastore.contexts import refuse_other_namespace
from rollforward.datastore.transactions import (
    OUTCOME_UNKNOWN,
    Transaction,
    current_transaction,
    is_in_transaction,
    run_attempts,
    transact,
)
from rollforward.datastore.versions import read_versions
from rollforward.flows.errors import (
    BadFlowError,
    FlowEndedError,
    FlowRefusedError,
    UnknownFlowError,
)
from rollforward.flows.rows import events, pending, values
from rollforward.flows.rows.entities import (
    CANCELLED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    UNDOING,
    FlowRun,
    run_key,
)
from rollforward.flows.rows.records import FAILED as STEP_FAILED
from rollforward.flows.rows.values import BadValueError
from rollforward.flows.turns import add_turn
from rollforward.flows.wakes import due_at, wake, wake_after_commit
from rollforward.lanes.declaration import LaneKey
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sharing.conditional_writes import insert_together
from rollforward.runtime.sharing.shared_transaction import SharedBody, transact_shared
from rollforward.runtime.texts import plain_text

if TYPE_CHECKING:
    from rollforward.flows.declaration import Flow

T = TypeVar("T")

MAX_FLOW_ID_BYTES = 100
MAX_KNOWN_RETRIES = 20


def run_id_of(name: str, flow_id: str) -> str:
    """Return the id of a flow among all flows.

    Raises:
        BadFlowError: there can be no flow of this id.
        OtherNamespaceError: two tenants would start one flow by one id.
    """
    refuse_other_namespace(f"the flow {name}")
    if not isinstance(flow_id, str) or not flow_id or not flow_id.isprintable():
        raise BadFlowError(f"flow_id must be printable and not empty, got {flow_id!r:.100}")
    if set(flow_id) & set(":;|"):
        raise BadFlowError(f"flow_id must not have : ; or |, got {flow_id!r:.100}")
    if len(flow_id.encode()) > MAX_FLOW_ID_BYTES:
        raise BadFlowError(
            f"flow_id must have at most {MAX_FLOW_ID_BYTES} bytes, got {flow_id!r:.200}"
        )
    return f"{name}|{plain_text(flow_id)}"


def start(
    clients: Clients, flow: Flow[Any], flow_id: str, args: str, lane: LaneKey | None = None
) -> bool:
    """Write the row of a flow, unless there is one; return whether this call did.

    Args:
        lane: The key of a lane that all its deliveries go through; None: none.
    """
    key = run_key(run_id_of(flow.name, flow_id))
    if lane is None and not is_in_transaction():
        row = _new_row(clients, key, args, clients.new_id())
        try:
            is_first = _insert(clients, row)
        except OUTCOME_UNKNOWN:
            wake(clients, flow.task, row)  # If it is there, it waits for no sweep.
            raise
        if is_first:
            wake(clients, flow.task, row)
        return is_first

    def body() -> bool:
        transaction = current_transaction()
        row = pending.get(key)
        if row is None:
            row = _new_row(clients, key, args, transaction.id)
            if lane is not None:
                add_turn(clients, flow.task, row, lane)
            pending.put(row)
        elif row.started_by != transaction.id:
            return False
        # A body that runs again may have other arguments, such as the time.
        is_second = transaction.count(f"start {key.id()}") > 1
        if is_second and row.args != args:
            return False
        if lane is None:
            wake_after_commit(clients, flow.task, row)
        return True

    # The place in a lane is looked up beside the transaction.
    return body() if is_in_transaction() else transact(body)


def _new_row(clients: Clients, key: Any, args: str, started_by: str) -> FlowRun:
    created = naive_utc(clients.clock.now())
    return FlowRun(key=key, args=args, created=created, started_by=started_by, due=due_at(clients))


def _insert(clients: Clients, row: FlowRun) -> bool:
    """Insert the row of a flow, in one round trip that starters share; return whether it is new.

    If that is refused, or its reply was lost, the row says whose it is.
    """

    def is_current() -> bool | None:
        [stored] = read_versions(clients.datastore, [row.key])
        return None if stored is None else bool(stored[0].started_by == row.started_by)

    def attempt(transaction: Transaction) -> bool:
        if transaction.doubt is not None and (found := is_current()) is not None:
            return found
        try:
            insert_together(clients, row)
        except rpc_errors.AlreadyExists:
            if (found := is_current()) is None:
                message = "it was deleted meanwhile"
                raise rpc_errors.Aborted(message) from None  # type: ignore[no-untyped-call]
            return found
        return True

    return run_attempts(attempt)


def signal(
    clients: Clients, flow: Flow[Any], flow_id: str, event: str, payload: Any, event_id: str
) -> bool:
    """Keep an event for a flow, once for its id; return whether this call did."""
    key = run_key(run_id_of(flow.name, flow_id))
    _check("event", event, events.MAX_NAME_BYTES)
    if event_id:
        _check("event_id", event_id, events.MAX_ID_BYTES)
    try:
        text = values.dump_plain(payload)
    except BadValueError as error:
        raise BadFlowError(f"payload: {error}") from error

    def body() -> bool:
        transaction = current_transaction()
        row = _existing(pending.get(key), flow_id)
        own = transaction.id_of("event", key.id(), event, text)
        unique = event_id or own
        if unique in row.event_ids:  # By this very call, if a reply was lost.
            return bool(row.event_ids[unique] == transaction.id)
        if row.has_ended:
            raise FlowEndedError(
                f"the flow {flow_id!r} has ended as {row.state}: it takes no event"
            )
        if len(row.events) >= events.MAX_UNREAD and not events.is_missing(row, event):
            raise FlowRefusedError(
                f"the flow {flow_id!r} has {events.MAX_UNREAD} events that no step has taken"
            )
        fields, rows = values.stored(key.id(), f"event-{own}", text)
        events.add(row, event, unique, clients.clock.now().timestamp(), dict(fields))
        row.event_ids = events.last_ids({**row.event_ids, unique: transaction.id})
        if events.is_expected(row, event) and row.state == RUNNING:
            row.due = due_at(clients)
            wake_after_commit(clients, flow.task, row)
        for stored in rows:
            current.put(stored)
        pending.put(row)
        return True

    return _transact(clients, key, body, writes=6)


def cancel(clients: Clients, flow: Flow[Any], flow_id: str, *, request_id: str = "") -> bool:
    """Undo a flow that has not ended, once for a request; return if it will end as cancelled."""
    key = run_key(run_id_of(flow.name, flow_id))
    if request_id:
        _check("request_id", request_id, events.MAX_ID_BYTES)

    def body() -> bool:
        transaction = current_transaction()
        row = _existing(pending.get(key), flow_id)
        unique = cancellation_id(request_id or transaction.id)
        # By this very call, if a reply was lost. A second one would leave what cannot be undone.
        is_repeated = unique in row.retries
        if row.has_ended or row.state == UNDOING or is_repeated:
            return bool(row.verdict == CANCELLED)
        row.skips_unknown = row.state == FAILED and row.verdict is not None
        row.passes_new = False
        row.generation += row.state == FAILED  # It runs again.
        _reopen(row)
        row.state, row.verdict, row.failure = UNDOING, row.verdict or CANCELLED, None
        row.retries = events.last_ids({**row.retries, unique: transaction.id}, MAX_KNOWN_RETRIES)
        row.due = due_at(clients)
        pending.put(row)
        wake_after_commit(clients, flow.task, row)
        return bool(row.verdict == CANCELLED)

    return _transact(clients, key, body)


def cancellation_id(request_id: str) -> str:
    """Return the id by which a row knows a request to cancel; one to retry has no prefix.

    >>> cancellation_id("r1")
    'cancel r1'
    """
    return f"cancel {request_id}"


def retry(
    clients: Clients,
    flow: Flow[Any],
    flow_id: str,
    from_step: str,
    *,
    generation: int = 0,
    request_id: str = "",
    new_calls: bool = False,
) -> bool:
    """Run a flow again that has failed, or any flow from one of its steps, once for a request.

    Args:
        generation: Refuse it if the flow was retried since it had this one; 0: in any.
        new_calls: Let a flow that is being undone make calls that it never began.

    Returns:
        False: a call with this request's id has done it before.
    """
    key = run_key(run_id_of(flow.name, flow_id))
    if request_id:
        _check("request_id", request_id, events.MAX_ID_BYTES)

    def body() -> bool:
        transaction = current_transaction()
        row = _existing(pending.get(key), flow_id)
        unique = request_id or transaction.id
        if unique in row.retries:  # By this very call, if a reply was lost.
            return bool(row.retries[unique] == transaction.id)
        if generation not in (0, row.generation):
            raise FlowRefusedError(f"the flow {flow_id!r} was retried meanwhile: look at it again")
        _check_retried(row, flow_id, from_step)
        if from_step:
            _drop_from(row, from_step)
        _reopen(row)
        row.state = UNDOING if row.verdict else RUNNING
        row.passes_new = new_calls and row.verdict is not None
        row.generation += 1
        row.ended = row.expires = row.result = row.failure = None
        row.retries = events.last_ids({**row.retries, unique: transaction.id}, MAX_KNOWN_RETRIES)
        row.due = due_at(clients)
        pending.put(row)
        wake_after_commit(clients, flow.task, row)
        return True

    return _transact(clients, key, body)


def _check_retried(row: FlowRun, flow_id: str, from_step: str) -> None:
    if row.state not in (FAILED, SUCCEEDED):
        raise FlowRefusedError(
            f"the flow {flow_id!r} is {row.state}: only one that has failed or succeeded can be "
            "retried"
        )
    if row.state == SUCCEEDED and not from_step:
        raise FlowRefusedError(f"the flow {flow_id!r} has succeeded: say from which step")
    if from_step and from_step not in row.steps:
        raise FlowRefusedError(f"the flow {flow_id!r} has no step {from_step!r}")
    if from_step and row.verdict:
        raise FlowRefusedError(f"the flow {flow_id!r} is being undone: retry it as it is")


def _drop_from(row: FlowRun, from_step: str) -> None:
    """Drop the outcomes of a step and all later ones; keep their events again."""
    names = list(row.steps)
    dropped = names[names.index(from_step) :]
    records = row.records()
    reruns = dict(row.reruns)
    for name in reversed(dropped):
        if records[name].event_id:
            events.restore(row, records[name])
        if records[name].has_ended:
            reruns[name] = reruns.get(name, 0) + 1
    row.steps = {name: body for name, body in row.steps.items() if name not in dropped}
    row.reruns = reruns


def _reopen(row: FlowRun) -> None:
    """Let the step that a flow has failed at run again, and end the pauses of others.

    Other steps that have failed have an outcome: the code went another way.
    """
    for name, record in row.records().items():
        has_failed = row.state == FAILED and name == row.failed_step
        if has_failed and record.state == STEP_FAILED:
            row.note(name, record.reopened())
        elif record.kind in ("commit", "outside") and not record.has_ended:
            row.note(name, replace(record, until=0.0))
    row.failed = row.failed_step = None


def _existing(row: FlowRun | None, flow_id: str) -> FlowRun:
    if row is None:
        raise UnknownFlowError(f"there is no flow {flow_id!r}, or its rows were deleted")
    return row


def _check(field: str, text: object, max_bytes: int) -> None:
    if not isinstance(text, str) or not text.isprintable() or not text:
        raise BadFlowError(f"{field} must be printable and not empty, got {text!r:.100}")
    if len(text.encode()) > max_bytes:
        raise BadFlowError(f"{field} must have at most {max_bytes} bytes, got {text!r:.200}")


def _transact(clients: Clients, key: Any, body: Callable[[], T], *, writes: int = 1) -> T:
    """Run a body in the transaction that this code runs in, or in one that callers share."""
    if is_in_transaction():
        return body()
    shared = SharedBody(
        lambda keys: body(), reads=lambda draw: [key], rows=frozenset([key]), writes=writes
    )
    return transact_shared(clients, shared)
