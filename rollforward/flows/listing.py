"""Flows as an operator sees them: listed, looked at, cancelled, retried."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rollforward.flows.errors import FlowRefusedError, UnknownFlowError
from rollforward.flows.rows.entities import (
    CANCELLED,
    FAILED,
    REJECTED,
    RUNNING,
    UNDOING,
    FlowRun,
    flows_created_at,
    newest_flows,
    run_key,
)
from rollforward.flows.rows.records import FAILED as STEP_FAILED
from rollforward.flows.rows.records import StepRecord
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.runs import (
    Run,
    RunDetails,
    RunIssue,
    RunList,
    RunPart,
    RunQuery,
    RunRefusedError,
    RunState,
    RunVerb,
    UnknownRunError,
    newest,
)

if TYPE_CHECKING:
    from rollforward.flows.declaration import Flow

PATTERN = "flows"
MAX_SHOWN_CHARS = 200


def list_runs(names: Sequence[str], query: RunQuery) -> RunList:
    """Return flows, the newest first: about `limit`, of the rows that were read."""
    shown, next_before = newest(
        query,
        lambda end_utc: newest_flows(created_before=end_utc),
        flows_created_at,
        lambda row: row.created,
        partial(_is_asked_for, query),
    )
    return RunList([_run(names, row) for row in shown], next_before)


def run_details(names: Sequence[str], run_id: str) -> RunDetails:
    """Return a flow with its steps.

    Raises:
        UnknownRunError: it does not exist, or no more.
    """
    row = _row(run_id)
    records = row.records()
    progressed = max([record.ended or record.began for record in records.values()], default=0.0)
    at = _time(progressed) if progressed else row.created.replace(tzinfo=datetime.UTC)
    letters = "".join(map(_letter, records.values()))
    return RunDetails(
        run=_run(names, row),
        parts=[RunPart("steps", letters, row.generation, at)] if letters else (),
        issues=_issues(row, records),
        numbers={
            "state": row.state,
            "due": "an event" if row.due is None and row.state == RUNNING else _due(row),
            "generation": row.generation,
            "events_unread": len(row.events),
            "result": (row.result or "")[:MAX_SHOWN_CHARS],
        },
        rows=[_row_of(name, record) for name, record in records.items()],
    )


def control(clients: Clients, flows: Mapping[str, Flow[Any]], run_id: str, verb: RunVerb) -> str:
    """Cancel a flow, or retry one that has failed; return its id.

    Raises:
        UnknownRunError: it does not exist, or no more.
        RunRefusedError: not as it is now; the text says why.
    """
    row = _row(run_id)
    flow = flows.get(_name(row))
    if flow is None:
        raise RunRefusedError(f"this app declares no flow {_name(row)}")
    if verb not in _verbs(list(flows), row):
        raise RunRefusedError(f"it is a flow that is {row.state}")
    try:
        if verb == "cancel":
            flow.cancel(clients, row.flow_id)
        else:
            flow.retry(clients, row.flow_id)
    except UnknownFlowError as error:
        raise UnknownRunError(str(error)) from error
    except FlowRefusedError as error:
        raise RunRefusedError(str(error)) from error
    return run_id


def _row(run_id: str) -> FlowRun:
    row: FlowRun | None = run_key(run_id).get() if run_id else None
    if row is None:
        raise UnknownRunError(f"there is no flow {run_id}, or no more")
    return row


def _run(names: Sequence[str], row: FlowRun) -> Run:
    records = row.records().values()
    counts = Counter(
        {"d": "done", "f": "failed", "r": "retrying", ".": "waiting"}[_letter(record)]
        for record in records
    )
    return Run(
        pattern=PATTERN,
        id=row.key.id(),
        name=_name(row),
        state=_state(row),
        args=row.args,
        started=row.created.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.ended),
        counts=counts,
        expected=len(records),
        verbs=_verbs(names, row),
    )


def _state(row: FlowRun) -> RunState:
    """Return a flow's state in the words of all runs: one that has failed waits for a person."""
    if row.state in (RUNNING, UNDOING, FAILED):
        return "running"
    return "cancelled" if row.state in (CANCELLED, REJECTED) else "finished"


def _verbs(names: Sequence[str], row: FlowRun) -> Sequence[RunVerb]:
    if _name(row) not in names:
        return ()
    if row.state == FAILED:
        return ("retry", "cancel")
    return ("cancel",) if row.state == RUNNING else ()


def _letter(record: StepRecord) -> str:
    if record.state == STEP_FAILED:
        return "f"
    if record.has_ended:
        return "d"
    return "r" if record.error else "."


def _row_of(name: str, record: StepRecord) -> Mapping[str, float | str]:
    return {
        "step": name,
        "kind": f"undo, {record.kind}" if record.is_undo else record.kind,
        "state": record.state,
        "attempts failed": record.attempts,
        "in doubt": record.doubts,
        "began": record.began,
        "ended": record.ended or "",
        "until": record.until or "",
        "result": f"{record.chunks} rows" if record.rows else record.value[:MAX_SHOWN_CHARS],
        "error": record.error,
    }


def _issues(row: FlowRun, records: Mapping[str, StepRecord]) -> list[RunIssue]:
    issues = [
        RunIssue(name, "failed" if record.state == STEP_FAILED else "retrying", record.error)
        for name, record in records.items()
        if record.error and (record.state == STEP_FAILED or not record.has_ended)
    ]
    if row.failure or row.reason:
        issues.append(RunIssue("flow", "failed", row.failure or row.reason))
    return issues


def _due(row: FlowRun) -> str:
    return f"{row.due:%Y-%m-%d %H:%M:%S} UTC" if row.due is not None else "never"


def _is_asked_for(query: RunQuery, row: FlowRun) -> bool:
    return query.state in ("", _state(row)) and query.name in ("", _name(row))


def _name(row: FlowRun) -> str:
    return str(row.key.id()).partition("|")[0]


def _time(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
