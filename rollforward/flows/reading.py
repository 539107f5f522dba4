"""Flows as their callers see them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.flows.errors import UnknownFlowError
from rollforward.flows.rows.entities import SUCCEEDED, FlowRun, run_key
from rollforward.flows.rows.records import DONE, StepRecord
from rollforward.runtime.clock import aware_utc


@dataclass(frozen=True)
class FlowState:
    """A flow.

    Attributes:
        state: "running"; "undoing", because it was rejected or cancelled; "failed", until a person
            retries or cancels it; or it has ended as "succeeded", "rejected" or "cancelled".
        reason: Why it was rejected, or has failed.
        other_version: Why the deployed code cannot continue, and another version may; "": it can.
        result: Its function's result, as JSON values; None: it has not succeeded.
        steps: By name, in the order in which they began.
        unread: The names of events that no step has taken.
        due: When it is woken, aware; None: an event wakes it, or nothing.
        lane: The key of the lane that its deliveries go through, "<lane>|<key>"; "": none.
        waits_for_turn: Whether it waits for its turn there.
    """

    flow_id: str
    state: str
    reason: str
    other_version: str
    result: Any
    steps: Mapping[str, StepRecord]
    unread: Sequence[str]
    created: datetime.datetime
    ended: datetime.datetime | None
    due: datetime.datetime | None
    lane: str
    waits_for_turn: bool


def state(run_id: str) -> FlowState:
    """Return a flow by its name and id.

    Raises:
        UnknownFlowError: there is none.
    """
    row: FlowRun | None = run_key(run_id).get()
    if row is None:
        raise UnknownFlowError(
            f"there is no flow {run_id.partition('|')[2]!r}, or its rows were deleted"
        )
    return state_of(row)


def steps_of(row: FlowRun) -> dict[str, StepRecord]:
    """Return the records of a flow's steps, by name, in the order in which they began.

    No write ends a sleep: it is over once a later step has begun, or the flow has succeeded.
    """
    records = row.records()
    is_over = row.state == SUCCEEDED
    for name, record in reversed(list(records.items())):
        if record.kind == "sleep" and not record.has_ended and is_over:
            records[name] = record.ends(DONE, record.until)
        is_over = is_over or not record.is_undo
    return records


def state_of(row: FlowRun) -> FlowState:
    """Return the state in a row."""
    return FlowState(
        flow_id=row.flow_id,
        state=row.state,
        reason=row.failure or row.reason or "",
        other_version=row.other_version or "",
        result=json.loads(row.result) if row.result else None,
        steps=steps_of(row),
        unread=[event["name"] for event in row.events],
        created=row.created.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.ended),
        due=aware_utc(row.due),
        lane=row.lane or "",
        waits_for_turn=row.turn is not None,
    )
