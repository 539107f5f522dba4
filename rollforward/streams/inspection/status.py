"""Status of a pipeline: watermarks, backlogs and counts of its computations and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import find_head
from rollforward.streams.graph.plan import RUNNING, processes_of
from rollforward.streams.inspection.queryable_state import StatusSnapshot, read_intervals
from rollforward.streams.model.records import FOREVER, NEVER
from rollforward.streams.scaling.load_meter import STALE_MS
from rollforward.streams.storage.dedup import known_for_ms
from rollforward.streams.storage.layout import inboxes_of
from rollforward.streams.storage.remote_calls import (
    Read,
    Scan,
    Steps,
)
from rollforward.streams.storage.schema import (
    CHUNK,
    LATE,
    Head,
    Interval,
    Load,
    SourceRow,
)
from rollforward.streams.watermarks.backpressure import source_name

MAX_BACKLOG = 200


@dataclass(frozen=True)
class IntervalStatus:
    """One range of a computation's keys, with the latest measurements of its worker.

    Attributes:
        busy: Share of the time that the worker was busy.
        hot_key: A key with at least half of the records; `hot_share` is its share.
    """

    first_slot: int
    is_leased: bool
    records: int
    records_s: float
    busy: float
    commit_ms: float
    hot_key: str = ""
    hot_share: float = 0


@dataclass(frozen=True)
class ComputationStatus:
    """Progress of a computation; counts are since the pipeline began.

    Attributes:
        watermark: No on-time record is still to come before it.
        hold: The earliest time that its timers hold; None: there is none.
        waiting: Records in its inbox, of the first 200 chunks of each interval.
        waiting_rows, waiting_bytes: Backlog at the last tick, as backpressure measures it.
        records: Processed records.
        late: Records dropped as late.
        dead: Records and timers that became dead letters, replayed and discarded ones included.
        repeated: Records dropped by their id.
        timers: Timers that fired.
        produced: Emitted records.
        late_between_parts: Records that one part of a fused computation emitted and another
            dropped as late.
        waiting_timers: Timers that have not fired: one for each open window.
        known_for_ms: How long the id of a pushed record is known; None: no source pushes to it. It
            is less than the sources' `dedup` if an interval gets over 100,000 ids in that time.
        percentile_watermark: The watermark of its timers, if it asks for a percentile.
        version: Version of its code.
        phase: Phase of a topology change (`Pipeline.topology`).
        inlined: Records of a weak computation that senders processed inline.
        recovered: Stranded records that the sweep put back as late ones; above 0 is a bug, or a
            wrong answer of the store.
    """

    name: str
    watermark: int
    hold: int | None
    waiting: int
    waiting_rows: int
    waiting_bytes: int
    records: int
    late: int
    dead: int
    repeated: int
    timers: int
    produced: int
    late_between_parts: int = 0
    waiting_timers: int = 0
    known_for_ms: int | None = None
    percentile_watermark: int | None = None
    version: int = 1
    phase: str = RUNNING
    intervals: tuple[IntervalStatus, ...] = ()
    inlined: int = 0
    recovered: int = 0


@dataclass(frozen=True)
class SourceStatus:
    """Progress of a source.

    Attributes:
        idle: Processes that the watermark does not wait for.
        position: The next read position of a pull source, or of each of its partitions by name;
            None: the beginning.
        paused: Processes that backpressure pauses, with the reasons.
    """

    stream: str
    watermark: int
    records: int
    late: int
    idle: tuple[str, ...] = ()
    position: Any = None
    paused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """Progress of a pipeline.

    `snapshot`: the rows that it comes from, for further questions about the same moment.
    """

    computations: Mapping[str, ComputationStatus] = field(default_factory=dict)
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    snapshot: StatusSnapshot | None = field(default=None, repr=False, compare=False)


def status(environment: Environment) -> Steps[Status]:
    """Return the progress of a pipeline: a few reads for each of its intervals."""
    head = yield from find_head(environment)
    plan, intervals = environment.at(head), dict[tuple[str, int], Interval]()
    computations, inlined = dict[str, ComputationStatus](), Counter[str]()
    for name in plan.graph.order:
        backlog = yield from _backlog(environment, head, name)
        by_lo = yield from read_intervals(environment, name, head.intervals.get(name, ()))
        computations[name] = _computation_status(environment, head, name, by_lo, backlog)
        intervals |= {(name, lo): interval for lo, interval in by_lo.items()}
        for interval in by_lo.values():
            inlined.update(interval.inlined)
    sources = {}
    places = processes_of(plan, head.processes)
    for stream in plan.sources:
        processes = [process for place_stream, process in places if place_stream == stream]
        rows = yield from _source_rows(environment, stream, processes)
        for row in rows.values():
            inlined.update(row.inlined)
        sources[stream] = _source_status(head, stream, processes, rows)
    for name in {*inlined} & {*computations}:
        records = computations[name].records + inlined[name]
        computations[name] = replace(computations[name], records=records, inlined=inlined[name])
    return Status(computations, sources, StatusSnapshot(head, intervals))


def _source_rows(
    environment: Environment, stream: str, processes: Sequence[str]
) -> Steps[dict[str, SourceRow]]:
    rows = yield Read([environment.names.source(stream, process) for process in processes])
    by_process = zip(processes, rows, strict=True)
    return {process: row.body for process, row in by_process if row is not None}


def _source_status(
    head: Head, stream: str, processes: Sequence[str], rows: Mapping[str, SourceRow]
) -> SourceStatus:
    paused = {process: head.paused.get(source_name(stream, process)) for process in processes}
    return SourceStatus(
        stream,
        head.sources.get(stream, 0),
        sum(row.records for row in rows.values()),
        sum(row.late for row in rows.values()),
        tuple(process for process, row in rows.items() if row.is_idle),
        _position(rows),
        {process: reason for process, reason in paused.items() if reason is not None},
    )


def _position(rows: Mapping[str, SourceRow]) -> Any:
    """Return the position of a pull source, or those of its partitions by name."""
    if "" in rows:
        return rows[""].position
    positions = {name: row.position for name, row in rows.items() if row.position is not None}
    return positions or None


def _computation_status(
    environment: Environment, head: Head, name: str, by_lo: Mapping[int, Interval], backlog: int
) -> ComputationStatus:
    plan, intervals = environment.at(head), list(by_lo.values())
    running, has_percentile = plan.running[name], plan.computation(name).percentile < 100
    hold = min((interval.hold for interval in intervals), default=NEVER)
    rows, _, size = head.waiting.get(name, (0, 0, 0))
    return ComputationStatus(
        name, head.inputs.get(name, 0), None if hold == NEVER else hold, backlog, rows, size,
        records=sum(interval.records for interval in intervals),
        late=sum(interval.late for interval in intervals),
        dead=sum(interval.dead for interval in intervals),
        repeated=sum(interval.repeated for interval in intervals),
        timers=sum(interval.fired for interval in intervals),
        produced=sum(interval.produced for interval in intervals),
        late_between_parts=sum(interval.late_between_parts for interval in intervals),
        waiting_timers=sum(interval.timers for interval in intervals),
        known_for_ms=known_for(environment, plan, name, intervals),
        percentile_watermark=head.percentile_watermarks.get(name) if has_percentile else None,
        version=abs(running.version),  # Of a stopped one it is negative.
        phase=running.phase,
        intervals=tuple(
            _interval_status(environment, lo, interval) for lo, interval in by_lo.items()
        ),
        recovered=head.recovered.get(name, 0),
    )  # fmt: skip


def _backlog(environment: Environment, head: Head, name: str) -> Steps[int]:
    """Return how many records a computation has pending, by one query if they are few."""
    names, inboxes = environment.names, inboxes_of(head, name)
    chunks = (yield Scan(CHUNK, *names.inboxes(name), MAX_BACKLOG)) if inboxes else []
    if len(chunks) == MAX_BACKLOG:
        chunks = []
        for created_in, lo in inboxes:
            inbox = names.inbox(name, lo, created_in)
            chunks += yield Scan(CHUNK, inbox, f"{inbox}{LATE + 1}", MAX_BACKLOG)
    return sum(len(row.body) for _, row in chunks)


def _interval_status(environment: Environment, lo: int, interval: Interval) -> IntervalStatus:
    load, now_ms = interval.load, environment.now_ms()
    if load.at_ms < now_ms - STALE_MS:
        load = Load()
    return IntervalStatus(
        lo, interval.is_leased(now_ms), interval.records, load.records_s, load.busy, load.commit_ms,
        load.hot_key, load.hot_share,
    )  # fmt: skip


def known_for(
    environment: Environment, plan: Declaration, name: str, intervals: Sequence[Interval]
) -> int | None:
    """Return how long a computation knows the ids of pushed records; None: it gets none."""
    horizon_ms, now_ms = plan.dedup_ms(name), environment.now_ms()
    if not horizon_ms:
        return None
    spans_ms = (known_for_ms(interval, horizon_ms, now_ms) for interval in intervals)
    return min(spans_ms, default=horizon_ms)


@dataclass(frozen=True)
class Overview:
    """All intervals of a pipeline by computation, and its sources.

    Attributes:
        sources: Rows of the processes of its sources, by stream and name.
    """

    head: Head = field(default_factory=Head)
    intervals: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    sources: Mapping[tuple[str, str], SourceRow] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The time of the latest record; 0: there is none."""
        return max((row.latest for row in self.sources.values()), default=0)

    @property
    def inlined(self) -> Counter[str]:
        """By weak computation, the records that its senders processed inline."""
        counts = Counter[str]()
        for source in self.sources.values():
            counts.update(source.inlined)
        for interval in chain.from_iterable(self.intervals.values()):
            counts.update(interval.inlined)
        return counts

    @property
    def slowest(self) -> tuple[str, str] | None:
        """The process with the lowest watermark; None: all have ended, or are idle."""
        awaited = {
            place: row.watermark
            for place, row in self.sources.items()
            if not row.is_idle and row.watermark < FOREVER
        }
        return min(awaited, key=lambda place: awaited[place], default=None)


def overview(environment: Environment) -> Steps[Overview]:
    """Return the rows that do not grow with the backlog, by three reads."""
    names, head = environment.names, (yield from find_head(environment))
    pipeline = environment.at(head)
    places = [(name, lo) for name in pipeline.graph.order for lo in head.intervals.get(name, ())]
    if not places:
        return Overview()
    rows = yield Read([names.interval(name, lo) for name, lo in places])
    intervals: dict[str, list[Interval]] = {}
    for (name, _), row in zip(places, rows, strict=True):
        if row is None:
            continue
        intervals.setdefault(name, []).append(row.body)
    processes = [
        place for place in processes_of(pipeline, head.processes) if place[0] in pipeline.sources
    ]
    found = yield Read([names.source(*place) for place in processes])
    pairs = zip(processes, found, strict=True)
    return Overview(head, intervals, {place: row.body for place, row in pairs if row is not None})


def source_rows(
    environment: Environment, places: Sequence[tuple[str, str]]
) -> Steps[list[SourceRow]]:
    """Return the rows of processes of sources, by stream and name."""
    rows = yield Read([environment.names.source(*place) for place in places])
    return [SourceRow() if row is None else row.body for row in rows]
