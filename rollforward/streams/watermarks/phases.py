"""Phases of a topology change, as a cut shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollforward.streams.graph.plan import (
    ATTACHING,
    DRAINING,
    REPLACING,
    RUNNING,
    Change,
    running_computations,
    with_change,
)
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.storage.schema import Head
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.retirement import Row, acknowledged_layout

STARTING = {ATTACHING: "attached", REPLACING: "replaced"}


def with_finished_changes(head: Head, rows: Mapping[Any, Row], now_ms: int) -> Head:
    """Return a head in which the changes that all senders have acknowledged are finished.

    Args:
        rows: Rows of all intervals and sources.
    """
    layout, topology = acknowledged_layout(rows), dict(head.topology)
    for name, computation in running_computations(head).items():
        if computation.phase in STARTING and layout >= computation.since:
            topology[name] = computation._replace(
                phase=RUNNING, previous_version=0, previous_outputs=()
            )
            action = STARTING[computation.phase]
            version, previous_version = computation.version, computation.previous_version
            head = with_change(head, Change(name, action, version, previous_version, now_ms))
    return head._replace(topology=topology)


def is_drained(cut: Cut, name: str) -> bool:
    """Return whether a draining computation has an empty inbox that no sender writes to."""
    computation = cut.plan.running[name]
    if computation.phase != DRAINING or any(filled == name for filled, _ in cut.filled):
        return False
    return acknowledged_layout(cut.versions) >= computation.since


def is_waiting(cut: Cut) -> bool:
    """Return whether a change needs another tick; a drain may wait for a processing-time timer."""
    return any(
        computation.phase != RUNNING
        and not (computation.phase == DRAINING and _waits_for_timers(cut, name))
        for name, computation in running_computations(cut.head.body).items()
    )


def _waits_for_timers(cut: Cut, name: str) -> bool:
    dues = [
        row.processing_due for (computation, _), row in cut.intervals.items() if computation == name
    ]
    return cut.head.body.inputs.get(name, 0) >= FOREVER and min(dues, default=NEVER) < NEVER


def is_idle(cut: Cut, now_ms: int) -> bool:
    """Return whether no watermark moves, no work is pending and no change is in progress."""
    if cut.has_moved or cut.retired or is_waiting(cut):
        return False
    return not any(cut.has_work(name, lo, now_ms) for name, lo in cut.intervals)
