"""The topology of a pipeline, stored in the head: the running computations and their versions.

Code declares the computations that may run; the head stores the ones that do. So the topology does
not depend on the app version that happens to receive a task. During a rolling deployment, all
versions agree on senders and readers.

A change of the topology creates a layout version, like a split (layout.py). A sender uses one
layout per commit and stores its version in its row. Once all senders have acknowledged the version
of a change, none of them uses an older topology again.
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

# Phases of a computation.
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
        since: The layout version in which its phase began.
        previous_version: The version that it replaces.
        previous_outputs: The streams of that version, which may still be written.
        stored_versions: The versions whose states may be stored.
        records, timers, keys: The numbers of discarded items, while it leaves.
        weak: Whether its writers run it inline.
        sink: Whether it is a sink: ids of its records are derived from their places.
        percentile: The share of the expected records that its timers wait for.
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
    """A completed change of a topology.

    Attributes:
        action: "attached", "replaced" or "detached".
        previous_version: The version that was replaced; 0: none.
        at_ms: The time of completion.
        records, timers, keys: The numbers of discarded items.
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
    """Return a computation as an entry of a topology."""
    inputs, written = tuple(computation.inputs), computation.written
    version = computation.version
    return RunningComputation(
        version, inputs, written, phase, since, stored_versions=(version,), weak=computation.weak,
        sink=isinstance(computation, Sink), percentile=computation.percentile,
    )  # fmt: skip


def running_computations(head: Head) -> dict[str, RunningComputation]:
    """Return the topology of a head, by computation."""
    return {name: part_of_row(RunningComputation, fields) for name, fields in head.topology.items()}


def initial_computations(pipeline: Declaration) -> dict[str, RunningComputation]:
    """Return the first topology of a pipeline."""
    return {name: running_computation(code) for name, code in pipeline.computations.items()}


def stopped_topology(
    running: Mapping[str, RunningComputation],
) -> dict[str, RunningComputation]:
    """Return a topology whose computations run in no code."""
    return {name: entry._replace(version=-entry.version) for name, entry in running.items()}


def processes_of(
    pipeline: Declaration, stored: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return all (stream, process) pairs of sources, from this code and from storage."""
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
    """Return the idle timeout of a source's processes, even if only other code has the source."""
    if stream not in plan.known_sources and stream in head.idle:
        return head.idle[stream]
    return plan.idle_ms(stream)


def with_idle(plan: ActivePipeline, head: Head) -> Head:
    """Return a head with the idle timeouts of this code's sources, for code that lacks them."""
    streams = [stream for stream in plan.sources if stream in plan.known_sources]
    return head._replace(idle={**head.idle, **{stream: plan.idle_ms(stream) for stream in streams}})


def with_process(head: Head, stream: str, process: str) -> Head:
    """Return a head with a process of a source."""
    processes = head.processes.get(stream, ())
    if process in processes:
        return head
    return head._replace(processes={**head.processes, stream: [*processes, process]})


def has_pending_change(head: Head) -> bool:
    """Return whether a change of the topology is in progress."""
    return any(running.phase != RUNNING for running in running_computations(head).values())


def history_of(head: Head) -> list[Change]:
    """Return the last changes, the latest first."""
    return [part_of_row(Change, fields) for fields in reversed(head.history)]


def with_change(head: Head, change: Change) -> Head:
    """Return a head with a change in its history."""
    return head._replace(history=(*head.history[1 - MAX_HISTORY :], change))


class MissingVersion(Computation):
    """Placeholder of a running computation whose code is missing from this version of the app.

    Its streams and its percentile are known, so ticks of any code can advance the watermarks.
    """

    def __init__(self, name: str, running: RunningComputation) -> None:
        self.name, self.version = name, running.version
        self.inputs = dict.fromkeys(running.inputs, str)
        self.outputs = tuple(running.written)
        self.weak, self.percentile = running.weak, running.percentile


class ActivePipeline(Declaration):
    """A pipeline by the topology of a head."""

    def __init__(self, declared: Declaration, topology: Mapping[str, RunningComputation]) -> None:
        """Combine running computations with leaving ones, and with versions being replaced."""
        self.name = declared.name
        self.sinks, self.limits = declared.sinks, declared.limits
        self.codecs = declared.codecs
        self.intervals, self.versions = declared.intervals, declared.versions
        self.known_sources = declared.known_sources
        self.running = {name: entry for name, entry in topology.items() if entry.phase != CLEANING}
        self.graph: ActiveGraph = ActiveGraph(
            declared.name,
            [_code(declared, name, entry) for name, entry in self.running.items()],
            {name: entry.previous_outputs for name, entry in self.running.items()},
            {name for name, entry in self.running.items() if entry.is_leaving},
        )
        self.computations = self.graph.computations
        self.sources = {
            stream: self.known_sources.get(stream) or PushSource(stream)
            for stream in self.graph.source_streams
        }

    @property
    def missing(self) -> list[MissingVersion]:
        """The running computations whose code is missing here; none of a stopped pipeline."""
        return [
            code
            for name, code in self.computations.items()
            if isinstance(code, MissingVersion) and code.version > 0 and self.is_active(name)
        ]

    def accepts_input(self, computation: str) -> bool:
        """Return whether a computation runs and receives records."""
        return computation in self.running and not self.running[computation].is_leaving

    def is_active(self, computation: str) -> bool:
        """Return whether a computation may have work, even if only until it has left."""
        entry = self.running.get(computation)
        return entry is not None and entry.phase != DISCARDING

    def is_sink(self, computation: str) -> bool:
        """Return whether a computation is a sink, in this code or in other code."""
        entry = self.running.get(computation)
        if entry is None:
            return False
        return entry.sink or isinstance(self.computations[computation], Sink)

    def runnable(self, computation: str) -> Computation:
        """Return a computation that this code can run.

        Raises:
            UnknownStreamError: it does not run.
            MissingCodeError: only other instances have its code.
        """
        code = self.computation(computation)
        if isinstance(code, MissingVersion):
            raise _missing(self.name, code)
        return code

    def runnable_sender(self, computation: str) -> Computation:
        """Return a computation that this code can run, and whose outputs it can route.

        Raises:
            UnknownStreamError: it does not run.
            MissingCodeError: only other instances have its code, or a reader's.
        """
        for stream in self.graph.written[computation]:
            self.graph.check_readers(stream)
        return self.runnable(computation)


class ActiveGraph(Graph):
    """A graph of running computations; the code of some may be missing here."""

    def __init__(
        self,
        pipeline: str,
        computations: Sequence[Computation],
        previous_outputs: Mapping[str, Sequence[str]],
        leaving: Collection[str],
    ) -> None:
        super().__init__(computations, previous_outputs, leaving)
        self._pipeline = pipeline

    def route(self, stream: str, value: Any) -> tuple[Target, ...]:
        """Return the destinations of a record of a stream.

        Raises:
            MissingCodeError: the code of a reader is missing, and with it its key function.
        """
        if self._missing_readers:
            self.check_readers(stream)
        return super().route(stream, value)

    @cached_property
    def _missing_readers(self) -> Mapping[str, MissingVersion]:
        """Return by stream a reader whose code is missing."""
        return {
            stream: reader
            for stream, readers in self.readers.items()
            for name, _ in readers
            if isinstance(reader := self.computations[name], MissingVersion)
        }

    def check_readers(self, stream: str) -> None:
        """Check that this code has all readers of a stream.

        Raises:
            MissingCodeError: it does not.
        """
        if stream in self._missing_readers:
            raise _missing(self._pipeline, self._missing_readers[stream])


def _code(declared: Declaration, name: str, running: RunningComputation) -> Computation:
    code = declared.versions.get((name, running.version))
    return code if code is not None and is_same(code, running) else MissingVersion(name, running)


def is_same(computation: Computation, running: RunningComputation) -> bool:
    """Return whether a computation's code matches its stored version and streams."""
    code = running_computation(computation)
    return (code.version, code.weak, {*code.inputs}, {*code.written}) == (
        running.version,
        running.weak,
        {*running.inputs},
        {*running.written},
    )


def _missing(pipeline: str, computation: MissingVersion) -> MissingCodeError:
    if computation.version < 0:
        return MissingCodeError(f"{pipeline} is stopped: nothing is processed until it is resumed")
    return MissingCodeError(
        f"{pipeline}: version {computation.version} of {computation.name} runs, but this code has "
        "no such version with the same streams: only other instances of the app can process it"
    )
