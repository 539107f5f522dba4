"""Steps that wait: for a time, for an event, for a batch. No worker waits with them."""

from __future__ import annotations

import contextlib
import datetime
import numbers
from collections.abc import Sequence
from typing import Any, NoReturn

from google.cloud import ndb

from rollforward.batches import Completed, TaskBatch, UnknownBatchError
from rollforward.batches.adding.populate import MemberWork
from rollforward.batches.errors import BadWorkError, ClosedError, DifferentWorkError
from rollforward.datastore.transactions import transact
from rollforward.flows.errors import BadStepError, Unwinding
from rollforward.flows.rows import pending, values
from rollforward.flows.rows.entities import RUNNING, UNDOING, FlowRun, run_key
from rollforward.flows.rows.events import MAX_NAME_BYTES, taken
from rollforward.flows.rows.records import DONE, StepRecord
from rollforward.flows.steps.attempt import FlowAttempt, Wait
from rollforward.flows.wakes import FlowArgs, due_at, wake_after_commit
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import utc_at
from rollforward.runtime.texts import plain_text
from rollforward.runtime.type_adapters import adapter_of
from rollforward.tasks.declaration import Task
from rollforward.tasks.runs import RunLink
from rollforward.tasks.stored.distant import MAX_AHEAD_S
from rollforward.tasks.stored.names import hashed_name

Members = Sequence[MemberWork]


class FlowBatch(TaskBatch):
    """The batches of the flows of one name."""

    def __init__(
        self,
        flow: str,
        task: Task[FlowArgs],
        members: Sequence[Task[Any]],
        *,
        queue: str,
        keep: datetime.timedelta,
    ) -> None:
        self._flow = flow

        def note_end(clients: Clients, args: Completed) -> None:
            note_batch(clients, flow, task, args)

        done = Task(f"/tasks/flows/{flow}/batch", queue, Completed, note_end)
        super().__init__(f"flow-{flow}", members=members, on_complete=done, keep=keep)

    def waiter(self, batch_id: str) -> RunLink | None:
        """Return the flow that waits for a batch."""
        flow_id, _, _ = batch_id.partition("|")
        return RunLink("flows", f"{self._flow}|{flow_id}")


def end_of(name: str, now_s: float, wait_s: float, until: datetime.datetime | None) -> float:
    """Return when a sleep that begins now ends, in seconds since 1970.

    Raises:
        BadStepError: it ends at no time.
    """
    if until is None:
        return now_s + wait_s
    if not isinstance(until, datetime.datetime):
        raise BadStepError(f"the step {name!r} must wait until an aware time, got {until!r:.100}")
    return until.timestamp()


def check_ahead(name: str, wait_s: float) -> None:
    """Check that a step waits for a number of seconds, and for no longer than ten years.

    Raises:
        BadStepError: it does not.
    """
    if not isinstance(wait_s, numbers.Real) or not -MAX_AHEAD_S <= wait_s <= MAX_AHEAD_S:
        raise BadStepError(
            f"the step {name!r} must wait for some seconds, ten years at most, got {wait_s!r:.100}"
        )


def check_until(name: str, until: datetime.datetime, wait_s: float) -> None:
    """Check that a step waits until an aware time, and for none beside it.

    Raises:
        BadStepError: it would wait for another time than its caller means.
    """
    if until.tzinfo is None:
        raise BadStepError(f"the step {name!r} must wait until an aware time, got {until}")
    if wait_s:
        raise BadStepError(
            f"the step {name!r} must wait until a time or for some, got both {until} and "
            f"{wait_s:g} s"
        )


def is_over(attempt: FlowAttempt, name: str, until_s: float) -> bool:
    """Return whether a sleep is over, which its first call has set an end to.

    It is over for good once a step has begun after its end, even if this machine's clock is behind.
    """
    record = attempt.row.step(name)
    if record is None:
        return until_s <= attempt.now_s()
    records = attempt.row.records()
    others = list(records.values())[list(records).index(name) :]  # Not what began before it.
    return record.until <= max(attempt.now_s(), *(other.began for other in others))


def sleep(attempt: FlowAttempt, name: str, until_s: float) -> NoReturn:
    """Wait until a time, in seconds since 1970, that the first call has set."""
    now_s = attempt.now_s()
    waiting = attempt.row.step(name)
    if waiting is not None:
        attempt.check_parked(utc_at(waiting.until))

    def transition(row: FlowRun) -> Wait:
        check_running(row)
        record = row.step(name) or started(row, StepRecord("sleep", began=now_s, until=until_s))
        row.note(name, record)
        return Wait(utc_at(record.until))

    attempt.continue_or_wait(transition)
    raise AssertionError("unreachable")


def check_running(row: FlowRun) -> None:
    """Check that a flow was not cancelled meanwhile: it would wait instead of being undone.

    Raises:
        Unwinding: it was.
    """
    if row.state == UNDOING:
        raise Unwinding


def started(row: FlowRun, record: StepRecord) -> StepRecord:
    """Return the record of a step that begins now, if the row has room for it.

    Raises:
        BadStepError: it has not.
    """
    row.check_capacity()
    return record


def check_event(name: str, event: object) -> None:
    """Check that an event can be sent: a step would wait for another one for ever.

    Raises:
        BadStepError: no event has this name.
    """
    is_text = isinstance(event, str) and bool(event) and event.isprintable()
    if not is_text or len(str(event).encode()) > MAX_NAME_BYTES:
        raise BadStepError(
            f"the step {name!r} must wait for an event whose name is printable and has 1 to "
            f"{MAX_NAME_BYTES} bytes, got {event!r:.100}"
        )


def wait_for_event(
    attempt: FlowAttempt, name: str, event: str, timeout_s: float | None
) -> StepRecord:
    """Take an event, or find that it did not come in time: one commit decides it."""
    now_s = attempt.now_s()
    until_s = 0.0 if timeout_s is None else now_s + timeout_s
    waiting = attempt.row.step(name)
    if waiting is None:
        check_event(name, event)
    else:
        attempt.check_parked(utc_at(waiting.until) if waiting.until else None)

    def transition(row: FlowRun) -> StepRecord | Wait:
        first = StepRecord("wait", began=now_s, until=until_s, event=event)
        record = row.step(name) or started(row, first)
        if not record.has_ended:
            check_running(row)
            record = taken(row, record, now_s)
            row.note(name, record)
        if record.has_ended:
            return record
        return Wait(utc_at(record.until) if record.until else None)

    return attempt.continue_or_wait(transition)


def wait_for_batch(
    attempt: FlowAttempt, batch: TaskBatch, name: str, members: Members
) -> StepRecord:
    """Note a batch, start it, and wait for its end."""
    batch_id = _batch_id(attempt.row, name)
    began = StepRecord("batch", began=attempt.now_s(), batch=batch_id)

    def note(row: FlowRun) -> StepRecord:
        check_running(row)
        row.check_capacity()
        return row.end_step(name, row.step(name) or began)

    record = attempt.row.step(name)
    if record is not None:
        attempt.check_parked(None)
    record = record or attempt.change(note)
    if record.has_ended:
        return record
    try:
        batch.populate(attempt.clients, record.batch, members, seal=True)
    except (ClosedError, DifferentWorkError):
        pass  # It was started with what the code said then, or the flow was undone before.
    except BadWorkError as error:
        raise BadStepError(f"the step {name!r}: {error}") from error

    def transition(row: FlowRun) -> StepRecord | Wait:
        record = row.step(name) or began
        if record.has_ended:
            return record
        check_running(row)
        return Wait()

    return attempt.continue_or_wait(transition)


def _batch_id(row: FlowRun, name: str) -> str:
    """Return an id that no batch of another flow of this id had, nor one of an earlier run."""
    once = hashed_name(row.created.isoformat(), row.generation)[:12]
    return f"{row.flow_id}|{plain_text(name)}|{once}"


def note_batch(clients: Clients, flow: str, task: Task[FlowArgs], args: Completed) -> None:
    """Note the end of a batch as the outcome of its step, and wake the flow."""
    flow_id, name, once = args.batch_id.rsplit("|", 2)
    run_id = f"{flow}|{flow_id}"

    def body() -> None:
        row = pending.get(run_key(run_id))
        record = row.step(name) if row is not None else None
        if row is None or record is None or record.has_ended or record.batch != args.batch_id:
            return
        text = adapter_of(Completed).dump_json(args).decode()
        fields, rows = values.stored(run_id, f"batch-{once}-{name}", text)
        row.note(name, record.ends(DONE, clients.clock.now().timestamp(), **fields))
        ndb.put_multi(rows)
        if row.state == RUNNING:
            row.due = due_at(clients)
            wake_after_commit(clients, task, row)
        pending.put(row)

    transact(body)


def open_batches(row: FlowRun) -> list[str]:
    """Return the ids of the batches that a flow has noted, and whose end it has not."""
    records = row.records().values()
    return [record.batch for record in records if record.batch and not record.has_ended]


def cancel_batches(attempt: FlowAttempt, batch: TaskBatch | None) -> None:
    """Cancel the batches that a flow waits for: it is being undone.

    One that was noted and never started is made, empty, and cancelled: the delivery that noted it
    may be alive, and must not start it once the flow has ended.
    """
    if batch is None:
        return
    for batch_id in open_batches(attempt.row):
        with contextlib.suppress(UnknownBatchError):  # Its rows were deleted.
            batch.populate(attempt.clients, batch_id, [])
            batch.cancel(attempt.clients, batch_id)
