"""A pipeline: computations, the streams between them, and what comes in and goes out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property

from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.model.limits import MAX_INTERVALS, Limits
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PushSource, Source


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
    ) -> None:
        """Declare a pipeline.

        Args:
            name: Stands in keys and routes: never change it while the pipeline runs.
            computations: Classes, or instances of classes that take arguments.
            sources: Of streams that no computation writes. One that is not named here is a
                `PushSource`.
            sinks: Of streams whose records leave the pipeline (`connectors.sinks`).
            standby: Computations, sinks and other versions of them that do not run until they are
                attached (`Pipeline.attach`, `Pipeline.replace`).
            intervals: Into how many ranges of keys each computation is cut, 1 to 64. One worker at
                a time works on a range.
            limits: How much may wait before the sources have to.

        Raises:
            TypeError: there can be no such pipeline; the text says why.
        """
        made = [*map(as_computation, computations), *sinks]
        waiting = list(map(as_computation, standby))
        self.name = name
        self.versions = {(each.name, each.version): each for each in [*made, *waiting]}
        self.sinks = tuple(each for each in self.versions.values() if isinstance(each, Sink))
        self.intervals = intervals
        self.limits = limits or Limits()
        self.graph = Graph(made)
        self.computations: Mapping[str, Computation] = self.graph.computations
        self._check(made, waiting)
        given = {source.stream: source for source in sources}
        self.sources: Mapping[str, Source] = {
            stream: given.get(stream) or PushSource(stream) for stream in self.graph.source_streams
        }
        later = Graph([*made, *waiting]).source_streams
        self.known_sources = {
            **{stream: given.get(stream) or PushSource(stream) for stream in later},
            **self.sources,
        }
        for stream in given:
            if stream not in self.known_sources:
                raise TypeError(
                    f"{name}: the source {stream!r} is read by no computation, or is written by one"
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
        """Return into how many ranges of keys a computation is cut."""
        is_whole = isinstance(computation, Sink) and not computation.is_spread
        return 1 if is_whole else self.intervals

    def source(self, stream: str) -> Source:
        """Return the source of a stream, which may be read by a computation on standby only.

        Raises:
            UnknownStreamError: there is none.
        """
        if stream not in self.known_sources:
            known = ", ".join(self.known_sources)
            raise UnknownStreamError(f"{self.name} has no source {stream!r}, it has {known}")
        return self.known_sources[stream]

    def has(self, computation: str) -> bool:
        """Return whether there is a computation of this name."""
        return computation in self.computations

    def any_version(self, computation: str) -> Computation:
        """Return a computation, whether it runs or not.

        Raises:
            UnknownStreamError: this code has none of this name.
        """
        versions = self.versions_of(computation)
        if not versions:
            raise UnknownStreamError(f"{self.name} has no computation {computation!r}")
        return self.versions[computation, versions[-1]]

    def versions_of(self, computation: str) -> list[int]:
        """Return the versions of a computation that this code has; empty: it does not know it."""
        return sorted(version for name, version in self.versions if name == computation)

    def check_process(self, stream: str, process: str) -> None:
        """Check that a source has a process.

        Raises:
            UnknownStreamError: it has none of this name.
        """
        if process not in self.source(stream).processes:
            raise UnknownStreamError(f"{stream} has no process {process!r}: name all it has")

    @cached_property
    def percentiles(self) -> Sequence[float]:
        """Return the percentiles below 100 that computations ask for."""
        asked = {each.percentile for each in self.computations.values()}
        return sorted(asked - {100})

    def dedup_ms(self, computation: str) -> int:
        """Return for how long a computation remembers the ids of what is pushed to it."""
        found = (self.graph.senders, self.reaching)
        senders = frozenset[str]().union(*(each.get(computation, ()) for each in found))
        sources = {**self.known_sources, **self.sources}.values()
        pushed = [source for source in sources if isinstance(source, PushSource)]
        spans = [source.dedup for source in pushed if source.stream in senders]
        return max(spans, default=timedelta(0)) // timedelta(milliseconds=1)

    @cached_property
    def weak_sink_streams(self) -> frozenset[str]:
        """Return the source streams whose records weak sinks get before they are durable."""
        weak = [sink.name for sink in self.sinks if sink.weak]
        found = frozenset[str]().union(*(self.reaching[name] for name in weak))
        return found & {*self.known_sources}

    @cached_property
    def reaching(self) -> Mapping[str, frozenset[str]]:
        """Return by computation the streams whose records it gets, also through weak ones.

        Of all that this code has, also on standby: how records are named, and for how long they are
        known, does not follow from what happens to be attached while they come.
        """
        found: dict[str, frozenset[str]] = defaultdict(frozenset)
        for (name, _), each in self.versions.items():
            found[name] |= {*each.inputs}
        weak = [each for each in self.versions.values() if each.weak]
        for _ in weak:  # As many steps as there may be, one behind the other.
            for name, streams in found.items():
                passing = [each for each in weak if {*each.written} & streams]
                found[name] = streams.union(*(each.inputs for each in passing))
        return {**found}

    def disorder_ms(self, stream: str) -> int:
        """Return how far the watermark of a source lags behind its latest record."""
        return self.source(stream).disorder // timedelta(milliseconds=1)

    def advance_ms(self, stream: str) -> int | None:
        """Return how far the watermark of a source that is silent is behind the clock."""
        distance = self.sources[stream].advance_when_idle
        return None if distance is None else distance // timedelta(milliseconds=1)

    def idle_ms(self, stream: str) -> int:
        """Return after which silence a process of a source is waited for no more."""
        source = self.sources[stream]
        return source.idle // timedelta(milliseconds=1)

    def _check(self, made: Sequence[Computation], waiting: Sequence[Computation]) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,60}", self.name):
            raise TypeError(f"a pipeline's name is of a-z, 0-9 and -, not {self.name!r}")
        if not made or len(self.computations) < len(made):
            raise TypeError(f"{self.name}: it has computations, each with a name of its own")
        if not 1 <= self.intervals <= MAX_INTERVALS:
            raise TypeError(f"{self.name}: 1 to {MAX_INTERVALS} intervals, not {self.intervals}")
        if len(self.versions) < len(made) + len(waiting):
            raise TypeError(f"{self.name}: two computations of one name have different versions")
        for each in [*made, *waiting]:
            each.check()
            others = [self.versions[each.name, other] for other in self.versions_of(each.name)]
            if any(isinstance(other, Sink) != isinstance(each, Sink) for other in others):
                raise TypeError(f"{self.name}: {each.name} is a sink in one version only")
        for each in [*made, *waiting]:
            self._check_inner(each)
        for sink in self.sinks:
            if sink.pipeline:
                raise TypeError(f"the sink {sink.name} is a part of {sink.pipeline} already")
            sink.pipeline = self.name
        _ = self.graph.order
        self.check_weak()

    def _check_inner(self, fused: Computation) -> None:
        """Check that what the parts of a fused computation write for each other stays with them."""
        for each in self.versions.values():
            if each.name == fused.name:
                continue
            for stream in fused.inner:
                if stream in each.written or stream in each.inner:
                    raise TypeError(
                        f"{self.name}: {each.name} writes {stream!r}, of which {fused.name} gets "
                        "only what its own parts write: give one of the streams another name"
                    )
                if stream in each.inputs and stream not in fused.outputs:
                    raise TypeError(
                        f"{self.name}: {each.name} reads {stream!r}, which stays inside "
                        f"{fused.name}: name it in the `outputs` of that one"
                    )

    def check_weak(self) -> None:
        """Check that no weak sink gets what follows from a state, which may not be committed.

        Raises:
            TypeError: one does.
        """
        graph = self.graph
        for sink in [each for each in self.computations.values() if isinstance(each, Sink)]:
            before = graph.senders[sink.name] & {*self.computations}
            if sink.weak and (strong := sorted(before - graph.weak)):
                raise TypeError(
                    f"the sink {sink.name} is weak, and gets what {strong[0]} writes: that has "
                    "to be durable before it leaves, for it follows from a state. Leave `weak` out"
                )


def as_computation(computation: Computation | type[Computation]) -> Computation:
    """Return a computation, made of its class if that was given."""
    return computation() if isinstance(computation, type) else computation
