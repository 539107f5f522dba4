"""Reads of a tick: sources, inboxes and intervals, in an order that loses no record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import idle_of, processes_of
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.storage.layout import Inbox, interval_of
from rollforward.streams.storage.remote_calls import (
    Read,
    Snapshot,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.schema import Head
from rollforward.streams.watermarks.backpressure import (
    Place,
    backlog_of,
    paused_sources,
)
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.idleness import (
    activity_of,
    idle_processes,
    left_out,
    watermark_of,
)
from rollforward.streams.watermarks.inbox_scan import InboxContents, look
from rollforward.streams.watermarks.percentiles import PercentileWatermarks
from rollforward.streams.watermarks.phases import is_drained
from rollforward.streams.watermarks.retirement import remaining_retired


class Output(NamedTuple):
    """Before which time a computation writes nothing in time, and how far its readers may go.

    The second is earlier while late records are under way.
    """

    low: int
    reached: int


def read_cut(
    environment: Environment, change: Callable[[Head], Head] | None = None
) -> Steps[Cut | None]:
    """Read what the watermarks follow from; None: the pipeline has never run.

    Args:
        change: Of the topology: the watermarks are those that follow with that.
    """
    moment, was, rows = yield from _read_sources(environment)
    if was is None:
        return None
    head = was if change is None else was._replace(body=change(was.body))
    cut = Cut(head, environment.at(head.body), was=was.body)
    pipeline = cut.plan
    cut.versions.update(rows)  # Also of streams that nobody reads any more: somebody may write.
    rows = {place: row for place, row in rows.items() if place[0] in pipeline.sources}
    cut.rows = {place: row.body for place, row in rows.items()}
    for stream in pipeline.sources:
        mine = {process: row for (each, process), row in rows.items() if each == stream}
        _see_source(environment, cut, stream, mine)
    if moment is not None:  # All is as it was then: the order of the reads is no matter.
        yield from _read_intervals(environment, cut, pipeline.graph.order, moment)
        seen = yield from look(environment, pipeline, cut.head.body, pipeline.graph.order, moment)
    else:
        seen = {}
    out: dict[str, Output] = {}
    early = PercentileWatermarks(pipeline, cut.head.body, cut.sources, cut.last_heard)
    for name in pipeline.graph.order:
        if moment is None:
            seen = yield from look(environment, pipeline, cut.head.body, [name], moment)
            yield from _read_intervals(environment, cut, [name], moment)
        waiting = _see_computation(cut, name, out, seen)
        cut.waiting[name] = backlog_of(waiting)
        early.see(name, cut.inputs[name], waiting, cut.hold(name))
    cut.percentile_watermarks = early.inputs
    cut.retired = remaining_retired(pipeline, cut.head.body, cut.versions, cut.filled)
    cut.paused = paused_sources(pipeline, cut.head.body, cut.waiting, cut.rows, cut.quiet)
    return cut


def _read_sources(
    environment: Environment,
) -> Steps[tuple[Any, StoredRow | None, dict[Place, StoredRow]]]:
    """Return a moment, the head, and the rows of all processes of sources.

    Other versions of the code may have processes that this one does not know: the head has them.
    """
    names, caches = environment.names, environment.caches
    while True:
        places = processes_of(environment.pipeline, caches.get("processes", {}))
        moment, found = yield Snapshot([names.head, *(names.source(*each) for each in places)])
        head = found[0]
        if head is None or {*processes_of(environment.pipeline, head.body.processes)} <= {*places}:
            rows = zip(places, found[1:], strict=True)
            return moment, head, {place: row for place, row in rows if row is not None}
        caches["processes"] = head.body.processes


def _see_source(
    environment: Environment, cut: Cut, stream: str, rows: Mapping[str, StoredRow]
) -> None:
    """Find the watermark of a source: that of the slowest of its processes that is not silent."""
    head: Head = cut.head.body
    published = head.sources.get(stream, 0)
    inside = {process: row for process, row in rows.items() if not row.body.is_idle}
    idle_ms, now_ms = idle_of(cut.plan, head, stream), environment.now_ms()
    activity = cut.activities[stream] = activity_of(head, stream, rows, idle_ms, now_ms)
    quiet = idle_processes(head, stream, inside, activity, idle_ms, now_ms)
    cut.quiet |= {(stream, process) for process in quiet}
    advance_ms = cut.plan.advance_ms(stream)
    silent = left_out(inside, quiet, advances=advance_ms is not None)
    for process, row in silent.items():
        key = environment.names.source(stream, process)
        cut.idle.append((key, row.body._replace(is_idle=True), row.version))
    cut.last_heard[stream] = [row.body for process, row in inside.items() if process not in silent]
    known = [row.body for row in rows.values()]
    clock_ms = None if advance_ms is None else now_ms - advance_ms
    cut.sources[stream] = watermark_of(published, known, cut.last_heard[stream], clock_ms)


def _see_computation(
    cut: Cut, name: str, out: dict[str, Output], seen: Mapping[tuple[str, Inbox], InboxContents]
) -> list[str]:
    """Find the watermarks of a computation; return the names of the chunks that wait for it.

    Args:
        seen: What lies in its inboxes, read before its intervals.
    """
    pipeline, head = cut.plan, cut.head.body
    before, first, late, waiting = head.inputs.get(name, 0), NEVER, NEVER, list[str]()
    for (each, inbox), found in seen.items():
        if each == name and found.names:
            waiting += found.names
            cut.filled.add((name, inbox))
            cut.pending.add((name, interval_of(head, name, inbox.lo)))
            first, late = min(first, found.first), min(late, found.late)
    streams = pipeline.computations[name].inputs
    feeds = [cut.sources[each] for each in streams if each in cut.sources]
    upstream = [out[each] for each in pipeline.graph.upstream[name]]
    feeds += [each.low for each in upstream]
    if is_drained(cut, name):
        feeds, upstream = [FOREVER], []  # Nothing more comes: what its timers wait for has come.
    cut.lower_bounds[name] = min([first, *feeds])
    reached = min([cut.lower_bounds[name], late, *(each.reached for each in upstream)])
    cut.inputs[name] = max(before, reached)
    hold = cut.hold(name)
    out[name] = Output(min(cut.lower_bounds[name], hold), min(reached, hold))
    return waiting


def _read_intervals(
    environment: Environment, cut: Cut, computations: Iterable[str], moment: Any
) -> Steps[None]:
    """Read the intervals of computations, in one call."""
    head: Head = cut.head.body
    places = [(name, lo) for name in computations for lo in head.intervals.get(name, ())]
    rows = yield Read([environment.names.interval(*place) for place in places], moment)
    for place, row in zip(places, rows, strict=True):
        if row is not None:
            cut.intervals[place] = row.body
            cut.versions[place] = row
