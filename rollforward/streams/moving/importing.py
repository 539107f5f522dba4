"""Import of an export into a pipeline that has never run.

The pipeline is created stopped, and its head names the export. Its first rows may take several
commits, which any process that reads it completes. Then its sources get their progress, each by a
commit that compares its row. Pages are written by commits that compare the row of an interval,
read before the head was seen to be stopped. So a page that is late fails when a worker has written.
The last commit lets the pipeline run, and sets the watermarks again, which ticks may have moved
while holds were missing. An import may be killed and repeated at any point, and several may run at
once: they write the same.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import run_steps
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.graph.plan import initial_computations
from rollforward.streams.model.errors import TopologyError, UnreadableStateError
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.moving.exporting import Run
from rollforward.streams.moving.file_format import (
    Header,
    Row,
    is_state,
    read_header,
    read_lines,
    state_of,
)
from rollforward.streams.moving.stopping import started, wake_all
from rollforward.streams.storage.layout import interval_of
from rollforward.streams.storage.remote_calls import (
    Commit,
    Key,
    Read,
    ScanKeys,
    Steps,
    TooLargeError,
)
from rollforward.streams.storage.retry import retry_commit
from rollforward.streams.storage.schema import (
    LATE,
    LOG,
    ON_TIME,
    SUBSCRIPTION,
    Head,
    InboxRecord,
    Names,
    chunk_id,
)
from rollforward.streams.storage.state_store import StateStore

MAX_PAGE_ROWS, MAX_PAGE_BYTES = 200, 1_000_000
Place = tuple[str, int]


def import_from(clients: Clients, pipeline: Declaration, path: str | os.PathLike[str]) -> Header:
    """Begin a pipeline with an export; return its header. The file is read twice, page by page.

    It may be repeated, also after it was killed; once it is done, that does nothing.

    Raises:
        IncompleteExportError: the file is not whole; nothing was written.
        TopologyError: the pipeline has run or published before, has other computations or sources,
            or lacks a codec.
        UnreadableStateError: a computation's `reads` lacks a version that has written states.
        Retry, Unavailable: repeat it; a part may have been written.
    """
    return import_with(functools.partial(run_steps, clients, pipeline), path)


def import_with(run: Run, path: str | os.PathLike[str]) -> Header:
    """Do the same where `run` runs steps."""
    header = read_header(path)
    if run(begin, header):
        for number, page in enumerate(pages_of(path)):
            run(import_page, header, number, page)
        run(finish, header)
    return header


def pages_of(path: str | os.PathLike[str]) -> Iterator[list[Row]]:
    """Yield the rows of a file by pages, each of states only or of records only; always the same.

    Raises:
        IncompleteExportError: the file has changed.
    """
    lines = read_lines(path)
    next(lines)
    for _, rows in groupby(lines, is_state):
        page, size = list[Row](), 0
        for row in rows:
            page.append(row)
            size += len(row["text"])
            if len(page) == MAX_PAGE_ROWS or size > MAX_PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page


def begin(environment: Environment, header: Header) -> Steps[bool]:
    """Create the pipeline stopped; return False if the import is done already.

    Raises:
        TopologyError: it has run before, or does not fit the export; nothing was written.
        UnreadableStateError: a version is missing; nothing was written.
    """
    _check_fits(environment.pipeline, header)
    [head] = yield Read([environment.names.head])
    if head is None:
        yield from _check_unpublished(environment)
    head = yield from read_head(environment, _first_head(environment, header))
    if not _is_open(environment, head.body, header):
        return False
    for progress in header.sources:
        yield from _write_source(environment, header, progress)
    return True


def import_page(
    environment: Environment, header: Header, number: int, page: Sequence[Row]
) -> Steps[None]:
    """Write a page of an export; it may be repeated until `finish`, and then does nothing.

    Raises:
        TopologyError: the pipeline has run before, without this export.
    """
    head = yield from read_head(environment)
    by_place: dict[Place, list[Row]] = defaultdict(list)
    for row in page:
        name = row["computation"]
        by_place[name, interval_of(head.body, name, slot_of(row["key"]))].append(row)
    for place, rows in sorted(by_place.items()):
        if is_state(rows[0]):
            states = {row["key"]: state_of(row) for row in rows}
            yield from _write_states(environment, header, place, states)
        else:
            yield from _write_records(environment, header, place, number, rows)


def finish(environment: Environment, header: Header) -> Steps[None]:
    """Let the pipeline run; it may be repeated.

    Raises:
        TopologyError: the pipeline has run before, without this export.
    """

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        head = yield from read_head(environment)
        if not _is_open(environment, head.body, header):
            return None
        body = with_watermarks(started(head.body), header)._replace(imported=header.id)
        return Commit(puts=[(environment.names.head, body, head.version)])

    yield from retry_commit(prepare)
    yield from wake_all(environment)


def with_watermarks(head: Head, header: Header) -> Head:
    """Return a head with the watermarks of an export."""
    return head._replace(
        inputs=header.watermarks,
        percentile_watermarks=header.percentiles,
        sources={stream: header.floor(stream) for stream, *_ in header.sources},
    )


def _check_fits(pipeline: Declaration, header: Header) -> None:
    names = {*pipeline.computations}
    if different := sorted(names ^ {*header.watermarks}):
        raise TopologyError(f"only one of {pipeline.name} and the export has {different}")
    sources = pipeline.sources.values()
    declared = {(source.stream, process) for source in sources for process in source.processes}
    if places := sorted(declared ^ {(place[0], place[1]) for place in header.sources}):
        raise TopologyError(f"only one of {pipeline.name} and the export has sources {places}")
    if unknown := sorted({*header.codecs} - {*pipeline.codecs.names}):
        raise TopologyError(f"{pipeline.name} must have the codecs {unknown} of the export")
    check_readable(pipeline, header)


def check_readable(pipeline: Declaration, header: Header) -> None:
    """Check that a pipeline's code declares to read the stored states.

    Raises:
        UnreadableStateError: it does not; the message names each version.
    """
    for name, versions in header.versions.items():
        code = pipeline.computations.get(name)
        if code and (unknown := sorted({*versions} - {code.version, *code.reads})):
            raise UnreadableStateError(
                f"version {code.version} of {name} does not declare that it reads states of "
                f"versions {unknown}: add them to its `reads`"
            )


def _is_open(environment: Environment, head: Head, header: Header) -> bool:
    """Return whether an import is unfinished; False: it is done."""
    if head.imported == header.id:
        return False
    if head.stopped.get("import") != header.id:
        raise TopologyError(
            f"{environment.pipeline.name} has run before: import into one that has no rows"
        )
    return True


def _check_unpublished(environment: Environment) -> Steps[None]:
    """Check that nobody has read a stream of an earlier pipeline of this name.

    Raises:
        TopologyError: somebody may have: a log that begins anew has other positions.
    """
    name = environment.pipeline.name
    for kind in (SUBSCRIPTION, LOG):
        if (yield ScanKeys(kind, f"{name}:", f"{name};", None, 1)):
            raise TopologyError(
                f"a pipeline {name} has published a stream here, and its readers have positions in "
                "that log: import it under another name, and let them subscribe to that"
            )


def _first_head(environment: Environment, header: Header) -> Head:
    stopped = {"import": header.id, "topology": initial_computations(environment.pipeline)}
    return with_watermarks(Head(stopped=stopped), header)


def _write_source(environment: Environment, header: Header, progress: Sequence[Any]) -> Steps[None]:
    """Write the progress of a process of a source, unless that is done."""
    stream, process, watermark, position = progress
    key = environment.names.source(stream, process)

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        row, head = yield Read([key, environment.names.head])
        if row.body.seq or not _is_open(environment, head.body, header):
            return None
        source = row.body._replace(
            watermark=watermark,
            latest=0 if watermark >= FOREVER else watermark,  # Of a record, which no end is.
            position=position,
            records=header.numbers.get(f"{stream}:{process}", 0),
            last=(environment.new_id(),),
            seq=1,
        )
        return Commit(puts=[(key, source, row.version)])

    yield from retry_commit(prepare)


def _write_states(
    environment: Environment, header: Header, place: Place, states: Mapping[str, KeyState]
) -> Steps[None]:
    """Write the states of keys of one interval, in as many commits as that takes."""
    try:
        yield from retry_commit(lambda failure: _states_commit(environment, header, place, states))
    except TooLargeError:
        if len(states) == 1:
            raise
        items, middle = sorted(states.items()), len(states) // 2
        for half in (items[:middle], items[middle:]):
            yield from _write_states(environment, header, place, dict(half))


def _states_commit(
    environment: Environment, header: Header, place: Place, states: Mapping[str, KeyState]
) -> Steps[Commit | None]:
    names, (name, lo) = environment.names, place
    interval, head = yield Read([names.interval(name, lo), names.head])
    if not _is_open(environment, head.body, header):
        return None
    store, commit = StateStore(names, name), Commit()
    yield from store.load(interval.body, states, ())
    slabs = store.change(interval.body, states, commit)
    if not commit.puts and not commit.inserts:
        return None
    body = interval.body._replace(slabs=slabs, seq=interval.body.seq + 1)
    commit.puts.insert(0, (names.interval(name, lo), body, interval.version))
    return commit


class _Chunk(NamedTuple):
    """Records of one page that wait for one interval, in one row. `late_at` is 0 if on time."""

    place: Place
    id: str
    late_at: int
    records: Sequence[InboxRecord]

    def halves(self) -> list[_Chunk]:
        """Return the same records as two rows."""
        middle = len(self.records) // 2
        parts = self.records[:middle], self.records[middle:]
        return [
            self._replace(id=f"{self.id}.{number}", records=part)
            for number, part in enumerate(parts)
        ]

    def key(self, names: Names) -> Key:
        lane = LATE if self.late_at else ON_TIME
        at = self.late_at or min(record.timestamp_ms for record in self.records)
        size = sum(len(record.text) for record in self.records)
        return names.chunk(*self.place, lane, at, chunk_id(self.id, "", len(self.records), size))


def _write_records(
    environment: Environment, header: Header, place: Place, number: int, rows: Iterable[Row]
) -> Steps[None]:
    """Write records of one page that wait for one interval, in chunks named by the page."""
    by_lane: dict[int, list[InboxRecord]] = defaultdict(list)
    for row in rows:
        at, late_at = row["timestamp_ms"], row["late_at"]
        if at < header.watermarks[place[0]]:
            late_at = late_at or header.watermarks[place[0]]
        by_lane[late_at].append(InboxRecord(row["key"], at, row["stream"], row["id"], row["text"]))
    for late_at, records in sorted(by_lane.items()):
        chunk = _Chunk(place, f"{header.id}-{number}", late_at, records)
        yield from _write_chunk(environment, header, chunk)


def _write_chunk(environment: Environment, header: Header, chunk: _Chunk) -> Steps[None]:
    """Write a chunk, or its halves if its row would be too large."""
    try:
        yield from retry_commit(lambda failure: _chunk_commit(environment, header, chunk))
    except TooLargeError:
        if len(chunk.records) == 1:
            raise
        for half in chunk.halves():
            yield from _write_chunk(environment, header, half)


def _chunk_commit(environment: Environment, header: Header, chunk: _Chunk) -> Steps[Commit | None]:
    names, key = environment.names, chunk.key(environment.names)
    interval, head, existing = yield Read([names.interval(*chunk.place), names.head, key])
    if existing is not None or not _is_open(environment, head.body, header):
        return None
    body = interval.body._replace(seq=interval.body.seq + 1)
    puts = [(names.interval(*chunk.place), body, interval.version)]
    return Commit(puts=puts, inserts=[(key, tuple(chunk.records))])
