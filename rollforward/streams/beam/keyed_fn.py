"""The stateful DoFn of a computation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer

from rollforward.streams.beam.cell import Cell, cell_of, cell_text, state_of, state_row
from rollforward.streams.beam.elements import (
    ADOPTED,
    AFTER,
    DEAD,
    STATES,
    dead_letter,
    milliseconds,
    stamp,
)
from rollforward.streams.beam.key_step import KeyStep, Outcome
from rollforward.streams.model.bundle import KeyedRecord
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.records import FOREVER, NEVER

# A record of a reader: stream, value as text, time, `late_at`, and a time that its watermark has
# reached.
Arrival = tuple[str, str, int, int, int]


class _CellFn(beam.DoFn):  # type: ignore[misc]
    """Calls the hooks of a computation for one key after the other."""

    def __init__(self, step: KeyStep) -> None:
        self.step = step
        self.name = step.computation.name

    def _take(
        self, element: tuple[str, Arrival], stored: Any, event: Any, clock: Any
    ) -> Iterator[Any]:
        key, (stream, text, at, late_at, bound) = element
        cell = cell_of(stored.read())
        if stream == ADOPTED:
            outcome = self.step.adopt(cell, state_of(decoded(text)))
        elif cell.is_over:
            yield _after(self.name, key, element[1])
            return
        else:
            record = KeyedRecord(key, decoded(text), at, stream, late_at, text=text)
            outcome = self.step.record(cell, record, bound, _now_ms())
        yield from self._keep(key, outcome, stored, event, clock)

    def _keep(
        self, key: str, outcome: Outcome, stored: Any, event: Any, clock: Any
    ) -> Iterator[Any]:
        """Store a cell, set its timers, and yield what its hooks have written."""
        cell = outcome.cell
        if cell == Cell():
            stored.clear()
        else:
            stored.write(cell_text(cell))
        due = self.step.due_ms(cell)
        event.set(stamp(due)) if due < NEVER else event.clear()
        processing_due = NEVER if cell.is_over else cell.state.times.processing_due
        if clock is not None:
            clock.set(stamp(processing_due)) if processing_due <= FOREVER else clock.clear()
        elif processing_due <= FOREVER:
            raise NotImplementedError(
                f"{self.name} sets a timer of the clock where its class does not show it"
            )
        if outcome.late:
            Metrics.counter("rollforward", f"{self.name}-late").inc(outcome.late)
        yield from self._written(key, outcome)

    def _written(self, key: str, outcome: Outcome) -> Iterator[Any]:
        for stream, text, at, late_at, *_ in outcome.productions:
            written = beam.window.TimestampedValue((text, late_at), stamp(at))
            yield beam.pvalue.TaggedOutput(stream, written)
        for failure in outcome.failures:
            yield beam.pvalue.TaggedOutput(DEAD, dead_letter(self.name, failure))
        if outcome.exported is not None and not outcome.exported.state.is_empty:
            row = {"computation": self.name, "key": key, **state_row(outcome.exported.state)}
            yield beam.pvalue.TaggedOutput(STATES, row)


class KeyedFn(_CellFn):
    """A computation with timers of the watermark only."""

    CELL = ReadModifyWriteStateSpec("cell", StrUtf8Coder())
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, Arrival],
        stored: Any = beam.DoFn.StateParam(CELL),
        event: Any = beam.DoFn.TimerParam(EVENT),
    ) -> Iterator[Any]:
        yield from self._take(element, stored, event, None)

    @on_timer(EVENT)
    def on_event(
        self,
        key: Any = beam.DoFn.KeyParam,
        fired_at: Any = beam.DoFn.TimestampParam,
        stored: Any = beam.DoFn.StateParam(CELL),
        event: Any = beam.DoFn.TimerParam(EVENT),
    ) -> Iterator[Any]:
        outcome = self.step.fire(key, cell_of(stored.read()), milliseconds(fired_at), _now_ms())
        yield from self._keep(key, outcome, stored, event, None)


class ClockedFn(_CellFn):
    """A computation with timers of the clock, too."""

    CELL = ReadModifyWriteStateSpec("cell", StrUtf8Coder())
    EVENT = TimerSpec("event", TimeDomain.WATERMARK)
    CLOCK = TimerSpec("clock", TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[str, Arrival],
        stored: Any = beam.DoFn.StateParam(CELL),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        yield from self._take(element, stored, event, clock)

    @on_timer(EVENT)
    def on_event(
        self,
        key: Any = beam.DoFn.KeyParam,
        fired_at: Any = beam.DoFn.TimestampParam,
        stored: Any = beam.DoFn.StateParam(CELL),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        outcome = self.step.fire(key, cell_of(stored.read()), milliseconds(fired_at), _now_ms())
        yield from self._keep(key, outcome, stored, event, clock)

    @on_timer(CLOCK)
    def on_clock(
        self,
        key: Any = beam.DoFn.KeyParam,
        stored: Any = beam.DoFn.StateParam(CELL),
        event: Any = beam.DoFn.TimerParam(EVENT),
        clock: Any = beam.DoFn.TimerParam(CLOCK),
    ) -> Iterator[Any]:
        cell = cell_of(stored.read())
        # A runner's clock may be ahead of this machine's, or be a test's.
        now_ms = max(_now_ms(), cell.state.times.processing_due % NEVER)
        outcome = self.step.fire(key, cell, 0, now_ms)
        yield from self._keep(key, outcome, stored, event, clock)


def _after(name: str, key: str, arrival: Arrival) -> Any:
    """Return a record that came after its key was exported, for the other engine."""
    stream, text, at, late_at, _ = arrival
    row = {"computation": name, "key": key, "stream": stream, "value": decoded(text)}
    return beam.pvalue.TaggedOutput(AFTER, {**row, "timestamp_ms": at, "late": late_at > 0})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
