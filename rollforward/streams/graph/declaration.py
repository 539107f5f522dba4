"""Declaration of a pipeline: computations, streams, sources and sinks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property

from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.codecs import Codecs, ValueCodec
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.model.limits import MAX_INTERVALS, Limits
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource, PushSource, Source


class Declaration:
    """Computations over streams of keyed records; a part of an app's registry."""

    def __init__(
        self,
        name: str,
        *computations: Computation | type[Computation],
        sources: Sequence[Source] = (),
        sinks: Sequence[Sink] = (),
        standby: Sequence[Computation | type[Computation]] = (),
        intervals: int = 4,
        limits: Limits | None = None,
        codecs: Mapping[str, ValueCodec | Sequence[ValueCodec]] | None = None,
    ) -> None:
        """Declare a pipeline.

        Args:
            name: A part of stored names and routes: never change it while the pipeline runs.
            computations: Classes, or instances of classes that take arguments.
            sources: The sources of streams that no computation writes; by default a `PushSource`
                each.
            sinks: The exits of streams whose records leave the pipeline (`connectors.sinks`).
            standby: Computations, sinks and other versions of them that do not run until they are
                attached (`Pipeline.attach`, `Pipeline.replace`).
            intervals: The number of key ranges (shards) of each computation, 1 to 64. One worker at
                a time processes a range.
            limits: The backlog that triggers backpressure.
            codecs: By stream the codec of its values, or several: the first one writes, all of
                them read, and so does JSON. By default that of the publication for a subscription,
                and JSON for others (`model.codecs`).

        Raises:
            TypeError: the pipeline is invalid; the message says why.
        """
        active = [*map(as_computation, computations), *sinks]
        inactive = list(map(as_computation, standby))
        self.name = name
        self.versions = {(code.name, code.version): code for code in [*active, *inactive]}
        self.sinks = tuple(code for code in self.versions.values() if isinstance(code, Sink))
        self.intervals = intervals
        self.limits = limits or Limits()
        self.codecs = _codecs_of(sources, codecs or {})
        self.graph = Graph(active)
        self.computations: Mapping[str, Computation] = self.graph.computations
        self._check(active, inactive)
        declared = {source.stream: source for source in sources}
        if len(declared) < len(sources):
            raise TypeError(f"{name}: each source must be of another stream, got {[*sources]}")
        self.sources: Mapping[str, Source] = {
            stream: declared.get(stream) or PushSource(stream)
            for stream in self.graph.source_streams
        }
        every = Graph([*active, *inactive])
        possible = every.source_streams
        self._check_codecs(every)
        self.known_sources = {
            **{stream: declared.get(stream) or PushSource(stream) for stream in possible},
            **self.sources,
        }
        for stream in declared:
            if stream not in self.known_sources:
                raise TypeError(
                    f"{name}: the source {stream!r} must be read by a computation, and written by "
                    "none"
                )

    def computation(self, name: str) -> Computation:
        """Return a computation.

        Raises:
            UnknownStreamError: there is none of this name.
        """
        if name not in self.computations:
            raise UnknownStreamError(f"{self.name} has no computation {name!r}")
        return self.computations[name]

    def intervals_of(self, computation: Computation) -> int:
        """Return the number of key ranges of a computation."""
        if isinstance(computation, Sink):
            return computation.partitions or (self.intervals if computation.is_spread else 1)
        return self.intervals

    def source(self, stream: str) -> Source:
        """Return the source of a stream, even if only computations on standby read it.

        Raises:
            UnknownStreamError: there is none.
        """
        if stream not in self.known_sources:
            sources = ", ".join(self.known_sources)
            raise UnknownStreamError(f"{self.name} has no source {stream!r}, it has {sources}")
        return self.known_sources[stream]

    def has(self, computation: str) -> bool:
        """Return whether there is a computation of this name."""
        return computation in self.computations

    def any_version(self, computation: str) -> Computation:
        """Return the latest version of a computation, whether it runs or not.

        Raises:
            UnknownStreamError: this code has none of this name.
        """
        versions = self.versions_of(computation)
        if not versions:
            raise UnknownStreamError(f"{self.name} has no computation {computation!r}")
        return self.versions[computation, versions[-1]]

    def versions_of(self, computation: str) -> list[int]:
        """Return the versions of a computation in this code, in order; empty: it is unknown."""
        return sorted(version for name, version in self.versions if name == computation)

    def check_process(self, stream: str, process: str) -> None:
        """Check that a source has a process.

        Raises:
            UnknownStreamError: it has none of this name.
        """
        if process not in self.source(stream).processes:
            raise UnknownStreamError(f"{stream} has no process {process!r}: add it to `processes`")

    def waits_for(self, stream: str, process: str) -> bool:
        """Return whether the watermark waits for a process however long it is silent.

        A partition that this code reads may have records that its reader has not come to.
        """
        source = self.known_sources.get(stream)
        is_partitioned = isinstance(source, PullSource) and source.is_partitioned
        return is_partitioned and source is not None and process in source.processes

    @cached_property
    def percentiles(self) -> Sequence[float]:
        """Return the percentiles below 100 that computations ask for."""
        percentiles = {computation.percentile for computation in self.computations.values()}
        return sorted(percentiles - {100})

    def dedup_ms(self, computation: str) -> int:
        """Return for how long a computation remembers the ids of pushed records."""
        maps = (self.graph.senders, self.reaching)
        senders = frozenset[str]().union(*(by_name.get(computation, ()) for by_name in maps))
        sources = {**self.known_sources, **self.sources}.values()
        pushed = [source for source in sources if isinstance(source, PushSource)]
        spans = [source.dedup for source in pushed if source.stream in senders]
        return max(spans, default=timedelta(0)) // timedelta(milliseconds=1)

    @cached_property
    def weak_sink_streams(self) -> frozenset[str]:
        """Return the source streams whose records reach weak sinks before they are durable."""
        weak = [sink.name for sink in self.sinks if sink.weak]
        streams = frozenset[str]().union(*(self.reaching[name] for name in weak))
        return streams & {*self.known_sources}

    @cached_property
    def reaching(self) -> Mapping[str, frozenset[str]]:
        """Return by computation the streams whose records reach it, directly or via weak ones.

        This covers all code, including standby. Ids of records, and the time for which they are
        remembered, must not depend on the computations that are attached at the moment.
        """
        streams_of: dict[str, frozenset[str]] = defaultdict(frozenset)
        for (name, _), code in self.versions.items():
            streams_of[name] |= {*code.inputs}
        weak = [code for code in self.versions.values() if code.weak]
        for _ in weak:  # The longest possible chain of weak computations.
            for name, streams in streams_of.items():
                writers = [code for code in weak if {*code.written} & streams]
                streams_of[name] = streams.union(*(code.inputs for code in writers))
        return {**streams_of}

    def disorder_ms(self, stream: str) -> int:
        """Return how far the watermark of a source lags behind its latest record."""
        return self.source(stream).disorder // timedelta(milliseconds=1)

    def advance_ms(self, stream: str) -> int | None:
        """Return how far the watermark of an idle source stays behind the clock."""
        distance = self.sources[stream].advance_when_idle
        return None if distance is None else distance // timedelta(milliseconds=1)

    def idle_ms(self, stream: str) -> int:
        """Return the time without a push after which a process of a source is idle."""
        source = self.sources[stream]
        return source.idle // timedelta(milliseconds=1)

    def _check(self, active: Sequence[Computation], inactive: Sequence[Computation]) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,60}", self.name):
            raise TypeError(f"a pipeline's name must consist of a-z, 0-9 and -, got {self.name!r}")
        if not active or len(self.computations) < len(active):
            raise TypeError(f"{self.name}: must have computations with different names")
        if type(self.intervals) is not int or not 1 <= self.intervals <= MAX_INTERVALS:
            raise TypeError(
                f"{self.name}: `intervals` must be a whole number, 1 to {MAX_INTERVALS}, "
                f"got {self.intervals!r}"
            )
        if len(self.versions) < len(active) + len(inactive):
            raise TypeError(f"{self.name}: computations of one name must have different versions")
        for code in [*active, *inactive]:
            code.check()
            versions = [self.versions[code.name, other] for other in self.versions_of(code.name)]
            if any(isinstance(other, Sink) != isinstance(code, Sink) for other in versions):
                raise TypeError(f"{self.name}: {code.name} must be a sink in all versions, or none")
        for code in [*active, *inactive]:
            self._check_inner(code)
        for sink in self.sinks:
            if sink.pipeline:
                raise TypeError(f"the sink {sink.name} already belongs to {sink.pipeline}")
            sink.pipeline, sink.codecs = self.name, self.codecs
        _ = self.graph.order
        self.check_weak()

    def _check_codecs(self, every: Graph) -> None:
        """Check that each codec is that of a stream."""
        inner = [stream for code in self.versions.values() for stream in code.inner]
        for stream in self.codecs.by_stream:
            if stream not in every.streams and stream not in inner:
                raise TypeError(f"{self.name}: `codecs` must name streams, got {stream!r}")

    def _check_inner(self, fused: Computation) -> None:
        """Check that the inner streams of a fused computation are private to it."""
        for code in self.versions.values():
            if code.name == fused.name:
                continue
            for stream in fused.inner:
                if stream in code.written or stream in code.inner:
                    raise TypeError(
                        f"{self.name}: {code.name} writes {stream!r}, which is an inner stream of "
                        f"{fused.name}: rename one of the two streams"
                    )
                if stream in code.inputs and stream not in fused.outputs:
                    raise TypeError(
                        f"{self.name}: {code.name} reads {stream!r}, which is an inner stream of "
                        f"{fused.name}: add it to the `outputs` of {fused.name}"
                    )

    def check_weak(self) -> None:
        """Check that weak sinks get no output derived from a state that may not be committed.

        Raises:
            TypeError: one does.
        """
        graph = self.graph
        for sink in self.computations.values():
            if not isinstance(sink, Sink) or not sink.weak:
                continue
            if strong := sorted(graph.senders[sink.name] & {*self.computations} - graph.weak):
                raise TypeError(
                    f"the sink {sink.name} is weak, but reads the output of {strong[0]}, which "
                    "depends on a state and must be durable before it leaves. Leave `weak` out"
                )


def _codecs_of(
    sources: Sequence[Source], declared: Mapping[str, ValueCodec | Sequence[ValueCodec]]
) -> Codecs:
    published = {source.stream: source.codecs for source in sources if source.codecs}
    return Codecs({**published, **declared})


def as_computation(computation: Computation | type[Computation]) -> Computation:
    """Return a computation; a class is instantiated.

    Raises:
        TypeError: this is none, such as the pair that `fan_out` returns.
    """
    code = computation() if isinstance(computation, type) else computation
    if not isinstance(code, Computation):
        raise TypeError(f"each argument must be one computation, got {code!r:.200}")
    return code
