"""The cell of a key: everything that a Beam runner stores for one key of a computation."""

from __future__ import annotations

import json
from typing import NamedTuple

from rollforward.streams.model.bundle import KeyedRecord
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.moving.file_format import state_of, state_row


class Cell(NamedTuple):
    """A key between two calls.

    Attributes:
        state: Its state, timers and expiry.
        passed_ms: The event time that the watermark is known to have reached for this key.
        waiting: Records that came before the state of a pipeline that moved.
        is_over: The key was exported, and takes no more records.
    """

    state: KeyState = NOTHING
    passed_ms: int = 0
    waiting: tuple[KeyedRecord, ...] = ()
    is_over: bool = False


def cell_text(cell: Cell) -> str:
    """Return a cell as JSON."""
    waiting = [[*record[:1], *record[2:]] for record in cell.waiting]  # The text has the value.
    return json.dumps([state_row(cell.state), cell.passed_ms, waiting, cell.is_over])


def cell_of(text: str | None) -> Cell:
    """Return the cell that `cell_text` has written; None: a new one."""
    if text is None:
        return Cell()
    row, passed_ms, waiting, is_over = json.loads(text)
    records = (KeyedRecord(key, decoded(rest[-1]), *rest) for key, *rest in waiting)
    return Cell(state_of(row), passed_ms, tuple(records), is_over)
