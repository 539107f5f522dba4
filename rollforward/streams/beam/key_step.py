"""One call of a key's hooks, without Beam: from a cell and an input to effects and a new cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollforward.streams.beam.cell import Cell
from rollforward.streams.execution.bundle_runner import run_bundle
from rollforward.streams.model.bundle import Effects, EmittedRecord, Failure, KeyedRecord
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.records import FOREVER, NEVER


@dataclass
class Outcome:
    """Effects of a call.

    Attributes:
        exported: The key's state at the end of a part of a pipeline; None: it continues.
        late: The number of records that were dropped as late.
    """

    cell: Cell
    productions: list[EmittedRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    exported: Cell | None = None
    late: int = 0

    def add(self, effects: Effects) -> None:
        """Add the effects of one bundle."""
        self.productions += effects.productions
        self.failures += effects.failures
        self.late += effects.counts.late + effects.counts.late_between_parts


@dataclass(frozen=True)
class KeyStep:
    """Calls of one computation's hooks for one key at a time.

    Attributes:
        starts_at: The watermark up to which another engine has run it. Records wait until the
            watermark is there, when the state of their key has come. 0: it begins here.
        ends_at: The watermark at which a key is exported, for another engine to continue. NEVER: it
            does not end here.
    """

    computation: Computation
    starts_at: int = 0
    ends_at: int = NEVER

    def record(self, cell: Cell, record: KeyedRecord, bound_ms: int, now_ms: int) -> Outcome:
        """Process a record.

        Args:
            bound_ms: An event time that the watermark has reached.
        """
        if cell.passed_ms < self.starts_at:
            return Outcome(cell._replace(waiting=(*cell.waiting, record)))
        passed_ms = min(max(cell.passed_ms, bound_ms), self.ends_at)
        return self._run(record.key, cell._replace(passed_ms=passed_ms), [record], now_ms)

    def adopt(self, cell: Cell, state: KeyState) -> Outcome:
        """Take over the state that another engine has exported."""
        return Outcome(cell._replace(state=state))

    def fire(self, key: str, cell: Cell, reached_ms: int, now_ms: int) -> Outcome:
        """Fire due timers, now that the watermark has reached a time; 0: the clock has."""
        passed_ms = min(max(cell.passed_ms, reached_ms), self.ends_at)
        if cell.is_over or passed_ms < self.starts_at:
            return Outcome(cell)
        waiting = cell.waiting
        cell = cell._replace(passed_ms=passed_ms, waiting=())
        outcome = self._run(key, cell, waiting, now_ms)
        if passed_ms >= self.ends_at:
            outcome.exported = outcome.cell
            outcome.cell = Cell(passed_ms=passed_ms, is_over=True)
        return outcome

    def due_ms(self, cell: Cell) -> int:
        """Return the event time at which to call `fire`; NEVER: not at all."""
        if cell.is_over:
            return NEVER
        if cell.passed_ms < self.starts_at:
            return self.starts_at
        due = min(cell.state.times.due, self.ends_at)
        return due if due <= FOREVER else NEVER

    def _run(self, key: str, cell: Cell, records: Sequence[KeyedRecord], now_ms: int) -> Outcome:
        """Fire due timers, then process records, in as many bundles as that takes."""
        state, inputs, outcome = cell.state, list(records), Outcome(cell)
        while inputs or _is_due(state, cell.passed_ms, now_ms):
            effects = run_bundle(
                self.computation,
                {key: state},
                inputs,
                watermark=cell.passed_ms,
                now_ms=now_ms,
                due=[key] if _is_due(state, cell.passed_ms, now_ms) else (),
            )
            outcome.add(effects)
            del inputs[: effects.consumed]
            state = effects.keys.get(key, state)
        outcome.cell = cell._replace(state=NOTHING if state.is_empty else state)
        return outcome


def _is_due(state: KeyState, passed_ms: int, now_ms: int) -> bool:
    if state.is_empty:
        return False
    return state.times.due <= passed_ms or state.times.processing_due <= now_ms
