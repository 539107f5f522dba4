"""Topology status: the running computations and versions, and the progress of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import find_head
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
        version: The running version; None: none runs.
        versions: The versions of this code.
        phase: "running", "standby" (it can be attached), "attaching", "replacing" (until all
            senders have acknowledged it), "draining" (it processes its backlog), "discarding",
            "cleaning" (its rows are deleted).
        previous_version: The version that is being replaced.
        acknowledged, senders: Intervals and sources that know of the change, and all of them.
        waiting: Chunks in its inbox.
        timers: Pending timers, or discarded ones when it is cleaned up.
        records, keys: Discarded records and keys so far.
        is_missing: It runs, and this code does not have its version.
    """

    name: str
    version: int | None
    versions: tuple[int, ...]
    phase: str
    previous_version: int | None = None
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
    """Computations of a pipeline, and its last finished changes, latest first."""

    parts: Mapping[str, PartStatus] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    @property
    def is_changing(self) -> bool:
        return any(part.is_changing for part in self.parts.values())


def topology(environment: Environment, head: Head | None = None) -> Steps[Topology]:
    """Return the computations of a pipeline, or the initial ones if it has never run.

    Args:
        head: The head, if it was read before.
    """
    pipeline = environment.pipeline
    if head is None:
        head = yield from find_head(environment)
    cut = (yield from read_cut(environment)) if has_pending_change(head) else None
    if cut is not None:
        head = cut.head.body
    if head.stopped:  # A stop gives them versions that no code has.
        head = head._replace(topology=head.stopped["topology"])
    computations = running_computations(head) or initial_computations(pipeline)
    parts = {name: _status(pipeline, name, running, cut) for name, running in computations.items()}
    for name, _ in pipeline.versions:
        if name not in parts:
            parts[name] = PartStatus(name, None, tuple(pipeline.versions_of(name)), STANDBY)
    return Topology(parts, tuple(history_of(head)))


def _status(
    pipeline: Declaration, name: str, running: RunningComputation, cut: Cut | None
) -> PartStatus:
    code = pipeline.versions.get((name, running.version))
    status = PartStatus(
        name, running.version, tuple(pipeline.versions_of(name)), running.phase,
        running.previous_version or None, is_missing=code is None or not is_same(code, running),
    )  # fmt: skip
    if cut is None or not status.is_changing:
        return status
    layouts = [row.layout_version for row, _ in cut.versions.values()]
    timers = sum(
        row.timers for (computation, _), row in cut.intervals.items() if computation == name
    )
    return replace(
        status,
        acknowledged=sum(layout >= running.since for layout in layouts),
        senders=len(layouts),
        waiting=cut.backlogs[name].rows if name in cut.backlogs else 0,
        timers=running.timers + timers,
        records=running.records,
        keys=running.keys,
    )
