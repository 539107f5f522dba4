"""The graph of a pipeline: computations, and the streams between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from rollforward.runtime.texts import storable
from rollforward.streams.model.bundle import Target
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.records import check_key


class Graph:
    """Which computation reads what, and in which order work moves through them.

    Attributes:
        written: By computation the streams that it may write.
    """

    def __init__(
        self,
        computations: Sequence[Computation],
        also: Mapping[str, Sequence[str]] | None = None,
        leaving: Collection[str] = (),
    ) -> None:
        """Put computations together.

        Args:
            also: By computation what it may write besides: its version of before may still run.
            leaving: Computations that get nothing any more.
        """
        self.computations = {each.name: each for each in computations}
        self._leaving = leaving
        self.written: dict[str, set[str]] = defaultdict(set)
        for each in computations:
            self.written[each.name].update(each.written, (also or {}).get(each.name, ()))
        written = {stream for each in computations for stream in self.written[each.name]}
        read = {stream for each in computations for stream in each.inputs}
        self.source_streams = sorted(read - written)
        self.streams = sorted(read | written)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[tuple[str, Any]]]:
        """Return by stream who reads it, each with its key extractor."""
        found: dict[str, list[tuple[str, Any]]] = {stream: [] for stream in self.streams}
        for each in self.computations.values():
            for stream, key_of in each.inputs.items():
                if each.name not in self._leaving:
                    found[stream].append((each.name, key_of))
        return found

    @cached_property
    def upstream(self) -> Mapping[str, Sequence[str]]:
        """Return by computation those that write what it reads."""
        return {
            name: [
                other.name
                for other in self.computations.values()
                if self.written[other.name] & set(each.inputs)
            ]
            for name, each in self.computations.items()
        }

    @cached_property
    def weak(self) -> frozenset[str]:
        """Return the computations, and sinks, that those who write for them may run themselves."""
        return frozenset(name for name, each in self.computations.items() if each.weak)

    @cached_property
    def senders(self) -> Mapping[str, frozenset[str]]:
        """Return by computation the others, and the source streams, that put records in its inbox.

        Those who write for a weak computation put its results into the inboxes of its readers.
        """
        found: dict[str, frozenset[str]] = {}
        for name in self.order:
            direct = {*self.upstream[name], *(self._sources_read_by(name))}
            through = [found[each] for each in self.upstream[name] if each in self.weak]
            found[name] = frozenset(direct).union(*through)
        return found

    def _sources_read_by(self, name: str) -> set[str]:
        return {*self.computations[name].inputs} & {*self.source_streams}

    @cached_property
    def sources_of(self) -> Mapping[str, Sequence[str]]:
        """Return by computation the source streams that what it reads follows from."""
        found: dict[str, Sequence[str]] = {}
        for name in self.order:
            streams = self._sources_read_by(name)
            found[name] = sorted(streams.union(*(found[each] for each in self.upstream[name])))
        return found

    @cached_property
    def order(self) -> Sequence[str]:
        """Return the computations, each behind those that write for it.

        Raises:
            TypeError: some write for each other.
        """
        left, ordered = dict(self.upstream), list[str]()
        while left:
            ready = [name for name, before in left.items() if not set(before) & set(left)]
            if not ready:
                raise TypeError(f"{', '.join(sorted(left))} write for each other, in a circle")
            ordered += ready
            left = {name: before for name, before in left.items() if name not in ready}
        return ordered

    def route(self, stream: str, value: Any) -> tuple[Target, ...]:
        """Return who gets a record of a stream, each under its key."""
        readers = self.readers.get(stream, ())
        if len(readers) == 1:
            [(name, key_of)] = readers
            return (_target(name, key_of, value),)
        return tuple([_target(name, key_of, value) for name, key_of in readers])


def _target(name: str, key_of: Any, value: Any) -> Target:
    """Return where a record goes for one reader; a value without a key has an error there."""
    try:
        key = key_of(value)
        return _known(name, key) if type(key) is str else Target(name, check_key(key))
    except Exception as error:
        return Target(name, "", storable(f"no key: {type(error).__name__}: {error}", 500))


@lru_cache(maxsize=20_000)
def _known(name: str, key: str) -> Target:
    """Return where a key's records go for one reader: keys come again and again."""
    return Target(name, check_key(key))
