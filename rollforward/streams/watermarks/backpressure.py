"""Backpressure: sources pause while computations lag behind, or while they drift too far ahead.

Each tick measures the backlog in the inboxes and notes in the head which sources are paused. A
source reads that before it ingests records. It resumes at half of the limit rather than at the
limit, so that it does not pause and resume with each record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from rollforward.streams.exchange.pulling import Partition, pull_wake
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.sources import PullSource
from rollforward.streams.storage.remote_calls import CreateTasks, Steps
from rollforward.streams.storage.schema import Head, SourceRow, chunk_size

Place = tuple[str, str]  # A stream and a process.


class Backlog(NamedTuple):
    """Pending chunks, records and bytes of a computation, as they were sent."""

    rows: int = 0
    records: int = 0
    bytes: int = 0


def backlog_of(names: Iterable[str]) -> Backlog:
    """Return the backlog of chunks, by their names.

    >>> backlog_of(["p:c:0000:0:000000000001000:a7.0.12.840", "p:c:0000:1:0:a8.0.1.60"])
    Backlog(rows=2, records=13, bytes=900)
    """
    sizes = [chunk_size(name) for name in names]
    return Backlog(len(sizes), sum(records for records, _ in sizes), sum(size for _, size in sizes))


def paused_sources(
    pipeline: Declaration,
    head: Head,
    backlogs: Mapping[str, Backlog],
    rows: Mapping[Place, SourceRow],
    idle: Collection[Place] = (),
) -> dict[str, str]:
    """Return the processes of sources that must pause, with the reasons.

    Args:
        idle: Idle processes, which pause no other.
    """
    active = {place: row for place, row in rows.items() if place not in idle}
    reasons = [*_drifting(pipeline, head, active), *_overloading(pipeline, head, backlogs, rows)]
    return {source_name(*place): reason for place, reason in reasons}


def max_waiting_rows(pipeline: Declaration, head: Head, computation: str) -> int:
    """Return the maximum of pending chunks of a computation, with the intervals that it has now."""
    return pipeline.limits.max_waiting_rows(len(head.intervals.get(computation, ())))


def source_name(stream: str, process: str) -> str:
    """Return the name of a process of a source in the head."""
    return f"{stream}:{process}"


def _overloading(
    pipeline: Declaration,
    head: Head,
    backlogs: Mapping[str, Backlog],
    rows: Mapping[Place, SourceRow],
) -> Iterator[tuple[Place, str]]:
    """Yield the processes upstream of a computation whose backlog is too large."""
    limits = pipeline.limits
    for name, backlog in backlogs.items():
        max_rows = max_waiting_rows(pipeline, head, name)
        for stream in pipeline.graph.sources_of[name]:
            declared = pipeline.sources[stream].processes
            stored = [process for row_stream, process in rows if row_stream == stream]
            for process in dict.fromkeys([*declared, *stored]):
                factor = 2 if source_name(stream, process) in head.paused else 1
                if backlog.rows * factor > max_rows:
                    yield (stream, process), f"{name} has over {max_rows} rows waiting"
                elif backlog.bytes * factor > limits.waiting_bytes:
                    yield (stream, process), f"{name} has over {limits.waiting_bytes} bytes waiting"


def _drifting(
    pipeline: Declaration, head: Head, rows: Mapping[Place, SourceRow]
) -> Iterator[tuple[Place, str]]:
    """Yield the processes that are too far ahead of the slowest one that has begun."""
    max_drift = pipeline.limits.max_drift
    if max_drift is None:
        return
    inside = {
        place: row
        for place, row in rows.items()
        if row.seq
        and not row.is_idle
        and row.watermark < FOREVER
        # A partition without a record yet is no measure.
        and (row.records or row.watermark)
    }
    slowest = min(inside, key=lambda place: inside[place].watermark, default=("", ""))
    for (stream, process), row in inside.items():
        factor = 2 if source_name(stream, process) in head.paused else 1
        ahead_ms = row.watermark - inside[slowest].watermark
        if ahead_ms * factor > max_drift // timedelta(milliseconds=1):
            yield (
                (stream, process),
                f"it is over {max_drift} ahead of {source_name(*slowest).rstrip(':')}",
            )


def resume_sources(
    environment: Environment, head: Head, paused: Mapping[str, str], rows: Mapping[Place, SourceRow]
) -> Steps[None]:
    """Resume paused pull sources that are below the limit again; push clients retry anyway."""
    wakes = [
        pull_wake(environment, Partition(stream, process), row, "let go", head.gen)
        for (stream, process), row in rows.items()
        if row.seq
        # This code cannot read a source that only other code declares.
        and isinstance(environment.pipeline.known_sources.get(stream), PullSource)
        and source_name(stream, process) in head.paused
        and source_name(stream, process) not in paused
    ]
    if wakes:
        yield CreateTasks(wakes)
