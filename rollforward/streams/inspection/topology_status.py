"""Which computations run, in which version, and how far changes of that have come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import look_at_head
from rollforward.streams.graph.plan import (
    RUNNING,
    Change,
    RunningComputation,
    has_pending_change,
    history_of,
    initial_computations,
    is_same,
    running_computations,
)
from rollforward.streams.storage.remote_calls import Steps
from rollforward.streams.storage.schema import Head
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.cut_reader import read_cut

STANDBY = "standby"


@dataclass(frozen=True)
class PartStatus:
    """A computation of a pipeline.

    Attributes:
        version: The one that runs; None: none does.
        versions: Those that this code has.
        phase: "running", "standby" (it can be attached), "attaching", "replacing" (until all
            senders know of it), "draining" (it works on what it has), "discarding", "cleaning" (its
            rows are deleted).
        before: The version that is being replaced.
        acknowledged, senders: Intervals and sources that know of the change, and all of them.
        waiting: Chunks in its inbox.
        timers: Those that wait, or that were discarded when it is cleaned up.
        records, keys: How many were deleted with it so far.
        is_missing: It runs, and this code does not have that version.
    """

    name: str
    version: int | None
    versions: tuple[int, ...]
    phase: str
    before: int | None = None
    acknowledged: int = 0
    senders: int = 0
    waiting: int = 0
    timers: int = 0
    records: int = 0
    keys: int = 0
    is_missing: bool = False

    @property
    def is_changing(self) -> bool:
        return self.phase not in (RUNNING, STANDBY)


@dataclass(frozen=True)
class Topology:
    """The computations of a pipeline, and the last changes that are done, the latest first."""

    parts: Mapping[str, PartStatus] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    @property
    def is_changing(self) -> bool:
        return any(part.is_changing for part in self.parts.values())


def topology(environment: Environment, seen: Head | None = None) -> Steps[Topology]:
    """Return what runs; of a pipeline that has never run, what it would begin with.

    Args:
        seen: The head, if it was read before.
    """
    pipeline = environment.pipeline
    head = seen if seen is not None else (yield from look_at_head(environment))
    cut = (yield from read_cut(environment)) if has_pending_change(head) else None
    if cut is not None:
        head = cut.head.body
    stored = running_computations(head) or initial_computations(pipeline)
    parts = {name: _status(pipeline, name, part, cut) for name, part in stored.items()}
    for name, _ in pipeline.versions:
        if name not in parts:
            parts[name] = PartStatus(name, None, tuple(pipeline.versions_of(name)), STANDBY)
    return Topology(parts, tuple(history_of(head)))


def _status(
    pipeline: Declaration, name: str, part: RunningComputation, cut: Cut | None
) -> PartStatus:
    code = pipeline.versions.get((name, part.version))
    status = PartStatus(
        name, part.version, tuple(pipeline.versions_of(name)), part.phase,
        part.previous_version or None, is_missing=code is None or not is_same(code, part),
    )  # fmt: skip
    if cut is None or not status.is_changing:
        return status
    layouts = [row.layout_version for row, _ in cut.versions.values()]
    timers = sum(row.timers for (each, _), row in cut.intervals.items() if each == name)
    return replace(
        status,
        acknowledged=sum(layout >= part.since for layout in layouts),
        senders=len(layouts),
        waiting=cut.waiting[name].rows if name in cut.waiting else 0,
        timers=part.timers + timers,
        records=part.records,
        keys=part.keys,
    )
