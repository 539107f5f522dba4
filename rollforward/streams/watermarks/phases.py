"""Phases of a computation that comes or leaves, as a cut shows them."""

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

COMING = {ATTACHING: "attached", REPLACING: "replaced"}


def with_finished_changes(head: Head, rows: Mapping[Any, Row], now_ms: int) -> Head:
    """Return a head in which what all senders know of is done.

    Args:
        rows: Of all intervals and sources.
    """
    noted, after = acknowledged_layout(rows), dict(head.topology)
    for name, part in running_computations(head).items():
        if part.phase in COMING and noted >= part.since:
            after[name] = part._replace(phase=RUNNING, previous_version=0, previous_outputs=())
            change = Change(name, COMING[part.phase], part.version, part.previous_version, now_ms)
            head = with_change(head, change)
    return head._replace(topology=after)


def is_drained(cut: Cut, name: str) -> bool:
    """Return whether nothing lies before a computation that leaves, and nothing can come."""
    part = cut.plan.running[name]
    if part.phase != DRAINING or any(each == name for each, _ in cut.filled):
        return False
    return acknowledged_layout(cut.versions) >= part.since


def is_waiting(cut: Cut) -> bool:
    """Return whether a further tick may bring a change on: a timer of the clock it waits for."""
    return any(
        part.phase != RUNNING and not (part.phase == DRAINING and _has_alarms(cut, name))
        for name, part in running_computations(cut.head.body).items()
    )


def _has_alarms(cut: Cut, name: str) -> bool:
    processing_dues = [
        row.processing_due for (each, _), row in cut.intervals.items() if each == name
    ]
    return (
        cut.head.body.inputs.get(name, 0) >= FOREVER and min(processing_dues, default=NEVER) < NEVER
    )


def is_idle_cut(cut: Cut, now_ms: int) -> bool:
    """Return whether nothing moves, nothing waits and no change is under way."""
    if cut.has_moved or cut.retired or is_waiting(cut):
        return False
    return not any(cut.has_work(name, lo, now_ms) for name, lo in cut.intervals)
