"""Runner of one bundle of a computation: a pure function without services, clocks or memory.

Due timers fire first, per key in order of their times; the watermark guarantees that all earlier
on-time records were processed. The records follow, one after the other.

If a hook raises, the bundle restarts in careful mode. Each hook then gets a copy of its key's
state, and each attempt decodes the record's value again, so a hook that raises undoes only its own
changes. After `max_attempts` its record or timer becomes a failure, and the bundle continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error, storable
from rollforward.streams.execution.hook_backend import HookBackend, Route, Work, without_hold
from rollforward.streams.model.bundle import (
    DEAD_TIMERS,
    Effects,
    Failure,
    KeyedRecord,
    Target,
)
from rollforward.streams.model.codecs import NO_CODECS, Codecs, Undecodable
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.context import Context
from rollforward.streams.model.key_state import NOTHING, KeyState, SetTimer
from rollforward.streams.model.records import (
    FOREVER,
    NEVER,
    Record,
    Timer,
)

# Limits of a bundle, so that its commit stays below 10 MiB.
MAX_FIRED = 1_000
MAX_PRODUCTIONS = 2_000
MAX_PRODUCED_BYTES = 1_000_000
MAX_ERROR_CHARS = 500

HookInput = KeyedRecord | tuple[str, SetTimer]
Hook = Callable[[Context, Any], None]


def discard(stream: str, value: Any) -> tuple[Target, ...]:
    """Route records of a stream without readers."""
    return ()


def never() -> bool:
    return False


def run_bundle(
    computation: Computation,
    keys: Mapping[str, KeyState],
    inputs: Sequence[KeyedRecord] = (),
    *,
    watermark: int,
    now_ms: int,
    due: Iterable[str] = (),
    route: Route = discard,
    codecs: Codecs = NO_CODECS,
    is_over: Callable[[], bool] = never,
    max_fired: int = MAX_FIRED,
    is_careful: bool = False,
) -> Effects:
    """Fire due timers, then process records; return the effects.

    Args:
        keys: The states of the inputs' keys and of due keys; a missing key is new.
        due: Keys that may have due timers, or may be expired.
        route: Returns the destinations of an emitted record.
        codecs: Of the streams that it reads and writes.
        is_over: Whether the time is up, so that no further hook starts.
        max_fired: The maximum number of timers that fire.
        is_careful: Start in careful mode.
    """
    limits = is_over, max_fired
    if not is_careful:
        with contextlib.suppress(_HookError):
            return _BundleRunner(computation, keys, watermark, now_ms, route, codecs, limits).run(
                inputs, due
            )
    return _CarefulRunner(computation, keys, watermark, now_ms, route, codecs, limits).run(
        inputs, due
    )


class _HookError(Exception):
    """A hook raised, or left a state that cannot be written."""


class _BundleRunner(HookBackend):
    """The run of one bundle."""

    def run(self, inputs: Sequence[KeyedRecord], due: Iterable[str]) -> Effects:
        try:
            if self._fire_all(due):
                self._take_all(inputs)
            self._freeze_all()
        finally:
            self.context.close()
        return self.effects

    def call(self, source: HookInput, hook: Hook, argument: Record | Timer) -> bool:
        """Call a hook; return whether it succeeded."""
        try:
            hook(self.context, argument)
        except (MemoryError, *SIGNALS):
            raise
        except BaseException as error:
            raise _HookError from error
        return True

    # Records

    def _take_all(self, inputs: Sequence[KeyedRecord]) -> None:
        for record in inputs:
            if self._is_full() or self.is_over():
                break
            self._take(record)
            self.effects.consumed += 1

    def _take(self, record: KeyedRecord) -> None:
        key, value, at, stream, late_at, *_ = record
        if stream == DEAD_TIMERS:
            tag, fires_at, is_processing_time = value
            self._fire_one(key, tag, SetTimer(fires_at, is_processing_time, at, True))
            return
        if type(value) is Undecodable:
            self.effects.failures.append(Failure(key, record, value.error))
            self.effects.counts.dead += 1
            return
        if late_at and self.computation.late == "drop":
            self._drop(record)
            return
        self._input = record
        self.enter(key, at, late_at, None)
        if not self.call(record, self.computation.record, Record(key, value, at, stream)):
            return
        if self._has_dropped:
            self._drop(record)
        else:
            self.effects.counts.records += 1
        if self.ttl is not None:
            self._keep_until(at + self.ttl)

    def _drop(self, record: KeyedRecord) -> None:
        """Count a record as late, and write it to the stream for late records."""
        self.effects.counts.late += 1
        if self.computation.late_stream is not None:
            self.produce_late(self.computation.late_stream, record.text, record.timestamp_ms)

    def _is_full(self) -> bool:
        return len(self.effects.productions) >= MAX_PRODUCTIONS or self.bytes >= MAX_PRODUCED_BYTES

    # Timers

    def _fire_all(self, due: Iterable[str]) -> bool:
        """Fire all due timers; return False if a limit stopped it."""
        return all(self._fire(key) for key in due)

    def _fire(self, key: str) -> bool:
        """Fire the due timers of a key in order; return False if a limit stopped it.

        Event-time timers come before processing-time timers.
        """
        self.enter(key, 0, False, None)
        work = self._work
        while True:
            due = [
                (timer.is_processing_time, timer.at_ms, tag)
                for tag, timer in work.timers.items()
                if timer.is_due(self.watermark, self.now_ms)
            ]
            if not due:
                break
            if self._has_fired_enough():
                return False
            _, _, tag = min(due)
            timer = work.timers.pop(tag)
            if not timer.is_hold:  # The inputs have ended, and with them the hold.
                self._fire_one(key, tag, timer)
        if self.ttl is not None and (work.expires <= self.watermark or self.watermark >= FOREVER):
            self._forget(work)
        return True

    def _forget(self, work: Work) -> None:
        """Delete an expired key.

        Once the inputs have ended, it stays until its last processing-time timer has fired. The
        detaching of the computation waits for that timer, too.
        """
        if self.watermark >= FOREVER and work.timers:
            work.expires = NEVER
        else:
            work.put(NOTHING)

    def _has_fired_enough(self) -> bool:
        fired = len(self.effects.fired)
        return fired >= self.max_fired or self._is_full() or (fired > 0 and self.is_over())

    def _fire_one(self, key: str, tag: str, timer: SetTimer) -> None:
        self.enter(key, timer.hold, max(self.watermark, 1) if timer.is_late else 0, timer)
        argument = Timer(key, tag, timer.at_ms, timer.is_processing_time)
        self.effects.fired.append((key, timer))
        if self.call((tag, timer), self.computation.timer, argument):
            self.effects.counts.timers += 1

    def _freeze_all(self) -> None:
        for key, work in self.works.items():
            try:
                self.effects.keys[key] = work.freeze()
            except SIGNALS:
                raise
            except BaseException as error:
                raise _HookError from error


class _CarefulRunner(_BundleRunner):
    """A run in careful mode: each hook can be undone individually."""

    def call(self, source: HookInput, hook: Hook, argument: Record | Timer) -> bool:
        effects, key, at = self.effects, self.key, self.timestamp_ms
        snapshot, late_at, firing = self._work.freeze(), self.late_at, self.firing
        produced, size, counts = len(effects.productions), self.bytes, replace(effects.counts)
        for _ in range(self.computation.max_attempts):
            try:
                hook(self.context, self._decoded_value(source, argument))
                self._work.freeze()
            except (MemoryError, *SIGNALS):
                raise
            except BaseException as error:
                message = describe_error(error)
                self._work.put(snapshot)
                del effects.productions[produced:]
                self.bytes, effects.counts = size, replace(counts)
                self.enter(key, at, late_at, firing)
            else:
                return True
        if not isinstance(source, KeyedRecord):  # Dead, it releases nothing any more.
            self._work.timers = without_hold(self._work.timers, source[0])
        effects.failures.append(Failure(key, source, storable(message, MAX_ERROR_CHARS)))
        effects.counts.dead += 1
        return False

    def _decoded_value(self, source: HookInput, argument: Record | Timer) -> Record | Timer:
        """Return the argument of a hook with a newly decoded value, as no hook has changed it."""
        if isinstance(source, KeyedRecord):
            value = self.codecs.value(source.text)
            return argument._replace(value=value)  # type: ignore[union-attr]
        return argument
