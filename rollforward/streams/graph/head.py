"""The head of a pipeline (its control row): creation of the first rows, and reads."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import (
    initial_computations,
    stopped_topology,
    with_process,
)
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.slots import SLOTS, first_slots
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Read,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.retry import MAX_ATTEMPTS
from rollforward.streams.storage.schema import Head, Interval, Slab, SourceRow

# Generations of one interval; an interval of the same name in a later layout uses others.
GENERATIONS = 2**32
# In one commit: those of 64 intervals, or of 100 processes of a source, are written together.
MAX_FIRST_ROWS = 400
EMPTY = Head()


def read_head(environment: Environment, first: Head = EMPTY) -> Steps[StoredRow]:
    """Read the head of a pipeline; create its rows on the first run.

    Names of tasks have generations, and stay taken for hours when the rows of a pipeline are
    deleted. So generations begin with the time.

    Args:
        first: The head of a pipeline that has none, without a generation.

    Raises:
        ChangedError: every attempt lost a race, or its outcome is unknown.
    """
    failures = 0
    while failures < MAX_ATTEMPTS:
        [head] = yield Read([environment.names.head])
        if head is not None and head.body.is_complete:
            return head  # type: ignore[no-any-return]
        try:
            yield (yield from _first_rows(environment, head, first))
        except (ChangedError, OutcomeUnknownError):
            failures += 1
    raise ChangedError


def _first_rows(environment: Environment, head: StoredRow | None, first: Head) -> Steps[Commit]:
    """Return a commit with as many first rows as it takes; the last one completes the head."""
    pipeline, names, commit = environment.pipeline, environment.names, Commit()
    body = head.body if head is not None else first._replace(gen=environment.now_ms())
    absent = [code for code in pipeline.computations.values() if code.name not in body.intervals]
    while absent and _has_room(commit, pipeline.intervals_of(absent[0])):
        body, rows = with_intervals(environment, body, [absent.pop(0)])
        commit.inserts += rows
    streams = [stream for stream in pipeline.sources if stream not in body.processes]
    existing = (yield from _stored_processes(environment, streams)) if head is not None else ()
    while streams and _has_room(commit, len(pipeline.source(streams[0]).processes)):
        body, rows = with_sources(environment, body, [streams.pop(0)], existing)
        commit.inserts += rows
    if not absent and not streams:
        running = initial_computations(pipeline)
        body = body._replace(topology=stopped_topology(running) if body.stopped else running)
    if head is None:
        commit.inserts.append((names.head, body))
    else:
        commit.puts.append((names.head, body, head.version))
    return commit


def _has_room(commit: Commit, rows: int) -> bool:
    return len(commit.inserts) + rows <= MAX_FIRST_ROWS


def _stored_processes(
    environment: Environment, streams: Iterable[str]
) -> Steps[set[tuple[str, str]]]:
    """Return the processes of sources that have a row although the head lacks their stream."""
    places = [
        (name, process)
        for name in streams
        for process in environment.pipeline.source(name).processes
    ]
    keys = [environment.names.source(*place) for place in places]
    rows = (yield Read(keys)) if keys else []
    return {place for place, row in zip(places, rows, strict=True) if row is not None}


def with_intervals(
    environment: Environment,
    head: Head,
    computations: Iterable[Computation],
    created_in: int = 0,
) -> tuple[Head, list[tuple[Key, Any]]]:
    """Return a head with the intervals of new computations, and the rows of these intervals.

    Args:
        created_in: The layout version that creates them. It separates their inboxes, generations
            and rows of ids from those of an earlier computation of the same name.
    """
    intervals, created_in_by_place = dict(head.intervals), dict(head.created_in_by_place)
    rows: list[tuple[Key, Any]] = []
    for computation in computations:
        name, count = computation.name, environment.pipeline.intervals_of(computation)
        los = intervals[name] = first_slots(count)
        for lo, hi in zip(los, [*los[1:], SLOTS], strict=True):
            row = Interval(
                hi,
                gen=created_in * GENERATIONS + environment.now_ms(),
                slabs=(Slab(lo),),
                created_in=created_in,
                layout_version=created_in,
            )
            rows.append((environment.names.interval(name, lo), row))
            if created_in:
                created_in_by_place[f"{name}:{lo:04x}"] = created_in
    return head._replace(intervals=intervals, created_in_by_place=created_in_by_place), rows


def with_sources(
    environment: Environment, head: Head, streams: Iterable[str], existing: Container[Any] = ()
) -> tuple[Head, list[tuple[Key, Any]]]:
    """Return a head with all processes of sources, and the rows of new ones.

    The watermark waits for all of them.

    Args:
        existing: The (stream, process) pairs that have a row.
    """
    rows: list[tuple[Key, Any]] = []
    for stream in streams:
        for process in environment.pipeline.source(stream).processes:
            head = with_process(head, stream, process)
            if (stream, process) not in existing:
                row = SourceRow(seen_ms=environment.now_ms(), layout_version=head.layout_version)
                rows.append((environment.names.source(stream, process), row))
    return head, rows


def find_head(environment: Environment) -> Steps[Head]:
    """Return the head of a pipeline, which may never have run; this creates no rows."""
    [row] = yield Read([environment.names.head])
    return Head() if row is None else row.body
