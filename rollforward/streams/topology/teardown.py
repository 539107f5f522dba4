"""Teardown: the ticks finish topology changes, whichever process began them.

A computation that is attached or replaced is complete when all senders have acknowledged the
layout of the change. A detached one leaves in steps, each a commit that names the head:

draining: no sender writes to it. Once all senders have acknowledged that and its inbox is empty,
    its watermark advances to the end. So all its timers fire, as if its inputs had ended.
discarding: its workers stop, and no new layout sends to it. Senders run a weak computation inline
    until they know that. Their output to its readers holds the watermark of these, so it stays in
    the graph until all have acknowledged the layout.
cleaning: its intervals are deleted, so no commit of its workers can succeed. Its states, ids and
    inbox are deleted, and counted, until no sender can write to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import (
    CLEANING,
    DISCARDING,
    DRAINING,
    Change,
    RunningComputation,
    running_computations,
    with_change,
)
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Read,
    Scan,
    ScanKeys,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.schema import CHUNK, IDS, LARGE, SLAB, Head, part_of_row
from rollforward.streams.watermarks.phases import is_drained
from rollforward.streams.watermarks.retirement import acknowledged_layout

if TYPE_CHECKING:
    from rollforward.streams.watermarks.cut import Cut

# Rows that one commit deletes, and commits of one tick.
MAX_DELETED, MAX_COMMITS = 100, 10
MAX_CHUNKS = 40  # In one commit; chunks are read whole.


def advance(environment: Environment, cut: Cut) -> Steps[None]:
    """Take the next step of each leaving computation; a lost race is left to the next tick."""
    for name, computation in running_computations(cut.head.body).items():
        is_known = acknowledged_layout(cut.versions) >= computation.since
        try:
            if computation.phase == DRAINING and _has_ended(environment, cut, name):
                yield from _delete_intervals(environment, name, computation, cut)
            elif computation.phase == DISCARDING and is_detached(computation, is_known=is_known):
                yield from _delete_intervals(environment, name, computation)
            elif computation.phase == CLEANING:
                yield from _clean(environment, name, is_known=is_known)
        except (ChangedError, OutcomeUnknownError):
            continue


def _has_ended(environment: Environment, cut: Cut, name: str) -> bool:
    """Return whether a draining computation has processed all records and timers."""
    if cut.head.body.inputs.get(name, 0) < FOREVER or not is_drained(cut, name):
        return False
    now_ms = environment.now_ms()
    return not any(
        min(row.hold, row.due, row.processing_due) < NEVER or row.is_leased(now_ms)
        for (computation, _), row in cut.intervals.items()
        if computation == name
    )


def is_detached(computation: RunningComputation, *, is_known: bool) -> bool:
    """Return whether a discarded computation writes no more output, once it has no intervals.

    Args:
        is_known: All senders have acknowledged that it leaves.
    """
    return is_known or not computation.weak


def _delete_intervals(
    environment: Environment, name: str, computation: RunningComputation, cut: Cut | None = None
) -> Steps[None]:
    """Delete the intervals of a computation, so that no commit of its workers succeeds.

    Args:
        cut: The intervals must not have changed since; None: they may.
    """
    [head] = yield Read([environment.names.head])
    if running_computations(head.body).get(name) != computation:
        return
    los = head.body.intervals[name]
    keys = [environment.names.interval(name, lo) for lo in los]
    if cut is None:
        rows = yield Read(keys)
    else:
        rows = [_row_in_cut(cut, name, lo) for lo in los]
    timers = sum(row.body.timers for row in rows if row is not None)
    cleaning = computation._replace(phase=CLEANING, timers=computation.timers + timers)
    yield Commit(
        puts=[(environment.names.head, _without(head.body, name, cleaning), head.version)],
        deletes=[(key, row.version) for key, row in zip(keys, rows, strict=True) if row],
    )


def _row_in_cut(cut: Cut, name: str, lo: int) -> StoredRow:
    if (name, lo) not in cut.versions:
        raise ChangedError  # The interval was split since.
    return StoredRow(*cut.versions[name, lo])


def _without(head: Head, name: str, cleaning: RunningComputation) -> Head:
    """Return a head without a computation, except that it is being cleaned up."""

    def remaining(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entries.items() if key.partition(":")[0] != name}

    return head._replace(
        topology={**head.topology, name: cleaning},
        intervals=remaining(head.intervals),
        created_in_by_place=remaining(head.created_in_by_place),
        retired=remaining(head.retired),
        inputs=remaining(head.inputs),
        published=remaining(head.published),
        percentile_watermarks=remaining(head.percentile_watermarks),
        waiting=remaining(head.waiting),
    )


def _clean(environment: Environment, name: str, *, is_known: bool) -> Steps[None]:
    """Delete some rows of a computation; once none are left and none can come, remove it.

    Args:
        is_known: All senders have acknowledged that it leaves.
    """
    low, high = f"{environment.pipeline.name}:{name}:", f"{environment.pipeline.name}:{name};"
    for _ in range(MAX_COMMITS):
        [head] = yield Read([environment.names.head])
        computation = running_computations(head.body).get(name)
        if computation is None or computation.phase != CLEANING:
            return
        slabs = yield Scan(SLAB, low, high, MAX_DELETED)
        chunks = yield Scan(CHUNK, low, high, MAX_CHUNKS)
        rows = [Key(SLAB, slab) for slab, _ in slabs] + [Key(CHUNK, chunk) for chunk, _ in chunks]
        for kind in (LARGE, IDS):
            if len(rows) < MAX_DELETED:
                names = yield ScanKeys(kind, low, high, None, MAX_DELETED - len(rows))
                rows += [Key(kind, row_name) for row_name in names]
        if not rows and not is_known:
            return
        remaining = None
        if rows:
            # A chunk holds only records that were not processed.
            records = computation.records + sum(len(row.body) for _, row in chunks)
            keys = computation.keys + sum(len(row.body.keys) for _, row in slabs)
            remaining = computation._replace(records=records, keys=keys)
        body = _cleaned(head.body, name, remaining, environment.now_ms())
        # Only this code writes these rows now, so the version of the head guards them.
        yield Commit(
            puts=[(environment.names.head, body, head.version)],
            deletes=[(key, None) for key in rows],
        )


def _cleaned(head: Head, name: str, computation: RunningComputation | None, now_ms: int) -> Head:
    """Return a head with a computation as it is after a commit; None: it is gone."""
    if computation is not None:
        return head._replace(topology={**head.topology, name: computation})
    topology = dict(head.topology)
    detached = part_of_row(RunningComputation, topology.pop(name))
    counts = detached.records, detached.timers, detached.keys
    change = Change(name, "detached", detached.version, 0, now_ms, *counts)
    return with_change(head._replace(topology=topology), change)
