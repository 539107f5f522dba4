"""The graph of a pipeline: computations, and the streams between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error, storable
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.records import check_key


class Graph:
    """Computations, their readers and writers, and their topological order.

    Attributes:
        written: By computation the streams that it may write.
    """

    def __init__(
        self,
        computations: Sequence[Computation],
        previous_outputs: Mapping[str, Sequence[str]] | None = None,
        leaving: Collection[str] = (),
    ) -> None:
        """Connect computations by their streams.

        Args:
            previous_outputs: By computation the outputs of a previous version that may still run.
            leaving: Computations that receive no more records.
        """
        self.computations = {code.name: code for code in computations}
        self._leaving = leaving
        self.written: dict[str, set[str]] = defaultdict(set)
        for code in computations:
            previous = (previous_outputs or {}).get(code.name, ())
            self.written[code.name].update(code.written, previous)
        written = {stream for streams in self.written.values() for stream in streams}
        read = {stream for code in computations for stream in code.inputs}
        self.source_streams = sorted(read - written)
        self.streams = sorted(read | written)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[str, Any]]]:
        """Return by stream its readers, each with its key function."""
        readers: dict[str, list[tuple[str, Any]]] = {stream: [] for stream in self.streams}
        for name, code in self.computations.items():
            for stream, key_of in code.inputs.items():
                if name not in self._leaving:
                    readers[stream].append((name, key_of))
        return readers

    @cached_property
    def upstream(self) -> Mapping[str, Sequence[str]]:
        """Return by computation the writers of its inputs."""
        return {
            name: [writer for writer in self.computations if self.written[writer] & {*code.inputs}]
            for name, code in self.computations.items()
        }

    @cached_property
    def weak(self) -> frozenset[str]:
        """Return the weak computations and sinks, which their writers may run inline."""
        return frozenset(name for name, code in self.computations.items() if code.weak)

    @cached_property
    def senders(self) -> Mapping[str, frozenset[str]]:
        """Return by computation the computations and source streams that write to its inbox.

        The writer of a weak computation sends the results of that one to its readers' inboxes.
        """
        senders: dict[str, frozenset[str]] = {}
        for name in self.order:
            direct = {*self.upstream[name], *(self._sources_read_by(name))}
            indirect = [senders[writer] for writer in self.upstream[name] if writer in self.weak]
            senders[name] = frozenset(direct).union(*indirect)
        return senders

    def _sources_read_by(self, name: str) -> set[str]:
        return {*self.computations[name].inputs} & {*self.source_streams}

    @cached_property
    def sources_of(self) -> Mapping[str, Sequence[str]]:
        """Return by computation the source streams that it depends on, directly or not."""
        sources: dict[str, Sequence[str]] = {}
        for name in self.order:
            upstream = [sources[writer] for writer in self.upstream[name]]
            sources[name] = sorted(self._sources_read_by(name).union(*upstream))
        return sources

    @cached_property
    def order(self) -> Sequence[str]:
        """Return the computations in topological order.

        Raises:
            TypeError: the graph has a cycle.
        """
        pending, ordered = dict(self.upstream), list[str]()
        while pending:
            ready = [name for name, writers in pending.items() if not set(writers) & set(pending)]
            if not ready:
                raise TypeError(f"{', '.join(sorted(pending))} must not form a cycle of streams")
            ordered += ready
            pending = {name: pending[name] for name in pending if name not in ready}
        return ordered

    def route(self, stream: str, value: Any) -> tuple[Target, ...]:
        """Return the destinations of a record of a stream."""
        readers = self.readers.get(stream, ())
        if len(readers) == 1:
            [(name, key_of)] = readers
            return (_target(name, key_of, value),)
        return tuple([_target(name, key_of, value) for name, key_of in readers])


def _target(name: str, key_of: Any, value: Any) -> Target:
    """Return a record's destination at one reader; it has an error if the value has no key."""
    try:
        key = key_of(value)
        return _cached_target(name, key) if type(key) is str else Target(name, check_key(key))
    except SIGNALS:
        raise
    except BaseException as error:
        return Target(name, "", storable(f"no key: {describe_error(error)}", 500))


@lru_cache(maxsize=20_000)
def _cached_target(name: str, key: str) -> Target:
    """Return the destination of a key's records at one reader, cached because keys recur."""
    return Target(name, check_key(key))
