"""Events of a flow: kept in its row until a step takes them, each by one step."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollforward.flows.rows.entities import FlowRun
from rollforward.flows.rows.records import DONE, StepRecord
from rollforward.runtime.clock import utc_at

# With all else in it the row has to stay below 1 MiB: texts in JSON take up to six bytes a byte.
MAX_UNREAD = 100
MAX_KNOWN_IDS = 200
MAX_NAME_BYTES = 60
MAX_ID_BYTES = 100


@dataclass(frozen=True)
class Event:
    """An event that came.

    Attributes:
        payload: JSON, from its sender.
        at: When it was sent, aware.
    """

    name: str
    id: str
    payload: Any
    at: datetime.datetime


def add(row: FlowRun, name: str, event_id: str, at_s: float, stored: dict[str, Any]) -> None:
    """Keep an event in a flow's row."""
    row.events = [*row.events, {"id": event_id, "name": name, "at": at_s, **stored}]


def last_ids(ids: Mapping[str, str], most: int = MAX_KNOWN_IDS) -> dict[str, str]:
    """Return the last ids, as many as a row keeps to know repetitions."""
    return dict(list(ids.items())[-most:])


def is_expected(row: FlowRun, name: str) -> bool:
    """Return whether a step waits for an event."""
    return any(
        record.kind == "wait" and not record.has_ended and record.event == name
        for record in row.records().values()
    )


def is_missing(row: FlowRun, name: str) -> bool:
    """Return whether a step waits for an event, and none of its name has come."""
    return is_expected(row, name) and all(event["name"] != name for event in row.events)


def taken(row: FlowRun, record: StepRecord, now_s: float) -> StepRecord:
    """Return the record of a wait as it is now: with its event, timed out, or waiting.

    An event that has come counts, even if the time is over.
    """
    for number, event in enumerate(row.events):
        if event["name"] == record.event:
            row.events = [*row.events[:number], *row.events[number + 1 :]]
            stored = {key: event[key] for key in ("value", "rows", "chunks") if key in event}
            return record.ends(DONE, now_s, event_id=event["id"], event_at=event["at"], **stored)
    if record.until and now_s >= record.until:
        return record.ends(DONE, now_s)
    return record


def restore(row: FlowRun, record: StepRecord) -> None:
    """Keep the event again that a step had taken, as the first one."""
    stored = {"value": record.value, "rows": record.rows, "chunks": record.chunks}
    event = {"id": record.event_id, "name": record.event, "at": record.event_at, **stored}
    row.events = [event, *row.events]


def event_of(record: StepRecord, text: str) -> Event:
    """Return the event that a step has taken, with its content as JSON."""
    return Event(record.event, record.event_id, json.loads(text), utc_at(record.event_at))
