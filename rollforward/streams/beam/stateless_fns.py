"""DoFns without state: sources, key functions, weak computations, sinks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam

from rollforward.runtime.texts import describe_error
from rollforward.streams.beam.elements import DEAD, dead_letter, milliseconds, stamp
from rollforward.streams.execution.bundle_runner import run_bundle
from rollforward.streams.graph.graph import Graph
from rollforward.streams.model.bundle import Failure, KeyedRecord
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.records import check_time, value_text
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.model.sources import PullSource, UnreadableItem


class SourceFn(beam.DoFn):  # type: ignore[misc]
    """Checks the values of a source, and writes them as text."""

    def __init__(self, stream: str, floor: int = 0) -> None:
        """Check a source; its records before the floor are late."""
        self.stream, self.floor = stream, floor

    def process(self, value: Any, at: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        try:
            at_ms = check_time(milliseconds(at))
            yield value_text(value), self.floor if at_ms < self.floor else 0
        except StreamError as error:
            record = KeyedRecord("", None, milliseconds(at), self.stream, text=repr(value)[:500])
            yield beam.pvalue.TaggedOutput(DEAD, dead_letter("", Failure("", record, str(error))))


class ReadFn(beam.DoFn):  # type: ignore[misc]
    """Reads each partition of a pull source from a position to its end."""

    def __init__(self, source: PullSource, clients: Callable[[], Any], limit: int = 500) -> None:
        self.source, self.clients, self.limit = source, clients, limit

    def process(self, place: tuple[str, Any]) -> Iterator[Any]:
        partition, position = place
        clients, is_over = self.clients(), False
        while not is_over:
            pulled = self.source.reader(partition)(clients, position, self.limit)
            for record in pulled.records:
                if isinstance(record, UnreadableItem):
                    yield beam.pvalue.TaggedOutput(DEAD, self._dead_letter(record))
                else:
                    value, at = record
                    yield beam.window.TimestampedValue(value, stamp(at))
            is_over = pulled.is_over or (not pulled.records and pulled.position == position)
            position = pulled.position

    def _dead_letter(self, unreadable: UnreadableItem) -> dict[str, Any]:
        record = KeyedRecord("", None, 0, self.source.stream, text=unreadable.item)
        return dead_letter("", Failure("", record, f"no record: {unreadable.error}"))


class KeyFn(beam.DoFn):  # type: ignore[misc]
    """Gives the records of a stream the key of one of its readers."""

    def __init__(self, computation: Computation, stream: str) -> None:
        self.graph, self.stream = Graph([computation]), stream

    def process(
        self, element: tuple[str, int], at: Any = beam.DoFn.TimestampParam
    ) -> Iterator[Any]:
        text, late_at = element
        at_ms = milliseconds(at)
        [target] = self.graph.route(self.stream, decoded(text))
        if target.error:
            record = KeyedRecord("", None, at_ms, self.stream, text=text)
            letter = dead_letter(target.computation, Failure("", record, target.error))
            yield beam.pvalue.TaggedOutput(DEAD, letter)
        else:
            # A late record is behind the watermark, which has then reached the next millisecond.
            bound = at_ms + 1 if late_at else 0
            yield target.key, (self.stream, text, at_ms, late_at, bound)


class WeakFn(beam.DoFn):  # type: ignore[misc]
    """Runs a weak computation, which has neither state nor timers."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation

    def process(self, element: tuple[str, tuple[str, str, int, int, int]]) -> Iterator[Any]:
        key, (stream, text, at, late_at, _) = element
        record = KeyedRecord(key, decoded(text), at, stream, late_at, text=text)
        effects = run_bundle(self.computation, {}, [record], watermark=0, now_ms=0)
        for name, value, time_ms, late, *_ in effects.productions:
            written = beam.window.TimestampedValue((value, late), stamp(time_ms))
            yield beam.pvalue.TaggedOutput(name, written)
        for failure in effects.failures:
            yield beam.pvalue.TaggedOutput(DEAD, dead_letter(self.computation.name, failure))


class SinkFn(beam.DoFn):  # type: ignore[misc]
    """Makes a sink's values of records that have an id."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def process(self, element: Any) -> Iterator[Any]:
        id_, key, (stream, text, at, late_at, _) = element
        try:
            yield self.sink.make(SinkRecord(id_, key, decoded(text), at, stream, late_at > 0))
        except (Exception, SystemExit) as error:
            record = KeyedRecord(key, None, at, stream, late_at, text=text)
            failure = Failure(key, record, describe_error(error)[:500])
            yield beam.pvalue.TaggedOutput(DEAD, dead_letter(self.sink.name, failure))


def with_id(element: tuple[str, Any]) -> tuple[str, str, Any]:
    """Return a sink's record with an id, which a shuffle behind this makes the same in retries."""
    return uuid.uuid4().hex, *element
