"""What can be read of a pipeline at any time: states, watermarks, backlog, dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import look_at_head
from rollforward.streams.graph.plan import RUNNING, processes_of
from rollforward.streams.inspection.queryable_state import StatusSnapshot, read_intervals
from rollforward.streams.model.records import NEVER
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
    """One range of a computation's keys, and what its worker has measured lately.

    `busy`: the share of the time in which it was at work. `hot_key`: a key that half of its records
    or more were of, with its share.
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
    """How far a computation is.

    `watermark`: before that nothing in time is missing. `hold`: the earliest of what its timers
    wait for; None: nothing. `waiting`: records in its inbox, of the first 200 chunks of each
    interval; `waiting_rows` and `waiting_bytes`: what stood there when the last tick looked, with
    which sources are held back. `waiting_timers`: those that have not fired: one for each open
    window. `known_for_ms`: for how long the id of a record that is pushed is known; less than its
    sources' `dedup` when more than 100,000 come to an interval in that time. None: nothing is
    pushed to it. `early`: the watermark that its timers follow, if it asks for a percentile.
    `version`: of its code; `phase`: what becomes of it (`Pipeline.topology`). The
    rest counts since the pipeline began: `records` that were worked on, `late` ones that were
    dropped, `dead` ones, `repeated` ones that were dropped by their id, `timers` that fired,
    `produced` records. `late_between_parts`: of a fused one, how many records that one of its
    parts wrote another one dropped as late. `inlined`: of a weak one, how many of its records those
    who write for it have worked on. `recovered`: how many lay where no worker looks, and came back
    as late ones: more than none means a bug, or a wrong answer of the store.
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
    percentile_watermarks: int | None = None
    version: int = 1
    phase: str = RUNNING
    intervals: tuple[IntervalStatus, ...] = ()
    inlined: int = 0
    recovered: int = 0


@dataclass(frozen=True)
class SourceStatus:
    """How far a source is: its watermark, and what it has brought.

    `idle`: processes that the watermark does not wait for; `paused`: those that backpressure
    stops, with the reason. `position`: where the next read of a pull source begins; None: at the
    beginning.
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
    """How far a pipeline is.

    `snapshot`: the rows that it was read from, for further questions of the same moment.
    """

    computations: Mapping[str, ComputationStatus] = field(default_factory=dict)
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    snapshot: StatusSnapshot | None = field(default=None, repr=False, compare=False)


def status(environment: Environment) -> Steps[Status]:
    """Return how far a pipeline is: a few reads for each of its intervals."""
    head = yield from look_at_head(environment)
    computations, inlined = {}, Counter[str]()
    plan, intervals = environment.at(head), dict[tuple[str, int], Interval]()
    for name in plan.graph.order:
        computations[name], by_lo = yield from _computation_status(environment, head, name, inlined)
        intervals |= {(name, lo): interval for lo, interval in by_lo.items()}
    sources = {}
    places = processes_of(plan, head.processes)
    for stream in plan.sources:
        processes = [each for of, each in places if of == stream]
        found = yield Read([environment.names.source(stream, each) for each in processes])
        known = {
            process: row.body
            for process, row in zip(processes, found, strict=True)
            if row is not None
        }
        for row in known.values():
            inlined.update(row.inlined)
        sources[stream] = SourceStatus(
            stream,
            head.sources.get(stream, 0),
            sum(row.records for row in known.values()),
            sum(row.late for row in known.values()),
            tuple(process for process, row in known.items() if row.is_idle),
            known[""].position if "" in known else None,
            {
                process: head.paused[source_name(stream, process)]
                for process in processes
                if source_name(stream, process) in head.paused
            },
        )
    for name in {*inlined} & {*computations}:
        was = computations[name]
        computations[name] = replace(
            was, records=was.records + inlined[name], inlined=inlined[name]
        )
    return Status(computations, sources, StatusSnapshot(head, intervals))


def _computation_status(
    environment: Environment, head: Head, name: str, inlined: Counter[str]
) -> Steps[tuple[ComputationStatus, dict[int, Interval]]]:
    plan = environment.at(head)
    part, asks = plan.running[name], plan.computation(name).percentile < 100
    los = head.intervals.get(name, ())
    waiting = yield from _waiting(environment, head, name)
    by_lo = yield from read_intervals(environment, name, los)
    found = list(by_lo.values())
    for each in found:
        inlined.update(each.inlined)
    hold = min((each.hold for each in found), default=NEVER)
    rows_, _, bytes_ = head.waiting.get(name, (0, 0, 0))
    status = ComputationStatus(
        name, head.inputs.get(name, 0), None if hold == NEVER else hold, waiting, rows_, bytes_,
        records=sum(each.records for each in found),
        late=sum(each.late for each in found),
        dead=sum(each.dead for each in found),
        repeated=sum(each.repeated for each in found),
        timers=sum(each.fired for each in found),
        produced=sum(each.produced for each in found),
        late_between_parts=sum(each.late_between_parts for each in found),
        waiting_timers=sum(each.timers for each in found),
        known_for_ms=known_for(environment, plan, name, found),
        percentile_watermarks=head.percentile_watermarks.get(name) if asks else None,
        version=part.version,
        phase=part.phase,
        intervals=tuple(
            _interval_status(environment, lo, each) for lo, each in by_lo.items()
        ),
        recovered=head.recovered.get(name, 0),
    )  # fmt: skip
    return status, by_lo


def _waiting(environment: Environment, head: Head, name: str) -> Steps[int]:
    """Return how many records wait for a computation, by one query if they are few."""
    names, inboxes = environment.names, inboxes_of(head, name)
    chunks = (yield Scan(CHUNK, *names.inboxes(name), MAX_BACKLOG)) if inboxes else []
    if len(chunks) == MAX_BACKLOG:
        chunks = []
        for created_in, lo in inboxes:
            inbox = names.inbox(name, lo, created_in)
            chunks += yield Scan(CHUNK, inbox, f"{inbox}{LATE + 1}", MAX_BACKLOG)
    return sum(len(found.body) for _, found in chunks)


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
    """Return for how long a computation knows the ids of what is pushed; None: nothing is."""
    horizon_ms, now_ms = plan.dedup_ms(name), environment.now_ms()
    if not horizon_ms:
        return None
    known = (known_for_ms(interval, horizon_ms, now_ms) for interval in intervals)
    return min(known, default=horizon_ms)


@dataclass(frozen=True)
class Overview:
    """All intervals of a pipeline that has run, by computation; the time of the latest record."""

    head: Head = field(default_factory=Head)
    intervals: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    latest: int = 0


def overview(environment: Environment) -> Steps[Overview]:
    """Return the rows that do not grow with what waits: three reads."""
    names, head = environment.names, (yield from look_at_head(environment))
    pipeline = environment.at(head)
    places = [(name, lo) for name in pipeline.graph.order for lo in head.intervals.get(name, ())]
    if not places:
        return Overview()
    found = yield Read([names.interval(name, lo) for name, lo in places])
    intervals: dict[str, list[Interval]] = {}
    for (name, _), row in zip(places, found, strict=True):
        if row is None:
            continue
        intervals.setdefault(name, []).append(row.body)
    processes = processes_of(pipeline, head.processes)
    sources = yield Read([names.source(*each) for each in processes if each[0] in pipeline.sources])
    latest = max((row.body.latest for row in sources if row is not None), default=0)
    return Overview(head, intervals, latest)


def source_row(environment: Environment, stream: str) -> Steps[SourceRow]:
    """Return how far a source of one process is."""
    [found] = yield Read([environment.names.source(stream, "")])
    return SourceRow() if found is None else found.body
