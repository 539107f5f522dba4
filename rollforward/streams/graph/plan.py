"""The topology of a pipeline: which computations run, in which version. It is stored in the head.

Code says what may run; the head says what does. So what runs does not follow from which version of
an app happens to take a task, and all versions that serve side by side know who sends to whom.

A change of the topology is a layout of its own, as a split is (layout.py): each sender goes by one
layout in each of its commits, and notes it in its row. Once all have noted the one of a change,
nobody goes by an older topology, and never will again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PushSource
from rollforward.streams.storage.schema import Head, part_of_row

# What becomes of a computation; RUNNING: nothing, it runs.
RUNNING, ATTACHING, REPLACING, DRAINING, DISCARDING, CLEANING = (
    "running",
    "attaching",
    "replacing",
    "draining",
    "discarding",
    "cleaning",
)
LEAVING = (DRAINING, DISCARDING, CLEANING)
MAX_HISTORY = 20


class RunningComputation(NamedTuple):
    """A computation of a topology.

    Attributes:
        inputs: The streams that it reads.
        written: The streams that it may write.
        since: The layout with which it came into its phase.
        previous_version: The version that it replaces; its streams may still be written
            (`previous_outputs`).
        kept: The versions whose states may be stored.
        weak: Whether those who write for it run it.
        records, timers, keys: How many were discarded so far, of one that leaves.
        sink: Whether records leave the pipeline there: their ids follow from their places.
        percentile: How much of what is expected its timers wait for.
    """

    version: int
    inputs: Sequence[str]
    written: Sequence[str]
    phase: str = RUNNING
    since: int = 0
    previous_version: int = 0
    previous_outputs: Sequence[str] = ()
    stored_versions: Sequence[int] = ()
    records: int = 0
    timers: int = 0
    keys: int = 0
    weak: bool = False
    sink: bool = False
    percentile: float = 100

    @property
    def is_leaving(self) -> bool:
        return self.phase in LEAVING


class Change(NamedTuple):
    """A change of a topology that is done.

    Attributes:
        action: "attached", "replaced" or "detached".
        previous_version: The version that was replaced; 0: none.
        at_ms: When it was done.
        records, timers, keys: How many were discarded with it.
    """

    computation: str
    action: str
    version: int
    previous_version: int
    at_ms: int
    records: int = 0
    timers: int = 0
    keys: int = 0


def running_computation(
    computation: Computation, phase: str = RUNNING, since: int = 0
) -> RunningComputation:
    """Return a computation as it stands in a topology."""
    inputs, written = tuple(computation.inputs), computation.written
    version = computation.version
    return RunningComputation(
        version, inputs, written, phase, since, stored_versions=(version,), weak=computation.weak,
        sink=isinstance(computation, Sink), percentile=computation.percentile,
    )  # fmt: skip


def running_computations(head: Head) -> dict[str, RunningComputation]:
    """Return the topology of a head, by computation."""
    return {name: part_of_row(RunningComputation, part) for name, part in head.topology.items()}


def initial_computations(pipeline: Declaration) -> dict[str, RunningComputation]:
    """Return the topology that a pipeline begins with."""
    return {name: running_computation(each) for name, each in pipeline.computations.items()}


def processes_of(
    pipeline: Declaration, stored: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return all processes of sources, by stream: those of this code, and those that are stored."""
    streams = {**dict.fromkeys(pipeline.known_sources, ()), **stored}
    return [
        (stream, process)
        for stream, processes in streams.items()
        for process in dict.fromkeys([*_declared(pipeline, stream), *processes])
    ]


def _declared(pipeline: Declaration, stream: str) -> Sequence[str]:
    source = pipeline.known_sources.get(stream)
    return source.processes if source is not None else ()


def idle_of(plan: ActivePipeline, head: Head, stream: str) -> int:
    """Return after which silence a process of a source is left out, also of one of other code."""
    if stream not in plan.known_sources and stream in head.idle:
        return head.idle[stream]
    return plan.idle_ms(stream)


def with_idle(plan: ActivePipeline, head: Head) -> Head:
    """Return a head that has, for other code, what this code knows of sources."""
    known = {each: plan.idle_ms(each) for each in plan.sources if each in plan.known_sources}
    return head._replace(idle={**head.idle, **known})


def with_process(head: Head, stream: str, process: str) -> Head:
    """Return a head that knows of a process of a source."""
    known = head.processes.get(stream, ())
    if process in known:
        return head
    return head._replace(processes={**head.processes, stream: [*known, process]})


def has_pending_change(head: Head) -> bool:
    """Return whether a change is not done yet."""
    return any(part.phase != RUNNING for part in running_computations(head).values())


def history_of(head: Head) -> list[Change]:
    """Return the last changes, the latest first."""
    return [part_of_row(Change, each) for each in reversed(head.history)]


def with_change(head: Head, change: Change) -> Head:
    """Return a head that remembers a change."""
    return head._replace(history=(*head.history[1 - MAX_HISTORY :], change))


class MissingVersion(Computation):
    """A computation that runs and that this code does not have.

    Who sends to whom is known, and which watermarks are asked for: ticks of any code move them.
    """

    def __init__(self, name: str, part: RunningComputation) -> None:
        self.name, self.version = name, part.version
        self.inputs = dict.fromkeys(part.inputs, str)
        self.outputs = tuple(part.written)
        self.weak, self.percentile = part.weak, part.percentile


class ActivePipeline(Declaration):
    """A pipeline as the topology of a head has it."""

    def __init__(self, declared: Declaration, parts: Mapping[str, RunningComputation]) -> None:
        """Put together what runs, with what leaves and what is replaced while that goes on."""
        self.name = declared.name
        self.sinks, self.limits = declared.sinks, declared.limits
        self.intervals, self.versions = declared.intervals, declared.versions
        self.known_sources = declared.known_sources
        self.running = {name: part for name, part in parts.items() if part.phase != CLEANING}
        running = [_code(declared, name, part) for name, part in self.running.items()]
        self.graph: ActiveGraph = ActiveGraph(
            declared.name,
            running,
            {name: part.previous_outputs for name, part in self.running.items()},
            {name for name, part in self.running.items() if part.is_leaving},
        )
        self.computations = self.graph.computations
        self.sources = {
            stream: self.known_sources.get(stream) or PushSource(stream)
            for stream in self.graph.source_streams
        }

    def accepts_input(self, computation: str) -> bool:
        """Return whether a computation runs, and gets what is sent."""
        return computation in self.running and not self.running[computation].is_leaving

    def is_active(self, computation: str) -> bool:
        """Return whether a computation has something to do, if only until it has left."""
        part = self.running.get(computation)
        return part is not None and part.phase != DISCARDING

    def is_sink(self, computation: str) -> bool:
        """Return whether records leave the pipeline there, in whatever code has it."""
        part = self.running.get(computation)
        return part is not None and (part.sink or isinstance(self.computations[computation], Sink))

    def runnable(self, computation: str) -> Computation:
        """Return a computation that this code can run.

        Raises:
            UnknownStreamError: it does not run.
            MissingCodeError: other instances have it.
        """
        found = self.computation(computation)
        if isinstance(found, MissingVersion):
            raise _missing(self.name, found)
        return found

    def runnable_sender(self, computation: str) -> Computation:
        """Return a computation that this code can run, and whose records it can send.

        Raises:
            UnknownStreamError: it does not run.
            MissingCodeError: other instances have it, or one that reads what it writes.
        """
        for stream in self.graph.written[computation]:
            self.graph.check_readers(stream)
        return self.runnable(computation)


class ActiveGraph(Graph):
    """A graph, of which this code may not know all."""

    def __init__(
        self,
        pipeline: str,
        computations: Sequence[Computation],
        also: Mapping[str, Sequence[str]],
        leaving: Collection[str],
    ) -> None:
        super().__init__(computations, also, leaving)
        self._pipeline = pipeline

    def route(self, stream: str, value: Any) -> tuple[Target, ...]:
        """Return who gets a record of a stream, each under its key.

        Raises:
            MissingCodeError: one of them is not in this code, which cannot tell the key.
        """
        if self._unknown:
            self.check_readers(stream)
        return super().route(stream, value)

    @cached_property
    def _unknown(self) -> Mapping[str, MissingVersion]:
        """Return by stream a reader of it that this code does not have."""
        return {
            stream: found
            for stream, readers in self.readers.items()
            for name, _ in readers
            if isinstance(found := self.computations[name], MissingVersion)
        }

    def check_readers(self, stream: str) -> None:
        """Check that this code knows who reads a stream.

        Raises:
            MissingCodeError: it does not.
        """
        if stream in self._unknown:
            raise _missing(self._pipeline, self._unknown[stream])


def _code(declared: Declaration, name: str, part: RunningComputation) -> Computation:
    found = declared.versions.get((name, part.version))
    return found if found is not None and is_same(found, part) else MissingVersion(name, part)


def is_same(computation: Computation, part: RunningComputation) -> bool:
    """Return whether code reads and writes the streams that are stored of its version."""
    code = running_computation(computation)
    return (code.version, code.weak, {*code.inputs}, {*code.written}) == (
        part.version,
        part.weak,
        {*part.inputs},
        {*part.written},
    )


def _missing(pipeline: str, computation: MissingVersion) -> MissingCodeError:
    return MissingCodeError(
        f"{pipeline}: version {computation.version} of {computation.name} runs, and this code has "
        "none that reads and writes these streams: it is left to other instances of the app"
    )
