"""Reads of a tick: sources, inboxes and intervals, in an order that loses no record."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import idle_of, processes_of
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.publications.publication import Publication
from rollforward.streams.storage.layout import Inbox, interval_of
from rollforward.streams.storage.remote_calls import Read, Snapshot, Steps, StoredRow
from rollforward.streams.storage.schema import Head
from rollforward.streams.watermarks.backpressure import Place, backlog_of, paused_sources
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.following import (
    Contents,
    View,
    last_view,
    merge_rows,
    note_view,
    read_changes,
)
from rollforward.streams.watermarks.idleness import (
    activity_of,
    excluded_processes,
    idle_processes,
    watermark_of,
)
from rollforward.streams.watermarks.inbox_scan import InboxContents, scan_inboxes
from rollforward.streams.watermarks.percentiles import PercentileWatermarks
from rollforward.streams.watermarks.phases import is_drained
from rollforward.streams.watermarks.retirement import remaining_retired

# Processes of all sources in one tick, whose commit has other rows, too.
MAX_EXCLUDED = 200


class Output(NamedTuple):
    """Output watermark of a computation, and how far its readers may advance.

    `low`: no on-time output is still to come before it. `reached`: earlier than that while late
    records are pending.
    """

    low: int
    reached: int


def read_cut(
    environment: Environment, change: Callable[[Head], Head] | None = None
) -> Steps[Cut | None]:
    """Read the rows that the watermarks follow from; None: it has never run, or has no rows yet.

    Args:
        change: A topology change to apply first; watermarks are computed for the result.
    """
    view = last_view(environment)
    moment, stored_head, sources = yield from _read_sources(environment)
    if stored_head is None or not stored_head.body.is_complete:
        return None
    head = stored_head if change is None else stored_head._replace(body=change(stored_head.body))
    cut = Cut(head, environment.at(head.body), stored_head=stored_head.body)
    pipeline = cut.plan
    # Streams without a reader included: their sources may still write.
    cut.versions.update(sources)
    rows = {place: row for place, row in sources.items() if place[0] in pipeline.sources}
    cut.rows = {place: row.body for place, row in rows.items()}
    for stream in pipeline.sources:
        processes = {place[1]: row for place, row in rows.items() if place[0] == stream}
        _add_source(environment, cut, stream, processes)
    order = pipeline.graph.order
    contents: Contents = {}
    if moment is not None:  # All reads see the same state, so their order does not matter.
        contents = yield from _read_at(environment, cut, view, sources, moment)
    outputs: dict[str, Output] = {}
    percentiles = PercentileWatermarks(pipeline, head.body, cut.sources, cut.awaited)
    for name in order:
        if moment is None:
            contents = yield from scan_inboxes(environment, pipeline, head.body, [name], moment)
            yield from _read_intervals(environment, cut, [name], moment)
        chunks = _add_computation(cut, name, outputs, contents)
        cut.backlogs[name] = backlog_of(chunks)
        percentiles.add(name, cut.inputs[name], chunks, cut.hold(name))
    cut.percentile_watermarks = percentiles.inputs
    cut.retired = remaining_retired(pipeline, head.body, cut.versions, cut.filled)
    cut.paused = paused_sources(pipeline, head.body, cut.backlogs, cut.rows, cut.idle)
    return cut


def _read_at(
    environment: Environment,
    cut: Cut,
    view: View | None,
    sources: Mapping[Place, StoredRow],
    moment: Any,
) -> Steps[Contents]:
    """Read intervals and inboxes at a moment: those that may have changed since a view, or all."""
    head: Head = cut.head.body
    changes = yield from read_changes(environment, cut, view, sources, moment)
    if changes is not None:
        intervals, contents = changes
        cut.intervals.update((place, row.body) for place, row in intervals.items())
    else:
        order = cut.plan.graph.order
        rows = yield from _read_intervals(environment, cut, order, moment)
        contents = yield from scan_inboxes(environment, cut.plan, head, order, moment)
        intervals = merge_rows(rows)
    if head is cut.stored_head:
        note_view(environment, view, head, sources, intervals, contents)
    return contents


def _read_sources(
    environment: Environment,
) -> Steps[tuple[Any, StoredRow | None, dict[Place, StoredRow]]]:
    """Return a moment, the head, and the rows of all processes of sources.

    Other versions of the code may have processes that this one does not know; the head lists them.
    """
    names, caches = environment.names, environment.caches
    while True:
        places = processes_of(environment.pipeline, caches.get("processes", {}))
        keys = [names.head, *(names.source(*place) for place in places)]
        moment, (head, *rows) = yield Snapshot(keys)
        if head is None or {*processes_of(environment.pipeline, head.body.processes)} <= {*places}:
            by_place = dict(zip(places, rows, strict=True))
            return moment, head, {place: row for place, row in by_place.items() if row is not None}
        caches["processes"] = head.body.processes


def _add_source(
    environment: Environment, cut: Cut, stream: str, rows: Mapping[str, StoredRow]
) -> None:
    """Compute the watermark of a source: the lowest one of its processes that are not idle."""
    head: Head = cut.head.body
    published = head.sources.get(stream, 0)
    inside = {process: row for process, row in rows.items() if not row.body.is_idle}
    idle_ms, now_ms = idle_of(cut.plan, head, stream), environment.now_ms()
    activity = cut.activities[stream] = activity_of(head, stream, rows, idle_ms, now_ms)
    idle = idle_processes(head, stream, inside, activity, idle_ms, now_ms)
    idle = {name: row for name, row in idle.items() if not cut.plan.waits_for(stream, name)}
    cut.idle |= {(stream, process) for process in idle}
    advance_ms = cut.plan.advance_ms(stream)
    silent = excluded_processes(inside, idle, advances=advance_ms is not None)
    excluded = dict(itertools.islice(silent.items(), MAX_EXCLUDED - len(cut.idle_puts)))
    for process, row in excluded.items():
        key = environment.names.source(stream, process)
        cut.idle_puts.append((key, row.body._replace(is_idle=True), row.version))
    cut.awaited[stream] = [row.body for process, row in inside.items() if process not in excluded]
    bodies = [row.body for row in rows.values()]
    clock_ms = None if advance_ms is None else now_ms - advance_ms
    cut.sources[stream] = watermark_of(published, bodies, cut.awaited[stream], clock_ms)


def _add_computation(
    cut: Cut,
    name: str,
    outputs: dict[str, Output],
    contents: Mapping[tuple[str, Inbox], InboxContents],
) -> list[str]:
    """Compute the watermarks of a computation; return the names of its pending chunks.

    Args:
        contents: Contents of its inboxes, read before its intervals.
    """
    pipeline, head = cut.plan, cut.head.body
    on_time, late, chunks = NEVER, NEVER, list[str]()
    for (computation, inbox), content in contents.items():
        if computation == name and content.names:
            chunks += content.names
            cut.filled.add((name, inbox))
            cut.pending.add((name, interval_of(head, name, inbox.lo)))
            on_time, late = min(on_time, content.on_time), min(late, content.late)
    streams = pipeline.computations[name].inputs
    feeds = [cut.sources[stream] for stream in streams if stream in cut.sources]
    upstream = [outputs[sender] for sender in pipeline.graph.upstream[name]]
    feeds += [output.low for output in upstream]
    if is_drained(cut, name):
        feeds, upstream = [FOREVER], []  # The inputs have ended, so all timers are due.
    low = cut.lower_bounds[name] = min([on_time, *feeds])
    reached = min([low, late, *(output.reached for output in upstream)])
    cut.inputs[name] = max(head.inputs.get(name, 0), reached)
    hold = cut.hold(name)
    outputs[name] = Output(min(low, hold), min(reached, hold))
    if isinstance(pipeline.computations[name], Publication) and pipeline.accepts_input(name):
        cut.published[name] = max(head.published.get(name, 0), outputs[name].reached)
    return chunks


def _read_intervals(
    environment: Environment, cut: Cut, computations: Iterable[str], moment: Any
) -> Steps[dict[tuple[str, int], StoredRow]]:
    """Read the intervals of computations, in one call; return those that exist."""
    head: Head = cut.head.body
    places = [(name, lo) for name in computations for lo in head.intervals.get(name, ())]
    rows = yield Read([environment.names.interval(*place) for place in places], moment)
    found = {place: row for place, row in zip(places, rows, strict=True) if row is not None}
    cut.intervals.update((place, row.body) for place, row in found.items())
    cut.versions.update(found)
    return found
