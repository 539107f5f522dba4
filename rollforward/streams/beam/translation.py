"""Translation of a declared pipeline into Beam's transforms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from rollforward.streams.beam.elements import ADOPTED, AFTER, DEAD, STATES, stamp
from rollforward.streams.beam.key_step import KeyStep
from rollforward.streams.beam.keyed_fn import clocked_fn, keyed_fn
from rollforward.streams.beam.lateness import mark_late
from rollforward.streams.beam.outputs import Outputs
from rollforward.streams.beam.stateless_fns import (
    KeyFn,
    ReadFn,
    SinkFn,
    SourceFn,
    WeakFn,
    with_id,
)
from rollforward.streams.beam.support import check_translatable, has_clock_timers
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.json_text import decoded, encoder
from rollforward.streams.model.records import NEVER
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource
from rollforward.streams.moving.file_format import Header, checked_header, is_state

_encode = encoder(allow_nan=False)


@dataclass(frozen=True)
class Moved:
    """Results of another engine that this one continues.

    Attributes:
        states: A collection of the rows of keys, as `Outputs.states` has them, and of records that
            waited, as `Outputs.after` has them.
        watermark: The event time that the computations' watermarks had reached, in ms.
        header: The header of an export, whose watermarks and positions count instead.
    """

    states: Any
    watermark: int = 0
    header: Header | None = None

    @classmethod
    def read(cls, p: Any, path: str) -> Moved:
        """Return an export (`rollforward.streams.moving`) after checking the whole file.

        The check reads it here, where the Beam pipeline is built; the workers read it again.

        Raises:
            IncompleteExportError: it is not a whole export.
        """
        with FileSystems.open(path) as lines:
            header = checked_header(lines, path)
        lines = p | "export" >> beam.io.ReadFromText(path)
        rows = lines | "rows" >> beam.Map(decoded) | "moved" >> beam.Filter(_is_row)
        return cls(rows, header=header)

    def starts_at(self, computation: str) -> int:
        """Return the watermark from which on a computation continues here."""
        header = self.header
        # Never 0: records wait for the states of their keys until the watermark is there.
        return max(1, self.watermark if header is None else header.watermarks[computation])

    def floor(self, stream: str) -> int:
        """Return the time before which a record of a source is late."""
        return self.watermark if self.header is None else self.header.floor(stream)

    def position(self, stream: str, process: str) -> Any:
        """Return the position at which to continue reading a partition; None: its beginning."""
        return None if self.header is None else self.header.position(stream, process)


def translate(
    pipeline: Declaration,
    p: Any,
    sources: Mapping[str, Any],
    *,
    lateness: timedelta | None = None,
    clients: Callable[[], Any] | None = None,
    moved: Moved | None = None,
    ends_at: int | None = None,
) -> Outputs:
    """Translate a pipeline, and return its streams as Beam's collections.

    Args:
        p: The Beam pipeline.
        sources: By source stream a collection of its values, each with its event time as its
            timestamp.
        lateness: For how long a record that is late is recognized as late, and later ones are
            dropped by Beam. Unbounded sources need it. It costs a shuffle for each source.
        clients: Makes the clients for pull sources that are not in `sources`.
        moved: The states of another engine, which continue here.
        ends_at: The watermark at which states are exported (`Outputs.states`), instead of going on.

    Raises:
        UntranslatableError: Beam cannot run a part of it; nothing was added to `p`.
    """
    unbounded = [] if lateness is not None else [
        name for name, values in sources.items() if not values.is_bounded
    ]  # fmt: skip
    header = None if moved is None else moved.header
    check_translatable(
        pipeline, sources, can_read=clients is not None, unbounded=unbounded, header=header
    )
    return _Translation(pipeline, p, moved, NEVER if ends_at is None else ends_at).run(
        sources, lateness, clients
    )


@dataclass
class _Translation:
    """One translation: collections by stream, and dead letters."""

    pipeline: Declaration
    p: Any
    moved: Moved | None
    ends_at: int
    streams: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    sinks: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def run(
        self,
        sources: Mapping[str, Any],
        lateness: timedelta | None,
        clients: Callable[[], Any] | None,
    ) -> Outputs:
        for stream, source in self.pipeline.sources.items():
            values = sources.get(stream)
            if values is None and isinstance(source, PullSource) and clients is not None:
                places = [
                    (process, self.moved.position(stream, process) if self.moved else None)
                    for process in source.processes
                ]
                start = self.p | f"{stream}/start" >> beam.Create(places)
                fn = beam.ParDo(ReadFn(source, clients)).with_outputs(DEAD, main="main")
                read = start | f"{stream}/read" >> fn
                self.rows[DEAD].append(read[DEAD])
                values = read["main"]
            floor = 0 if self.moved is None else self.moved.floor(stream)
            fn = beam.ParDo(SourceFn(stream, floor)).with_outputs(DEAD, main="main")
            checked = values | f"{stream}/check" >> fn
            self.rows[DEAD].append(checked[DEAD])
            records = checked["main"]
            if lateness is not None:
                records = mark_late(records, stream, lateness)
            self.streams[stream].append(records)
        for name in self.pipeline.graph.order:
            self._add(self.pipeline.computations[name])
        written = {stream: self._stream(stream) for stream in self.pipeline.graph.streams}
        dead, states, after = (self._rows(tag) for tag in (DEAD, STATES, AFTER))
        return Outputs(written, self.sinks, dead, states, after)

    def _stream(self, stream: str) -> Any:
        """Return the records of a stream, of all computations that write it."""
        collections = self.streams[stream]
        if len(collections) != 1:
            merged = collections | f"{stream}/all" >> beam.Flatten(pipeline=self.p)
            self.streams[stream] = [merged]
        return self.streams[stream][0]

    def _rows(self, tag: str) -> Any:
        return self.rows[tag] | f"rows{tag}" >> beam.Flatten(pipeline=self.p)

    def _add(self, code: Computation) -> None:
        """Add a computation, whose senders are there already."""
        arrivals = self._arrivals(code)
        if isinstance(code, Sink):
            fn = beam.ParDo(SinkFn(code)).with_outputs(DEAD, main="main")
            records = arrivals | f"{code.name}/id" >> beam.Map(with_id)
            made = records | f"{code.name}/keep" >> beam.Reshuffle() | f"{code.name}/make" >> fn
            self.sinks[code.name] = made["main"]
            self.rows[DEAD].append(made[DEAD])
            return
        tags = [*code.written, DEAD, STATES, AFTER]
        worked = arrivals | code.name >> beam.ParDo(self._fn(code)).with_outputs(*tags)
        for stream in code.written:
            self.streams[stream].append(worked[stream])
        for tag in (DEAD, STATES, AFTER):
            self.rows[tag].append(worked[tag])

    def _fn(self, code: Computation) -> Any:
        if code.weak:
            return WeakFn(code)
        starts_at = 0 if self.moved is None else self.moved.starts_at(code.name)
        step = KeyStep(code, starts_at, self.ends_at)
        return clocked_fn(step) if has_clock_timers(code) else keyed_fn(step)

    def _arrivals(self, code: Computation) -> Any:
        """Return the records of a computation by key, with the states that it takes over."""
        arrivals = []
        for stream in code.inputs:
            fn = beam.ParDo(KeyFn(code, stream)).with_outputs(DEAD, main="main")
            keyed = self._stream(stream) | f"{code.name}/key of {stream}" >> fn
            arrivals.append(keyed["main"])
            self.rows[DEAD].append(keyed[DEAD])
        if self.moved is not None:
            arrivals.append(self._adopted(code, self.moved))
        merged = arrivals[0] if len(arrivals) == 1 else (
            arrivals | f"{code.name}/inputs" >> beam.Flatten()
        )  # fmt: skip
        if not code.weak and not set(code.inputs) <= set(self.pipeline.sources):
            # A shuffle ends a fused stage. Within one, Beam's `FnApiRunner` fires a timer before
            # earlier ones of the computations that write these records.
            merged = merged | f"{code.name}/apart" >> beam.Reshuffle()
        return merged | f"{code.name}/typed" >> beam.Map(lambda pair: pair).with_output_types(
            tuple[str, Any]
        )

    def _adopted(self, code: Computation, moved: Moved) -> Any:
        """Return the input that waits for a computation: records, and the states of its keys.

        States are earlier than the watermark at which they are used.
        """
        starts_at = moved.starts_at(code.name)
        return moved.states | f"{code.name}/moved" >> beam.FlatMap(_adopted, code.name, starts_at)


_FIELDS = ("text", "timers", "expires", "version")


def _is_row(row: Mapping[str, Any]) -> bool:
    return "computation" in row


def _adopted(row: Mapping[str, Any], computation: str, starts_at: int) -> Iterator[Any]:
    """Yield a row, if it is this computation's, as a record for its key."""
    if row["computation"] != computation:
        return
    at_ms = max(starts_at - 1, 0)
    if is_state(row):
        arrival = ADOPTED, _encode({field: row[field] for field in _FIELDS}), 0, 0, 0
    else:
        arrival = row["stream"], row["text"], row["timestamp_ms"], row["late_at"], 0
        at_ms = max(at_ms, row["timestamp_ms"])
    yield beam.window.TimestampedValue((row["key"], arrival), stamp(at_ms))
