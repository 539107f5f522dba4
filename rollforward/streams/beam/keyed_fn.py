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

from rollforward.streams.beam.cell import Cell, cell_of, cell_text
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
from rollforward.streams.moving.file_format import state_of, state_row

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

    def _fire(
        self, key: str, reached_ms: int, stored: Any, event: Any, clock: Any
    ) -> Iterator[Any]:
        """Fire due timers, now that the watermark has reached a time; 0: the clock has."""
        cell, now_ms = cell_of(stored.read()), _now_ms()
        if not reached_ms:
            # A runner's clock may be ahead of this machine's, or be a test's.
            now_ms = max(now_ms, cell.state.times.processing_due % NEVER)
        outcome = self.step.fire(key, cell, reached_ms, now_ms)
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
        if any(timer.is_hold for timer in cell.state.timers.values()):
            raise NotImplementedError(
                f"{self.name} holds the watermark where its class does not show it"
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


def keyed_fn(step: KeyStep) -> beam.DoFn:
    """Return the DoFn of a computation with timers of the watermark only.

    State and timers have names of their own in each computation: Beam's `FnApiRunner` gives a timer
    to another DoFn of the same fused stage that has one of the same name.
    """
    cell = ReadModifyWriteStateSpec(f"{step.computation.name}-cell", StrUtf8Coder())
    event_timer = TimerSpec(f"{step.computation.name}-event", TimeDomain.WATERMARK)

    class KeyedFn(_CellFn):
        def process(
            self,
            element: tuple[str, Arrival],
            stored: Any = beam.DoFn.StateParam(cell),
            event: Any = beam.DoFn.TimerParam(event_timer),
        ) -> Iterator[Any]:
            yield from self._take(element, stored, event, None)

        @on_timer(event_timer)
        def on_event(
            self,
            key: Any = beam.DoFn.KeyParam,
            fired_at: Any = beam.DoFn.TimestampParam,
            stored: Any = beam.DoFn.StateParam(cell),
            event: Any = beam.DoFn.TimerParam(event_timer),
        ) -> Iterator[Any]:
            yield from self._fire(key, milliseconds(fired_at), stored, event, None)

    return KeyedFn(step)


def clocked_fn(step: KeyStep) -> beam.DoFn:
    """Return the DoFn of a computation with timers of the clock, too."""
    cell = ReadModifyWriteStateSpec(f"{step.computation.name}-cell", StrUtf8Coder())
    event_timer = TimerSpec(f"{step.computation.name}-event", TimeDomain.WATERMARK)
    clock_timer = TimerSpec(f"{step.computation.name}-clock", TimeDomain.REAL_TIME)

    class ClockedFn(_CellFn):
        def process(
            self,
            element: tuple[str, Arrival],
            stored: Any = beam.DoFn.StateParam(cell),
            event: Any = beam.DoFn.TimerParam(event_timer),
            clock: Any = beam.DoFn.TimerParam(clock_timer),
        ) -> Iterator[Any]:
            yield from self._take(element, stored, event, clock)

        @on_timer(event_timer)
        def on_event(
            self,
            key: Any = beam.DoFn.KeyParam,
            fired_at: Any = beam.DoFn.TimestampParam,
            stored: Any = beam.DoFn.StateParam(cell),
            event: Any = beam.DoFn.TimerParam(event_timer),
            clock: Any = beam.DoFn.TimerParam(clock_timer),
        ) -> Iterator[Any]:
            yield from self._fire(key, milliseconds(fired_at), stored, event, clock)

        @on_timer(clock_timer)
        def on_clock(
            self,
            key: Any = beam.DoFn.KeyParam,
            stored: Any = beam.DoFn.StateParam(cell),
            event: Any = beam.DoFn.TimerParam(event_timer),
            clock: Any = beam.DoFn.TimerParam(clock_timer),
        ) -> Iterator[Any]:
            yield from self._fire(key, 0, stored, event, clock)

    return ClockedFn(step)


def _after(name: str, key: str, arrival: Arrival) -> Any:
    """Return a record that came after its key was exported, for the other engine."""
    stream, text, at, late_at, _ = arrival
    row = {"computation": name, "key": key, "stream": stream, "id": "", "text": text}
    return beam.pvalue.TaggedOutput(AFTER, {**row, "timestamp_ms": at, "late_at": late_at})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
