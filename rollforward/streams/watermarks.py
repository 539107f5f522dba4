"""The tick: it moves the watermarks of a pipeline, and wakes intervals that nobody works on.

A computation has two: `input`, the smallest of the times of what is in its inbox and of the outputs
of those who write for it; and the output, the smaller one of that and of what its timers hold back.
Both follow from rows: what a worker works on stays in its inbox until the commit that takes it out.
Late records hold the input at the watermark by which they were late (`mail.py`), and that of all
who may get what follows from them. So how late they are does not follow from who is slow.

All is read of one moment, where the service has such, and all inboxes are looked into side by side
(`looks.py`). Where it has none, the order of the reads makes up for it: sources first, then stage
by stage downstream, of each the inboxes before the timers, and of these a left one before those
that have taken its place. A record that moves meanwhile moves towards what is read later, so it is
seen.

Each tick raises the generation of the head. While anything moves it asks for the next one by a task
of the new name; when nothing does it looks once more, so that who saw the old generation is seen.
Two ticks at a time do no harm: the watermarks only rise, and one of two commits fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.streams.balancing import merge_idle
from rollforward.streams.calls import (
    ChangedError,
    Commit,
    Create,
    Found,
    Read,
    Snapshot,
    Steps,
)
from rollforward.streams.environment import Environment
from rollforward.streams.giving_way import unserved
from rollforward.streams.layout import Inbox, Left, interval_of
from rollforward.streams.leaving import clear, is_drained, is_waiting, settled
from rollforward.streams.looks import Seen, look
from rollforward.streams.mail import tick_wake, wake
from rollforward.streams.percentiles import Early
from rollforward.streams.pressure import (
    Place,
    Waiting,
    held_back,
    let_go,
    waiting_in,
)
from rollforward.streams.records import FOREVER, NEVER
from rollforward.streams.rows import Head, Interval
from rollforward.streams.shutting import Row, still_left, to_note
from rollforward.streams.silence import Hearing, hear, left_out, silent_among, watermark_of
from rollforward.streams.topology import Plan, idle_of, processes_of, with_idle

MAX_ROUNDS = 5


class Output(NamedTuple):
    """Before which time a computation writes nothing in time, and how far its readers may go.

    The second is earlier while late records are under way.
    """

    low: int
    reached: int


@dataclass
class Cut:
    """What a tick has read."""

    head: Found
    plan: Plan
    intervals: dict[tuple[str, int], Interval] = field(default_factory=dict)
    versions: dict[Any, Row] = field(default_factory=dict)  # Of intervals and sources.
    filled: set[tuple[str, Inbox]] = field(default_factory=set)
    left: dict[str, list[Left]] = field(default_factory=dict)
    pending: set[tuple[str, int]] = field(default_factory=set)
    inputs: dict[str, int] = field(default_factory=dict)
    lows: dict[str, int] = field(default_factory=dict)  # What they follow from: never lower.
    sources: dict[str, int] = field(default_factory=dict)
    silent: list[Any] = field(default_factory=list)  # Commit puts that leave processes out.
    was: Head | None = None  # Before a change that is tried.
    rows: dict[Place, Any] = field(default_factory=dict)  # Of the processes of sources.
    waiting: dict[str, Waiting] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    heard: dict[str, list[Any]] = field(default_factory=dict)  # By stream, who is waited for.
    early: dict[str, int] = field(default_factory=dict)
    quiet: set[Place] = field(default_factory=set)  # Processes that were not heard for long.
    hearings: dict[str, Hearing] = field(default_factory=dict)  # By stream.

    @property
    def has_moved(self) -> bool:
        head = self.head.body
        return bool(
            self.silent
            or {**head.early, **self.early} != head.early
            or {**head.inputs, **self.inputs} != head.inputs
            or {**head.sources, **self.sources} != head.sources
        )

    def hold(self, name: str) -> int:
        """Return the time at which a computation's timers hold back what it writes."""
        holds = (interval.hold for (each, _), interval in self.intervals.items() if each == name)
        return min(holds, default=NEVER)

    def to_wake(self, environment: Environment, now_ms: int) -> list[tuple[str, int]]:
        """Return the intervals that have something to do and no worker."""
        return [
            (name, lo)
            for (name, lo), interval in self.intervals.items()
            if self.has_work(name, lo, now_ms) and not environment.is_worked_on(interval, now_ms)
        ]

    def has_work(self, name: str, lo: int, now_ms: int) -> bool:
        interval = self.intervals[name, lo]
        reached = max(self.inputs[name], self.early.get(name, 0), self.head.body.reached(name))
        is_due = interval.due <= reached or interval.wall <= now_ms
        return is_due or (name, lo) in self.pending

    def resting(self, now_ms: int) -> dict[tuple[str, int], Interval]:
        """Return the intervals that nobody works on, and that have no work."""
        return {
            (name, lo): interval
            for (name, lo), interval in self.intervals.items()
            if not interval.is_held(now_ms) and not self.has_work(name, lo, now_ms)
        }

    def is_at_rest(self, now_ms: int) -> bool:
        if self.has_moved or self.left or is_waiting(self):
            return False
        return not any(self.has_work(name, lo, now_ms) for name, lo in self.intervals)


def tick(environment: Environment, *why: str | int) -> Steps[int]:
    """Move the watermarks once, wake who has work, and have the next tick come if need be.

    Args:
        why: Wakes by other tasks than senders do: theirs may have been purged, and a name stays
            taken for hours after that.

    Returns:
        How many intervals were woken.

    Raises:
        ChangedError: sources were faster again and again; nothing was published.
        OutcomeUnknownError: perhaps something was.
    """
    woken, published = 0, None
    for _ in range(MAX_ROUNDS):
        cut = yield from read_cut(environment)
        if cut is None:
            return 0
        now_ms = environment.now_ms()
        rests = cut.is_at_rest(now_ms)
        try:
            published = yield from _publish(environment, cut)
        except ChangedError:
            [head] = yield Read([environment.names.head])
            if head.body.gen != cut.head.body.gen:
                return woken  # By another tick, which looks after that.
            continue  # A source has written meanwhile, and counts on this tick.
        woken += yield from _wake(environment, cut, now_ms, why)
        yield from let_go(environment, cut.head.body, cut.held, cut.rows)
        yield from merge_idle(environment, published, cut.resting(now_ms))
        yield from clear(environment, cut)
        if not rests:
            break
        again = yield from read_cut(environment)
        if again is None or again.is_at_rest(environment.now_ms()):
            return woken
    if published is None:
        raise ChangedError
    yield Create([tick_wake(environment, published)])
    return woken


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
    early = Early(pipeline, cut.head.body, cut.sources, cut.heard)
    for name in pipeline.graph.order:
        if moment is None:
            seen = yield from look(environment, pipeline, cut.head.body, [name], moment)
            yield from _read_intervals(environment, cut, [name], moment)
        waiting = _see_computation(cut, name, out, seen)
        cut.waiting[name] = waiting_in(waiting)
        early.see(name, cut.inputs[name], waiting, cut.hold(name))
    cut.early = early.inputs
    cut.left = still_left(pipeline, cut.head.body, cut.versions, cut.filled)
    cut.held = held_back(pipeline, cut.head.body, cut.waiting, cut.rows, cut.quiet)
    return cut


def _read_sources(environment: Environment) -> Steps[tuple[Any, Found | None, dict[Place, Found]]]:
    """Return a moment, the head, and the rows of all processes of sources.

    Other versions of the code may have processes that this one does not know: the head has them.
    """
    names, memories = environment.names, environment.memories
    while True:
        places = processes_of(environment.pipeline, memories.get("processes", {}))
        moment, found = yield Snapshot([names.head, *(names.source(*each) for each in places)])
        head = found[0]
        if head is None or {*processes_of(environment.pipeline, head.body.processes)} <= {*places}:
            rows = zip(places, found[1:], strict=True)
            return moment, head, {place: row for place, row in rows if row is not None}
        memories["processes"] = head.body.processes


def _see_source(environment: Environment, cut: Cut, stream: str, rows: Mapping[str, Found]) -> None:
    """Find the watermark of a source: that of the slowest of its processes that is not silent."""
    head: Head = cut.head.body
    published = head.sources.get(stream, 0)
    inside = {process: row for process, row in rows.items() if not row.body.is_out}
    idle_ms, now_ms = idle_of(cut.plan, head, stream), environment.now_ms()
    hearing = cut.hearings[stream] = hear(head, stream, rows, idle_ms, now_ms)
    quiet = silent_among(head, stream, inside, hearing, idle_ms, now_ms)
    cut.quiet |= {(stream, process) for process in quiet}
    advance_ms = cut.plan.advance_ms(stream)
    silent = left_out(inside, quiet, advances=advance_ms is not None)
    for process, row in silent.items():
        key = environment.names.source(stream, process)
        cut.silent.append((key, row.body._replace(is_out=True), row.version))
    cut.heard[stream] = [row.body for process, row in inside.items() if process not in silent]
    known = [row.body for row in rows.values()]
    clock_ms = None if advance_ms is None else now_ms - advance_ms
    cut.sources[stream] = watermark_of(published, known, cut.heard[stream], clock_ms)


def _see_computation(
    cut: Cut, name: str, out: dict[str, Output], seen: Mapping[tuple[str, Inbox], Seen]
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
    cut.lows[name] = min([first, *feeds])
    reached = min([cut.lows[name], late, *(each.reached for each in upstream)])
    cut.inputs[name] = max(before, reached)
    hold = cut.hold(name)
    out[name] = Output(min(cut.lows[name], hold), min(reached, hold))
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


def _publish(environment: Environment, cut: Cut) -> Steps[Head]:
    """Commit the watermarks under the next generation; return the head as it is then.

    Raises:
        ChangedError: another tick was faster.
        OutcomeUnknownError: the task comes again, and looks again.
    """
    commit, new = published(environment, cut)
    new = new._replace(gen=new.gen + 1)
    commit.puts.insert(0, (environment.names.head, new, cut.head.version))
    yield commit
    return new


def published(environment: Environment, cut: Cut) -> tuple[Commit, Head]:
    """Return the head with what a cut has found, and a commit of the other rows that follow it."""
    head: Head = cut.head.body
    now_ms = environment.now_ms()
    noted = to_note(environment, head, cut.versions, now_ms)
    new = settled(head, cut.versions, now_ms)._replace(
        inputs={**head.inputs, **cut.inputs},
        early={**head.early, **cut.early},
        sources={**head.sources, **cut.sources},
        still=0 if cut.has_moved else head.still + 1,
        left=cut.left,
        waiting=cut.waiting,
        held=cut.held,
        heard={**head.heard, **cut.hearings},
        held_ms={**head.held_ms, **dict.fromkeys(cut.held, now_ms)},
        unserved=unserved(head, cut.to_wake(environment, now_ms), cut.intervals, now_ms),
    )
    new = with_idle(cut.plan, new)
    puts = {key: (key, body, version) for key, body, version in [*noted, *cut.silent]}
    return Commit(puts=[*puts.values()]), new


def _wake(
    environment: Environment, cut: Cut, now_ms: int, why: tuple[str | int, ...]
) -> Steps[int]:
    wakes = [
        wake(environment, (name, lo), cut.intervals[name, lo].gen, *why)
        for name, lo in cut.to_wake(environment, now_ms)
    ]
    if wakes:
        yield Create(wakes)
    return len(wakes)
