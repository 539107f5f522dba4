"""Export of a stopped pipeline, page by page: a slab, or some large states, or some chunks.

It writes nothing to the pipeline, so it may be killed and repeated, and two may run: each makes the
same file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import run_steps
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import find_head
from rollforward.streams.graph.plan import RunningComputation
from rollforward.streams.model.errors import TopologyError
from rollforward.streams.model.sources import PullSource
from rollforward.streams.moving.file_format import Header, Row, state_row, write_file
from rollforward.streams.publications import Publication
from rollforward.streams.storage.dedup import KnownIds
from rollforward.streams.storage.inbox import gather
from rollforward.streams.storage.layout import creation_layout, retired_of
from rollforward.streams.storage.remote_calls import Read, Scan, Steps, StoredRow
from rollforward.streams.storage.schema import CHUNK, Head, Interval, part_of_row
from rollforward.streams.storage.state_store import StateStore

# At most 1 MB each.
LARGE_AT_ONCE, CHUNKS_AT_ONCE = 10, 10
MAX_RECORDS = 2**31
# Runs steps: their function without its environment, and its other arguments.
Run = Callable[..., Any]


class Place(NamedTuple):
    """An interval: its computation and its first slot."""

    computation: str
    lo: int


def export_to(clients: Clients, pipeline: Declaration, path: str | os.PathLike[str]) -> Header:
    """Write a stopped pipeline to a file, and return its header.

    At most one page is in memory, and the hashes of the ids of records that wait.

    Raises:
        TopologyError: it is not stopped or is resumed meanwhile, it publishes a stream, or records
            wait where a split or merge has left them.
        Retry, Unavailable: repeat it.
    """
    return export_with(functools.partial(run_steps, clients, pipeline), path)


def export_with(run: Run, path: str | os.PathLike[str]) -> Header:
    """Do the same where `run` runs steps."""
    head = run(find_head)
    header: Header = run(header_of, head)
    write_file(path, header, _rows(run, head))
    return header


def _rows(run: Run, head: Head) -> Iterator[Row]:
    for place in places_of(head):
        for slab in run(slabs_of, place):
            first: int | None = 0
            while first is not None:
                page, first = run(states_page, place, slab, first)
                yield from page
        after: str | None = ""
        ids = frozenset[str]()
        while after is not None:
            page, after, ids = run(record_page, head, place, after, ids)
            yield from page
    run(_check_still_stopped, head)


def places_of(head: Head) -> list[Place]:
    """Return all intervals, in order."""
    return [Place(name, lo) for name in sorted(head.intervals) for lo in head.intervals[name]]


def header_of(environment: Environment, head: Head) -> Steps[Header]:
    """Return the header of an export.

    Raises:
        TopologyError: as `export_to` does.
    """
    stopped = head.stopped
    if "inputs" not in stopped:
        raise TopologyError(f"{environment.pipeline.name} is not stopped: stop it first")
    if logs := [sink.name for sink in environment.pipeline.sinks if isinstance(sink, Publication)]:
        raise TopologyError(f"the logs of {', '.join(logs)} cannot be moved: their readers stay")
    for name in head.intervals:
        for inbox in retired_of(head, name):
            prefix = environment.names.inbox(name, inbox.lo, inbox.created_in)
            if (yield Scan(CHUNK, prefix, f"{prefix}~", 1)):
                raise TopologyError(
                    f"records wait in an inbox of {name} that was split or merged: resume, and "
                    "stop it again when they have been forwarded"
                )
    running = {
        name: part_of_row(RunningComputation, fields)
        for name, fields in stopped["topology"].items()
    }
    due = set[str]()
    for place in places_of(head):
        interval = yield from _interval(environment, place)
        name = place.computation
        reached = max(stopped["inputs"].get(name, 0), stopped["percentiles"].get(name, 0))
        if interval.due <= reached:
            due.add(name)
    return Header(
        id=stopped["id"],
        pipeline=environment.pipeline.name,
        watermarks={name: stopped["inputs"].get(name, 0) for name in sorted(running)},
        sources=[[*source] for source in stopped["sources"]],
        versions={
            name: [*entry.stored_versions] for name, entry in running.items() if not entry.sink
        },
        percentiles=stopped["percentiles"],
        due=sorted(due),
        codecs=environment.pipeline.codecs.names,
        numbers=(yield from _numbers(environment, stopped["sources"])),
    )


def _numbers(environment: Environment, sources: Sequence[Sequence[Any]]) -> Steps[dict[str, int]]:
    """Return the numbers of the next records of pull sources that a weak sink reads."""
    pipeline = environment.pipeline
    places = [
        (stream, partition)
        for stream, partition, *_ in sources
        if stream in pipeline.weak_sink_streams
        and isinstance(pipeline.known_sources[stream], PullSource)
    ]
    keys = [environment.names.source(*place) for place in places]
    rows = (yield Read(keys)) if keys else []
    return {":".join(place): row.body.records for place, row in zip(places, rows, strict=True)}


def _check_still_stopped(environment: Environment, head: Head) -> Steps[None]:
    """Check that all pages are of one cut.

    Raises:
        TopologyError: the pipeline was resumed meanwhile.
    """
    if (yield from find_head(environment)).stopped.get("id") != head.stopped["id"]:
        raise TopologyError(
            f"{environment.pipeline.name} was resumed while it was exported: stop it again"
        )


def _interval(environment: Environment, place: Place) -> Steps[Interval]:
    [row] = yield Read([environment.names.interval(*place)])
    return row.body  # type: ignore[no-any-return]


def slabs_of(environment: Environment, place: Place) -> Steps[list[int]]:
    """Return the first slots of the slabs of an interval."""
    interval = yield from _interval(environment, place)
    return [slab.lo for slab in interval.slabs]


def states_page(
    environment: Environment, place: Place, slab: int, first: int
) -> Steps[tuple[list[Row], int | None]]:
    """Return the rows of a slab's keys from the first one on, and the next one; None: no more."""
    interval = yield from _interval(environment, place)
    store = StateStore(environment.names, place.computation)
    yield from store.load(interval, (), [slab])
    is_large = store.rows[environment.names.slab(place.computation, slab)].body.large
    keys = store.keys(slab)[first : first + LARGE_AT_ONCE if is_large else None]
    yield from store.load(interval, keys, ())
    rows = [
        {"computation": place.computation, "key": key, **state_row(store.state(interval, key))}
        for key in keys
    ]
    following = first + len(keys)
    return rows, following if following < len(store.keys(slab)) else None


def record_page(
    environment: Environment, head: Head, place: Place, after: str, seen: frozenset[str]
) -> Steps[tuple[list[Row], str | None, frozenset[str]]]:
    """Return rows of records that wait for an interval, behind a chunk, and the last chunk of them.

    A record that was accepted before is left out, as its worker would have dropped it.

    Args:
        seen: Hashes of the ids of records in earlier chunks.
    """
    name, lo = place
    prefix = environment.names.inbox(name, lo, creation_layout(head, name, lo))
    low = f"{after}\0" if after else prefix
    chunks = yield Scan(CHUNK, low, f"{prefix}~", CHUNKS_AT_ONCE)
    if not chunks:
        return [], None, seen
    known = yield from _known_ids(environment, head, place)
    rows, ids = _waiting(name, chunks, known | seen)
    return rows, chunks[-1][0], seen | {*ids}


def _known_ids(environment: Environment, head: Head, place: Place) -> Steps[frozenset[str]]:
    """Return hashes of the ids that an interval knew when the pipeline was stopped."""
    horizon_ms = environment.pipeline.dedup_ms(place.computation)
    known = KnownIds(environment.names, *place, horizon_ms)
    interval = yield from _interval(environment, place)
    yield from known.load(interval, head.stopped["at_ms"])
    return frozenset(known.accepted)


def _waiting(
    name: str, chunks: Sequence[tuple[str, StoredRow]], accepted: frozenset[str]
) -> tuple[list[Row], list[str]]:
    bundle = gather(chunks, accepted, MAX_RECORDS, are_decoded=False)
    rows = [
        {
            "computation": name,
            "key": record.key,
            "stream": record.stream,
            "id": record.id,
            "text": record.text,
            "timestamp_ms": record.timestamp_ms,
            "late_at": record.late_at,
        }
        for record in bundle.inputs
    ]
    return rows, [id_ for id_ in bundle.ids if id_]
