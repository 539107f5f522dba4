"""Rows of flows that a transaction changes.

A transaction reads the state before it. So a second change of a flow in one transaction, as by a
step that sends its own flow an event, has to take the row of the first. The row is written once,
when all changes are made: a hundred events of one transaction would be a hundred copies of it.
"""

from __future__ import annotations

from typing import Any

from rollforward.datastore import current
from rollforward.datastore.transactions import current_transaction
from rollforward.flows.rows.entities import FlowRun

_HOOK = "flow-rows"


def get(key: Any) -> FlowRun | None:
    """Return the row of a flow as this transaction has read or written it."""
    rows = current_transaction().hook(_HOOK, _Rows)
    if key not in rows.by_key:
        [row] = current.get_multi([key])
        if row is None:
            return None
        rows.by_key[key] = row
    return rows.by_key[key]


def hold(row: FlowRun) -> None:
    """Let this transaction have the row of a flow that was read before it."""
    current_transaction().hook(_HOOK, _Rows).by_key[row.key] = row


def put(row: FlowRun) -> None:
    """Write the row of a flow at the end of this transaction."""
    hold(row)
    current_transaction().hook(_HOOK, _Rows).changed[row.key] = row


class _Rows:
    """The rows of one attempt: those it has read or changed, and those it is to write."""

    def __init__(self) -> None:
        self.by_key: dict[Any, FlowRun] = {}
        self.changed: dict[Any, FlowRun] = {}

    def before_commit(self) -> None:
        for row in self.changed.values():
            current.put(row)

    def on_retry(self, cause: Exception) -> None:
        self.by_key.clear()
        self.changed.clear()

    def on_commit(self) -> None: ...

    def on_outcome_unknown(self) -> None: ...
