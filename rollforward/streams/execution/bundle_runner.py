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
from datetime import timedelta
from typing import Any

from rollforward.runtime.texts import storable
from rollforward.streams.execution.key_work import Work
from rollforward.streams.model.bundle import (
    DEAD_TIMERS,
    Effects,
    EmittedRecord,
    Failure,
    KeyedRecord,
    Target,
    derived_id,
)
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import (
    BadRecordError,
    TooEarlyError,
    UnknownStreamError,
    WeakError,
)
from rollforward.streams.model.json_text import decoded
from rollforward.streams.model.key_state import NOTHING, KeyState, SetTimer
from rollforward.streams.model.records import (
    FOREVER,
    NEVER,
    Record,
    Timer,
    check_tag,
    check_time,
    value_text,
)
from rollforward.streams.model.state import State

# Limits of a bundle, so that its commit stays below 10 MiB.
MAX_FIRED = 1_000
MAX_PRODUCTIONS = 2_000
MAX_PRODUCED_BYTES = 1_000_000
# The limit of one hook; with the earlier productions it stays below the limit of a commit.
MAX_HOOK_BYTES = 1_000_000
MAX_ERROR_CHARS = 500
# The tag of a key's hold among its timers; a timer's own tag is not empty.
HOLD = ""

Route = Callable[[str, Any], tuple[Target, ...]]
HookInput = KeyedRecord | tuple[str, SetTimer]
Hook = Callable[[Context, Any], None]


def nowhere(stream: str, value: Any) -> tuple[Target, ...]:
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
    route: Route = nowhere,
    is_over: Callable[[], bool] = never,
    max_fired: int = MAX_FIRED,
    is_careful: bool = False,
) -> Effects:
    """Fire due timers, then process records; return the effects.

    Args:
        keys: The states of the inputs' keys and of due keys; a missing key is new.
        due: Keys that may have due timers, or may be expired.
        route: Returns the destinations of an emitted record.
        is_over: Whether the time is up, so that no further hook starts.
        max_fired: The maximum number of timers that fire.
        is_careful: Start in careful mode.
    """
    limits = is_over, max_fired
    if not is_careful:
        with contextlib.suppress(_HookError):
            return _BundleRunner(computation, keys, watermark, now_ms, route, limits).run(
                inputs, due
            )
    return _CarefulRunner(computation, keys, watermark, now_ms, route, limits).run(inputs, due)


class _HookError(Exception):
    """A hook raised, or left a state that cannot be written."""


class _HookBackend:
    """Backend of the context that all hooks of a bundle share."""

    def __init__(
        self,
        computation: Computation,
        keys: Mapping[str, KeyState],
        watermark: int,
        now_ms: int,
        route: Route,
        limits: tuple[Callable[[], bool], int],
    ) -> None:
        self.computation = computation
        self.stored = keys
        self.watermark = watermark
        self.now_ms = now_ms
        self.route = route
        self.is_over, self.max_fired = limits
        self.works: dict[str, Work] = {}
        self.effects = Effects()
        self.bytes = 0
        self.ttl = _milliseconds(computation.ttl)
        self.context = computation.context(self)
        self.key, self.timestamp_ms, self.late_at = "", 0, 0
        self._input: KeyedRecord | None = None
        self._work: Any = None
        self.firing: SetTimer | None = None
        self._has_dropped = False
        self._hook_bytes, self._hook_outputs = 0, dict[str, int]()
        # By tag, the holds as the current hook found them, if it has changed them.
        self._replaced_holds: dict[str, SetTimer | None] = {}

    def enter(self, key: str, at: int, late_at: int, firing: SetTimer | None) -> None:
        """Select the key of the next hook."""
        self.key, self.timestamp_ms, self.late_at, self.firing = key, at, late_at, firing
        self._has_dropped, self._hook_bytes = False, 0
        self._hook_outputs.clear()
        self._replaced_holds.clear()
        work = self.works.get(key)
        if work is None:
            state = self.stored.get(key, NOTHING)
            work = self.works[key] = Work(state, self.computation)
            if self.ttl is None:
                work.expires = NEVER  # An earlier version may have had a `ttl`.
        self._work = work

    def step(self, at: int, late_at: int) -> None:
        """Continue, in the same hook, with a record that a fused part has written (fused.py)."""
        self.timestamp_ms, self.late_at, self.firing = at, late_at, None
        if self.ttl is not None:
            self._keep_until(at + self.ttl)

    @property
    def timers(self) -> Mapping[str, SetTimer]:
        """Return the pending timers of the key."""
        timers: Mapping[str, SetTimer] = self._work.timers
        return timers

    def drop_inside(self) -> None:
        """Count a record between fused parts as late."""
        self.effects.counts.late_between_parts += 1

    def state(self) -> State:
        state: State | None = self._work.state
        if state is None:
            _check_strong(self.computation, "state")
            state = self._work.decoded()
        return state

    def set_timer(self, tag: str, at_ms: int, is_processing_time: bool) -> None:
        _check_strong(self.computation, "timers")
        check_tag(tag)
        check_time(at_ms)
        if self.firing is not None or at_ms < self.timestamp_ms:
            self._check_order(at_ms, is_processing_time)
        hold = self.timestamp_ms if is_processing_time else at_ms
        is_late, replaced = self.late_at > 0, self._work.timers.get(tag)
        if replaced == (at_ms, is_processing_time, hold, is_late):
            return
        if is_late and replaced is not None and not replaced.is_late:
            # The replaced timer held the watermark, so nothing at or after its hold is late.
            if is_processing_time:
                hold = max(hold, replaced.hold)
            is_late = hold < replaced.hold
        self._work.timers[tag] = SetTimer(at_ms, is_processing_time, hold, is_late)

    def _check_order(self, at_ms: int, is_processing_time: bool) -> None:
        firing = self.firing
        if (
            firing is not None
            and firing.is_processing_time == is_processing_time
            and at_ms <= firing.at_ms
        ):
            raise TooEarlyError(
                f"a timer set by a timer at {firing.at_ms} must be later than that, got {at_ms}"
            )
        if not is_processing_time and at_ms < self.timestamp_ms:
            raise TooEarlyError(
                f"a timer must not be before its input, at {self.timestamp_ms}, got {at_ms}"
            )

    def cancel_timer(self, tag: str) -> bool:
        return self._work.timers.pop(tag, None) is not None

    def hold(self, at_ms: int, tag: str = HOLD) -> int:
        """Hold the watermark; return the held time.

        Args:
            tag: The place of the hold among the timers: each fused part has one.
        """
        _check_strong(self.computation, "holds")
        is_late = self._late_at(check_time(at_ms), tag, "the time of a hold") > 0
        held: SetTimer | None = self._work.timers.get(tag)
        if held is not None and is_late and not held.is_late:
            return held.hold
        self._replaced_holds.setdefault(tag, held)
        self._work.timers[tag] = SetTimer(FOREVER, False, at_ms, is_late)
        return at_ms

    def release(self, tag: str = HOLD) -> int | None:
        _check_strong(self.computation, "holds")
        held: SetTimer | None = self._work.timers.pop(tag, None)
        self._replaced_holds.setdefault(tag, held)
        return None if held is None else held.hold

    def _late_at(self, at: int, tag: str, subject: str) -> int:
        """Return the watermark behind which a time is late; 0: it is on time.

        The watermark has passed neither the time of an input that is on time, nor the time that
        the key has held since before this hook.

        Raises:
            TooEarlyError: the time is before both the input's and the hold's.
        """
        if at >= self.timestamp_ms and not self.late_at:
            return 0
        held: SetTimer | None = self._replaced_holds.get(tag, self._work.timers.get(tag))
        if held is not None and at >= held.hold:
            return max(self.watermark, 1) if held.is_late else 0
        if at >= self.timestamp_ms:
            return self.late_at
        bound = f"its input's, {self.timestamp_ms}"
        if held is not None and held.hold < self.timestamp_ms:
            bound = f"the hold's, {held.hold}"
        raise TooEarlyError(f"{subject} must not be before {bound}, got {at}")

    def produce(self, stream: str, value: object, timestamp_ms: int, tag: str = HOLD) -> None:
        computation = self.computation
        if stream not in computation.outputs:
            raise UnknownStreamError(
                f"{computation.name} does not write {stream!r}: add it to its `outputs`"
            )
        late_at = self._late_at(check_time(timestamp_ms), tag, "the time of an output")
        targets, text = self.route(stream, value), value_text(value)
        id_ = self._output_id(stream) if computation.weak else ""
        size = len(text) * (len(targets) or 1)  # A commit has one copy for each reader.
        self.count_bytes(size)
        self._keep(EmittedRecord(stream, text, timestamp_ms, late_at, targets, id_), size)

    def count_bytes(self, size: int) -> None:
        """Count the bytes that a hook writes.

        Raises:
            BadRecordError: they exceed the limit of one hook.
        """
        self._hook_bytes += size
        if self._hook_bytes > MAX_HOOK_BYTES:
            raise BadRecordError(
                f"one call must write at most {MAX_HOOK_BYTES} bytes, summed over all readers, "
                f"got {self._hook_bytes}"
            )

    def _output_id(self, stream: str) -> str:
        """Return the id of an output, derived from its input's id and its place; empty: none.

        Places count per stream, so ids stay the same on a repetition even if another version
        writes additional streams.
        """
        record = self._input
        if record is None or not record.id:
            return ""
        place = self._hook_outputs[stream] = self._hook_outputs.get(stream, 0) + 1
        return derived_id(record.stream, record.id, self.computation.name, place)

    def _keep(self, production: EmittedRecord, size: int) -> None:
        effects = self.effects
        effects.productions.append(production)
        effects.counts.produced += 1
        self.bytes += size

    def drop_late(self) -> None:
        _check_strong(self.computation, "count of what it drops")
        if self.firing is not None:
            raise BadRecordError("drop_late() must be called for a record, not for a timer")
        self._has_dropped = True

    @property
    def text(self) -> str:
        """Return the current record's value as it was stored."""
        return "" if self._input is None else self._input.text

    def produce_late(self, stream: str, text: str, at: int) -> None:
        """Write a dropped record, as it was stored, to the stream for late records."""
        late_at = self.late_at or max(self.watermark, 1)
        late = EmittedRecord(stream, text, at, late_at, self.route(stream, decoded(text)))
        self._keep(late, len(late.text) * (len(late.targets) or 1))

    def _keep_until(self, at: int) -> None:
        """Extend the key's expiry to a time."""
        work = self._work
        if work.expires == NEVER or work.expires < at:
            work.expires = at


class _BundleRunner(_HookBackend):
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
        except MemoryError:
            raise
        except Exception as error:
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
            except Exception as error:
                raise _HookError from error


class _CarefulRunner(_BundleRunner):
    """A run in careful mode: each hook can be undone individually."""

    def call(self, source: HookInput, hook: Hook, argument: Record | Timer) -> bool:
        effects, key, at = self.effects, self.key, self.timestamp_ms
        snapshot, late_at, firing = self._work.freeze(), self.late_at, self.firing
        produced, size, counts = len(effects.productions), self.bytes, replace(effects.counts)
        for _ in range(self.computation.max_attempts):
            try:
                hook(self.context, _fresh_value(source, argument))
                self._work.freeze()
            except MemoryError:
                raise
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                self._work.put(snapshot)
                del effects.productions[produced:]
                self.bytes, effects.counts = size, replace(counts)
                self.enter(key, at, late_at, firing)
            else:
                return True
        effects.failures.append(Failure(key, source, storable(message, MAX_ERROR_CHARS)))
        effects.counts.dead += 1
        return False


def _fresh_value(source: HookInput, argument: Record | Timer) -> Record | Timer:
    """Return the argument of a hook with a newly decoded value, as no hook has changed it."""
    if isinstance(source, KeyedRecord):
        return argument._replace(value=decoded(source.text))  # type: ignore[union-attr]
    return argument


def _check_strong(computation: Computation, feature: str) -> None:
    """Check that a computation may use a feature that must be durable."""
    if computation.weak:
        raise WeakError(f"{computation.name} is weak: it has no {feature}")


def _milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else span // timedelta(milliseconds=1)
