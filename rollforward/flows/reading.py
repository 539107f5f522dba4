"""Flows as their callers see them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollforward.flows.errors import UnknownFlowError
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.runtime.clock import aware_utc


@dataclass(frozen=True)
class FlowState:
    """A flow.

    Attributes:
        state: "running"; "undoing", because it was rejected or cancelled; "failed", until somebody
            retries or cancels it; or it has ended as "succeeded", "rejected" or "cancelled".
        reason: Why it was rejected, or has failed.
        result: Its function's result, as JSON values; None: it has not succeeded.
        steps: By name, in the order in which they began.
        unread: The names of events that no step has taken.
        due: When it is woken, aware; None: an event wakes it, or nothing.
    """

    flow_id: str
    state: str
    reason: str
    result: Any
    steps: Mapping[str, StepRecord]
    unread: Sequence[str]
    created: datetime.datetime
    ended: datetime.datetime | None
    due: datetime.datetime | None


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


def state_of(row: FlowRun) -> FlowState:
    """Return the state in a row."""
    return FlowState(
        flow_id=row.flow_id,
        state=row.state,
        reason=row.failure or row.reason or "",
        result=json.loads(row.result) if row.result else None,
        steps=row.records(),
        unread=[event["name"] for event in row.events],
        created=row.created.replace(tzinfo=datetime.UTC),
        ended=aware_utc(row.ended),
        due=aware_utc(row.due),
    )
