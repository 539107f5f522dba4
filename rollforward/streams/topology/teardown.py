"""How changes of a topology end: each tick moves them on, so none depends on who has begun it.

A computation that is attached or replaced has come when all senders have noted the layout of that.
One that is detached leaves in steps, of which each is a commit that names the head:

draining: nobody sends to it any more. Once all senders have noted that and its inbox is empty, its
    watermark goes to the end, as that of inputs which have ended: all its timers fire.
discarding: its workers stop, and nobody sends to it. Others run a weak one until they know that:
    what they write for its readers holds these back, so it stays in the graph until all have noted
    the layout.
cleaning: its intervals are deleted, so no commit of a worker of it can succeed any more. Its
    states, ids and what lies in its inbox are deleted, and counted, until nothing can come.
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

# Rows that are deleted by one commit, and commits of one tick.
MAX_DELETED, MAX_COMMITS = 100, 10
MAX_CHUNKS = 40  # Of these, which are read whole.


def advance(environment: Environment, cut: Cut) -> Steps[None]:
    """Take the next step of each computation that leaves; who is slower than others stops."""
    for name, part in running_computations(cut.head.body).items():
        is_known = acknowledged_layout(cut.versions) >= part.since
        try:
            if part.phase == DRAINING and _has_ended(environment, cut, name):
                yield from _delete_intervals(environment, name, part, cut)
            elif part.phase == DISCARDING and is_cut_off(part, is_known=is_known):
                yield from _delete_intervals(environment, name, part)
            elif part.phase == CLEANING:
                yield from _clean(environment, name, is_known=is_known)
        except (ChangedError, OutcomeUnknownError):
            continue  # The next tick looks again.


def _has_ended(environment: Environment, cut: Cut, name: str) -> bool:
    """Return whether a computation has done all that it had to do."""
    if cut.head.body.inputs.get(name, 0) < FOREVER or not is_drained(cut, name):
        return False
    now_ms = environment.now_ms()
    return not any(
        min(row.hold, row.due, row.processing_due) < NEVER or row.is_leased(now_ms)
        for (each, _), row in cut.intervals.items()
        if each == name
    )


def is_cut_off(part: RunningComputation, *, is_known: bool) -> bool:
    """Return whether nothing more comes of what is discarded, once it has no intervals.

    Args:
        is_known: All senders know that it leaves.
    """
    return is_known or not part.weak


def _delete_intervals(
    environment: Environment, name: str, part: RunningComputation, cut: Cut | None = None
) -> Steps[None]:
    """Delete the intervals of a computation: no commit of its workers succeeds any more.

    Args:
        cut: They are to be as they were then; None: as they are.
    """
    [head] = yield Read([environment.names.head])
    if running_computations(head.body).get(name) != part:
        return
    los = head.body.intervals[name]
    keys = [environment.names.interval(name, lo) for lo in los]
    if cut is None:
        found = yield Read(keys)
    else:
        found = [_as_seen(cut, name, lo) for lo in los]
    timers = sum(row.body.timers for row in found if row is not None)
    cleaning = part._replace(phase=CLEANING, timers=part.timers + timers)
    yield Commit(
        puts=[(environment.names.head, _without(head.body, name, cleaning), head.version)],
        deletes=[(key, row.version) for key, row in zip(keys, found, strict=True) if row],
    )


def _as_seen(cut: Cut, name: str, lo: int) -> StoredRow:
    if (name, lo) not in cut.versions:
        raise ChangedError  # It was split since.
    return StoredRow(*cut.versions[name, lo])


def _without(head: Head, name: str, cleaning: RunningComputation) -> Head:
    """Return a head that knows of a computation only that it is cleaned up."""

    def others(of: Mapping[str, Any]) -> dict[str, Any]:
        return {each: value for each, value in of.items() if each.partition(":")[0] != name}

    return head._replace(
        topology={**head.topology, name: cleaning},
        intervals=others(head.intervals),
        created_in_by_place=others(head.created_in_by_place),
        retired=others(head.retired),
        inputs=others(head.inputs),
        percentile_watermarks=others(head.percentile_watermarks),
        waiting=others(head.waiting),
    )


def _clean(environment: Environment, name: str, *, is_known: bool) -> Steps[None]:
    """Delete some rows of a computation; all were deleted, and nothing can come: it has left.

    Args:
        is_known: All senders know that it leaves.
    """
    low, high = f"{environment.pipeline.name}:{name}:", f"{environment.pipeline.name}:{name};"
    for _ in range(MAX_COMMITS):
        [head] = yield Read([environment.names.head])
        part = running_computations(head.body).get(name)
        if part is None or part.phase != CLEANING:
            return
        slabs = yield Scan(SLAB, low, high, MAX_DELETED)
        chunks = yield Scan(CHUNK, low, high, MAX_CHUNKS)
        found = [Key(SLAB, each) for each, _ in slabs] + [Key(CHUNK, each) for each, _ in chunks]
        for kind in (LARGE, IDS):
            if len(found) < MAX_DELETED:
                rows = yield ScanKeys(kind, low, high, None, MAX_DELETED - len(found))
                found += [Key(kind, each) for each in rows]
        if not found and not is_known:
            return
        after = None
        if found:
            records = sum(len(row.body) for _, row in chunks)  # A part may have been worked on.
            keys = sum(len(row.body.keys) for _, row in slabs)
            after = part._replace(records=part.records + records, keys=part.keys + keys)
        body = _cleaned(head.body, name, after, environment.now_ms())
        # Nobody writes these rows any more but this, which names the version of the head.
        yield Commit(
            puts=[(environment.names.head, body, head.version)],
            deletes=[(key, None) for key in found],
        )


def _cleaned(head: Head, name: str, part: RunningComputation | None, now_ms: int) -> Head:
    """Return a head with a computation as it is after a commit; None: it has left."""
    if part is not None:
        return head._replace(topology={**head.topology, name: part})
    topology = dict(head.topology)
    gone = part_of_row(RunningComputation, topology.pop(name))
    change = Change(name, "detached", gone.version, 0, now_ms, gone.records, gone.timers, gone.keys)
    return with_change(head._replace(topology=topology), change)
