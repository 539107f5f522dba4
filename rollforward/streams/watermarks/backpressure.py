"""What holds sources back: computations that do not keep up, and siblings that are far behind.

Each tick looks at what waits in the inboxes and says in the head who has to wait. A source reads
that before it lets anything in. Whoever was held is let go at a half of the limit, not at the limit
itself, so that it does not come and go with each record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from rollforward.streams.exchange.pulling import pull_wake
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.sources import PullSource
from rollforward.streams.storage.remote_calls import CreateTasks, Steps
from rollforward.streams.storage.schema import Head, SourceRow, chunk_size

Place = tuple[str, str]  # A stream and a process.


class Waiting(NamedTuple):
    """What waits for a computation: chunks, records and bytes, as they were sent."""

    rows: int = 0
    records: int = 0
    bytes: int = 0


def backlog_of(names: Iterable[str]) -> Waiting:
    """Return what chunks of these names have.

    >>> waiting_in(["p:c:0000:0:000000000001000:a7.0.12.840", "p:c:0000:1:0:a8.0.1.60"])
    Waiting(rows=2, records=13, bytes=900)
    """
    sizes = [chunk_size(name) for name in names]
    return Waiting(len(sizes), sum(letters for letters, _ in sizes), sum(size for _, size in sizes))


def paused_sources(
    pipeline: Declaration,
    head: Head,
    waiting: Mapping[str, Waiting],
    rows: Mapping[Place, SourceRow],
    quiet: Collection[Place] = (),
) -> dict[str, str]:
    """Return which processes of sources have to wait, and why.

    Args:
        quiet: Those that were not heard for long: nobody waits for them.
    """
    paused: dict[str, str] = {}
    heard = {place: row for place, row in rows.items() if place not in quiet}
    for place, why in [*_ahead(pipeline, head, heard), *_crowded(pipeline, head, waiting, rows)]:
        paused[source_name(*place)] = why
    return paused


def source_name(stream: str, process: str) -> str:
    """Return what a process of a source is called in the head."""
    return f"{stream}:{process}"


def _crowded(
    pipeline: Declaration,
    head: Head,
    waiting: Mapping[str, Waiting],
    rows: Mapping[Place, SourceRow],
) -> Iterator[tuple[Place, str]]:
    """Yield the processes that a computation cannot keep up with."""
    limits = pipeline.limits
    for name, found in waiting.items():
        for stream in pipeline.graph.sources_of[name]:
            declared = pipeline.sources[stream].processes
            stored = [each for of, each in rows if of == stream]
            for process in dict.fromkeys([*declared, *stored]):
                part = 2 if source_name(stream, process) in head.paused else 1
                if found.rows * part > limits.waiting_rows:
                    yield (stream, process), f"{name} has over {limits.waiting_rows} rows waiting"
                elif found.bytes * part > limits.waiting_bytes:
                    yield (stream, process), f"{name} has over {limits.waiting_bytes} bytes waiting"


def _ahead(
    pipeline: Declaration, head: Head, rows: Mapping[Place, SourceRow]
) -> Iterator[tuple[Place, str]]:
    """Yield the processes that are far ahead of the slowest one that has begun."""
    max_drift = pipeline.limits.max_drift
    if max_drift is None:
        return
    inside = {
        place: row
        for place, row in rows.items()
        if row.seq and not row.is_idle and row.watermark < FOREVER
    }
    slowest = min(inside, key=lambda place: inside[place].watermark, default=("", ""))
    for (stream, process), row in inside.items():
        part = 2 if source_name(stream, process) in head.paused else 1
        ahead_ms = row.watermark - inside[slowest].watermark
        if ahead_ms * part > max_drift // timedelta(milliseconds=1):
            yield (
                (stream, process),
                f"it is over {max_drift} ahead of {source_name(*slowest).rstrip(':')}",
            )


def resume_sources(
    environment: Environment, head: Head, paused: Mapping[str, str], rows: Mapping[Place, SourceRow]
) -> Steps[None]:
    """Have the pull sources go on that need not wait any more; who pushes comes back by itself."""
    free = [
        pull_wake(environment, stream, row.seq, "let go", head.gen)
        for (stream, process), row in rows.items()
        if row.seq
        # Other code may have sources that this one does not know: nor could it read them.
        and isinstance(environment.pipeline.known_sources.get(stream), PullSource)
        and source_name(stream, process) in head.paused
        and source_name(stream, process) not in paused
    ]
    if free:
        yield CreateTasks(free)
