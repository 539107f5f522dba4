"""What the list of runs says of a flow: what it does or waits for now, and until when."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.flows.inspection import details_of, run_of
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from tests.infra.memory_datastore import Memory, offline

pytestmark = pytest.mark.fast

NOON = datetime.datetime(2031, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.
DONE_RECORD = StepRecord("outside", state="done", began=1.0, ended=2.0)


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    with offline(), Memory():
        yield


def row_with(last: StepRecord | None = None, **fields: Any) -> FlowRun:
    """Return the row of a flow with a step that is done, and another."""
    values: dict[str, Any] = {"args": "{}", "created": NOON, "started_by": "t", **fields}
    row = FlowRun(key=run_key("orders|A1"), **values)
    row.note("reserve", DONE_RECORD)
    if last is not None:
        row.note("charge", last)
    return row


@pytest.mark.parametrize(
    ("record", "note", "until"),
    [
        (StepRecord("outside"), "works on charge", 0),
        (StepRecord("commit", error="no room", until=70.0), "retries charge", 70),
        (StepRecord("wait", event="paid"), "waits for the event paid", 0),
        (StepRecord("wait", event="paid", until=70.0), "waits for the event paid, times out", 70),
        (StepRecord("sleep", until=70.0), "sleeps for charge, wakes", 70),
        (StepRecord("batch", batch="mails:A1"), "waits for the batch of charge", 0),
        (None, "", 0),
    ],
)
def test_a_running_flow_says_what_it_does_or_waits_for(
    record: StepRecord | None, note: str, until: int
) -> None:
    """In the list, and until when on its page."""
    row = row_with(record)
    shown, numbers = run_of(["orders"], row), details_of(["orders"], row).numbers

    assert shown.note == note
    assert (shown.waits_until.timestamp() if shown.waits_until else 0) == until
    assert numbers.get("waits_until_at", 0) == until


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"state": "undoing"}, "undoes its steps; retries charge"),
        ({"state": "cancelled"}, "cancelled"),
        ({"state": "rejected"}, "rejected"),
        ({"state": "succeeded"}, ""),
        ({"other_version": "v2"}, "waits for another version of the code"),
        ({"turn": NOON}, "waits for its turn in its lane"),
    ],
)
def test_a_flow_that_works_on_no_step_says_why(fields: dict[str, Any], note: str) -> None:
    """An undo is no step of a flow that goes on."""
    undo = StepRecord("outside", error="closed", is_undo=True)

    shown = run_of(["orders"], row_with(undo, **fields))
    is_undoing = fields.get("state") == "undoing"  # Its undo has a time of its own.
    assert (shown.note, shown.waits_until is None or is_undoing) == (note, True)


def test_a_flow_that_undoes_its_steps_does_no_other() -> None:
    """Also if one of them has not ended: its call was cancelled."""
    assert run_of(["orders"], row_with(StepRecord("outside"), state="undoing")).note == (
        "undoes its steps"
    )
