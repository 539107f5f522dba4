"""A flow for people: what it has done, what it waits for, what went wrong, and what may be done."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence

from rollforward.flows.reading import steps_of
from rollforward.flows.rows.entities import (
    CANCELLED,
    FAILED,
    REJECTED,
    RUNNING,
    SUCCEEDED,
    UNDOING,
    FlowRun,
)
from rollforward.flows.rows.records import FAILED as STEP_FAILED
from rollforward.flows.rows.records import StepRecord
from rollforward.runtime.clock import aware_utc, utc_at
from rollforward.tasks.runs import (
    OUTCOMES,
    Fact,
    Run,
    RunDetails,
    RunIssue,
    RunLink,
    RunPart,
    RunSpan,
    RunState,
    RunVerb,
)

PATTERN = "flows"
MAX_EXCERPT_CHARS = 200
# Of a flow of a thousand steps: the last ones, and those of the picture.
MAX_ROWS = 200
MAX_SPANS = 50
STEP_OUTCOMES = ("done", "failed", "retrying", "waiting")

Records = dict[str, StepRecord]


def run_of(names: Sequence[str], row: FlowRun) -> Run:
    """Return a flow as a list shows it.

    Args:
        names: The flows that this app declares; others are shown, and cannot be changed.
    """
    records = steps_of(row)
    counts = Counter(outcome_of(record) for record in records.values())
    note, until_s = _waits(row, records)
    return Run(
        pattern=PATTERN,
        id=row.key.id(),
        name=name_of(row),
        state=state_of(row),
        args=row.args,
        started=row.created.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.ended),
        counts={name: counts[name] for name in STEP_OUTCOMES},
        expected=len(records),
        verbs=actions_of(names, row),
        note=note,
        waits_until=utc_at(until_s) if until_s else None,
        reason=row.failure or row.other_version or row.reason or "",
    )


def details_of(names: Sequence[str], row: FlowRun) -> RunDetails:
    """Return a flow with its steps: the last ones, if there are many."""
    records = steps_of(row)
    progressed = max([record.ended or record.began for record in records.values()], default=0.0)
    at = utc_at(progressed) if progressed else row.created.replace(tzinfo=datetime.UTC)
    letters = "".join(OUTCOMES[outcome_of(record)] for record in records.values())
    shown = dict(list(records.items())[-MAX_ROWS:])
    return RunDetails(
        run=run_of(names, row),
        parts=[RunPart("steps", letters, row.generation, at)] if letters else (),
        issues=_issues(row, records),
        numbers=_numbers(row, records),
        rows=_rows(name_of(row), shown),
        left_out=len(records) - len(shown),
        starts=_retryable_steps(names, row, records),
        spans=[_span(row, name, record) for name, record in list(shown.items())[-MAX_SPANS:]],
        result=row.result or "",
    )


def name_of(row: FlowRun) -> str:
    """Return the name that the app declares the flow by."""
    return str(row.key.id()).partition("|")[0]


def state_of(row: FlowRun) -> RunState:
    """Return a flow's state in the words of all runs."""
    if row.state == FAILED:
        return "failed"
    if row.state in (RUNNING, UNDOING):
        return "running"
    return "cancelled" if row.state in (CANCELLED, REJECTED) else "finished"


def actions_of(names: Sequence[str], row: FlowRun) -> Sequence[RunVerb]:
    """Return what may be done to a flow as it is now."""
    if name_of(row) not in names:
        return ()
    if row.state == FAILED:
        return ("retry", "cancel")
    return ("cancel",) if row.state == RUNNING else ()


def outcome_of(record: StepRecord) -> str:
    """Return the outcome of a step, in the words of all items."""
    if record.state == STEP_FAILED:
        return "failed"
    if record.has_ended:
        return "done"
    return "retrying" if record.error else "waiting"


def _retryable_steps(names: Sequence[str], row: FlowRun, records: Records) -> Sequence[str]:
    """Return the steps from which a flow can be retried now."""
    is_open = row.state == SUCCEEDED or (row.state == FAILED and not row.verdict)
    if not is_open or name_of(row) not in names:
        return ()
    return [name for name, record in records.items() if not record.is_undo]


def _waits(row: FlowRun, records: Records) -> tuple[str, float]:
    """Return what a flow does or waits for now, and until when, in seconds since 1970; 0: open."""
    if row.state in (REJECTED, CANCELLED):
        return row.state, 0.0
    if row.state not in (RUNNING, UNDOING):
        return "", 0.0
    if row.other_version:
        return "waits for another version of the code", 0.0
    if row.turn is not None:
        return "waits for its turn in its lane", 0.0
    prefix = "undoes its steps; " if row.state == UNDOING else ""
    for name, record in reversed(records.items()):
        if not record.has_ended and (row.state == RUNNING or record.is_undo):
            return prefix + _wait(name, record), record.until
    return prefix.removesuffix("; "), 0.0


def _wait(name: str, record: StepRecord) -> str:
    if record.kind == "wait":
        return f"waits for the event {record.event}{', times out' if record.until else ''}"
    if record.kind == "sleep":
        return f"sleeps for {name}, wakes"
    if record.kind == "batch":
        return f"waits for the batch of {name}"
    return f"retries {name}" if record.error else f"works on {name}"


def _numbers(row: FlowRun, records: Records) -> Mapping[str, Fact]:
    _, until_s = _waits(row, records)
    facts: dict[str, Fact] = {"flow": row.flow_id, "state": row.state}
    if row.lane:
        facts["lane"] = RunLink("lanes", row.lane)
    if until_s:
        facts["waits_until_at"] = until_s
    for record in records.values():
        if record.batch and not record.has_ended:
            facts["batch"] = _batch(name_of(row), record)
    if row.due is not None:
        facts["woken_at_the_latest_at"] = _seconds(row.due)
    if row.other_version_since is not None:
        facts["waits_for_version_since_at"] = _seconds(row.other_version_since)
    if row.failed_step:
        facts["failed_step"] = row.failed_step
    if row.verdict and row.verdict != row.state:
        facts["ends_as"] = row.verdict
    unread = Counter(event["name"] for event in row.events)
    events = [f"{name} × {count}" if count > 1 else name for name, count in unread.items()]
    facts["unread_events"] = _truncate(", ".join(events)) or "none"
    facts["runs"] = row.generation
    return facts


def _rows(flow: str, records: Records) -> Sequence[Mapping[str, Fact]]:
    """Return the table of steps, without the columns that none of them fills."""
    rows = [_row_of(flow, name, record) for name, record in records.items()]
    filled = {column for row in rows for column, cell in row.items() if cell not in ("", 0)}
    return [{column: cell for column, cell in row.items() if column in filled} for row in rows]


def _row_of(flow: str, name: str, record: StepRecord) -> dict[str, Fact]:
    return {
        "step": name,
        "kind": f"undo, {record.kind}" if record.is_undo else record.kind,
        "state": "rejected" if record.is_reject else outcome_of(record),
        "result": _result(record),
        "waits_for": _batch(flow, record) if record.batch else record.event,
        "failed_attempts": record.attempts,
        "in_doubt": record.doubts,
        "error": record.error,
        "began_at": record.began or "",
        "ended_at": record.ended or "",
        "until_at": record.until or "",
    }


def _result(record: StepRecord) -> str:
    if record.kind == "wait" and record.has_ended and not record.event_id:
        return "timed out"
    if record.rows:
        return f"large: in {record.chunks} {'row' if record.chunks == 1 else 'rows'} of its own"
    return "" if record.value == "null" else _truncate(record.value)


def _batch(flow: str, record: StepRecord) -> RunLink:
    return RunLink("batches", f"flow-{flow}:{record.batch}")


def _span(row: FlowRun, name: str, record: StepRecord) -> RunSpan:
    return RunSpan(
        label=name,
        outcome=outcome_of(record),
        began=utc_at(record.began or record.ended),
        ended=utc_at(record.ended) if record.ended else aware_utc(row.ended),
        is_wait=record.kind in ("sleep", "wait", "batch"),
    )


def _issues(row: FlowRun, records: Records) -> list[RunIssue]:
    issues = [
        RunIssue(name, outcome_of(record), record.error)
        for name, record in records.items()
        if record.error and (record.state == STEP_FAILED or not record.has_ended)
    ][-MAX_ROWS:]
    if row.failure or row.reason:
        issues.append(RunIssue("flow", "failed", row.failure or row.reason))
    return issues


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_EXCERPT_CHARS else f"{text[:MAX_EXCERPT_CHARS]}…"


def _seconds(at: datetime.datetime) -> float:
    """Return a stored time in seconds since 1970."""
    return at.replace(tzinfo=datetime.UTC).timestamp()
