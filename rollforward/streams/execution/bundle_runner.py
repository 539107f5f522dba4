"""One batch of a computation, as a pure function: no service, no clock, no memory.

Timers that are due fire first, per key in order of their times: the watermark proves that nothing
in time is missing before them. Then come the records, one after the other.

A hook that raises stops the batch, which is run again from its start, now with a copy of each key's
state before each hook, and with a value that each attempt decodes for itself. So a hook that raises
again undoes its own changes only. After `max_attempts` its record or timer is a failure, and the
others go on.
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
    check_output,
    check_tag,
    check_time,
    value_text,
)
from rollforward.streams.model.state import State

# Of one batch, so that its commit stays below 10 MiB.
MAX_FIRED = 1_000
MAX_PRODUCTIONS = 2_000
MAX_PRODUCED_BYTES = 1_000_000
# Of one hook: with what was produced before it stays below what a commit takes.
MAX_HOOK_BYTES = 1_000_000
MAX_ERROR_CHARS = 500

Route = Callable[[str, Any], tuple[Target, ...]]
What = KeyedRecord | tuple[str, SetTimer]
Hook = Callable[[Context, Any], None]


def nowhere(stream: str, value: Any) -> tuple[Target, ...]:
    """Route what nobody reads."""
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
    """Fire what is due, then work on records; return what that leads to.

    Args:
        keys: The keys of the inputs and those that are due; one that is missing is new.
        due: Keys that may have timers that are due, or that may be forgotten.
        route: Says who reads a production.
        is_over: Whether no further hook is to be begun: there is no more time.
        max_fired: How many timers fire at most.
        is_careful: Whether each hook is one that can be undone, as after another one has raised.
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
    """The hands behind the context of each hook of one batch."""

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
        self.before = keys
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

    def enter(self, key: str, at: int, late_at: int, firing: SetTimer | None) -> None:
        """Stand at a key, for one hook."""
        self.key, self.timestamp_ms, self.late_at, self.firing = key, at, late_at, firing
        self._has_dropped, self._hook_bytes = False, 0
        self._hook_outputs.clear()
        work = self.works.get(key)
        if work is None:
            state = self.before.get(key, NOTHING)
            work = self.works[key] = Work(state, self.computation)
            if self.ttl is None:
                work.expires = NEVER  # An earlier version may have had one.
        self._work = work

    def step(self, at: int, late_at: int) -> None:
        """Go on, in the same hook, with a record that it has led to (fused.py)."""
        self.timestamp_ms, self.late_at, self.firing = at, late_at, None
        if self.ttl is not None:
            self._keep_until(at + self.ttl)

    @property
    def timers(self) -> Mapping[str, SetTimer]:
        """Return the timers of the key that have not fired."""
        timers: Mapping[str, SetTimer] = self._work.timers
        return timers

    def drop_inside(self) -> None:
        """Count a record that the hook has led to as late."""
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
        is_late, before = self.late_at > 0, self._work.timers.get(tag)
        if before == (at_ms, is_processing_time, hold, is_late):
            return
        if is_late and before is not None and not before.is_late:
            # The one before held the watermark back, so nothing that follows it is late.
            if is_processing_time:
                hold = max(hold, before.hold)
            is_late = hold < before.hold
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
                f"a timer at {at_ms} is earlier than its input, at {self.timestamp_ms}"
            )

    def cancel_timer(self, tag: str) -> bool:
        return self._work.timers.pop(tag, None) is not None

    def produce(self, stream: str, value: object, timestamp_ms: int) -> None:
        computation = self.computation
        if stream not in computation.outputs:
            raise UnknownStreamError(
                f"{computation.name} does not write {stream!r}: add it to its `outputs`"
            )
        check_output(timestamp_ms, self.timestamp_ms)
        targets, text = self.route(stream, value), value_text(value)
        id_ = self._output_id(stream) if computation.weak else ""
        size = len(text) * (len(targets) or 1)  # In a commit: each reader gets its own.
        self.count_bytes(size)
        self._keep(EmittedRecord(stream, text, timestamp_ms, self.late_at, targets, id_), size)

    def count_bytes(self, size: int) -> None:
        """Count what a hook writes.

        Raises:
            BadRecordError: it is too much for one hook.
        """
        self._hook_bytes += size
        if self._hook_bytes > MAX_HOOK_BYTES:
            raise BadRecordError(
                f"one call may write {MAX_HOOK_BYTES} bytes at most, to all readers together"
            )

    def _output_id(self, stream: str) -> str:
        """Return the id of an output: that of its input and its place, if a repetition needs it.

        Its place in its stream: so another version may write further streams, and what is pushed
        again there has the same id.
        """
        each = self._input
        if each is None or not each.id:
            return ""
        place = self._hook_outputs[stream] = self._hook_outputs.get(stream, 0) + 1
        return derived_id(each.stream, each.id, self.computation.name, place)

    def _keep(self, production: EmittedRecord, size: int) -> None:
        effects = self.effects
        effects.productions.append(production)
        effects.counts.produced += 1
        self.bytes += size

    def drop_late(self) -> None:
        _check_strong(self.computation, "count of what it drops")
        if self.firing is not None:
            raise BadRecordError("a timer cannot be dropped as late: only a record can")
        self._has_dropped = True

    @property
    def text(self) -> str:
        """Return the record at work, as it was stored."""
        return "" if self._input is None else self._input.text

    def produce_late(self, stream: str, text: str, at: int) -> None:
        """Hand a record that was dropped to the stream for late ones, as it was stored."""
        late_at = self.late_at or max(self.watermark, 1)
        late = EmittedRecord(stream, text, at, late_at, self.route(stream, decoded(text)))
        self._keep(late, len(late.text) * (len(late.targets) or 1))

    def _keep_until(self, at: int) -> None:
        """Have the key kept until the watermark has reached a time, or longer."""
        work = self._work
        if work.expires == NEVER or work.expires < at:
            work.expires = at


class _BundleRunner(_HookBackend):
    """One batch."""

    def run(self, inputs: Sequence[KeyedRecord], due: Iterable[str]) -> Effects:
        try:
            if self._fire_all(due):
                self._take_all(inputs)
            self._freeze_all()
        finally:
            self.context.close()
        return self.effects

    def call(self, what: What, hook: Hook, told: Record | Timer) -> bool:
        """Call a hook; return whether it ended well."""
        try:
            hook(self.context, told)
        except MemoryError:
            raise
        except Exception as error:
            raise _HookError from error
        return True

    # Records

    def _take_all(self, inputs: Sequence[KeyedRecord]) -> None:
        for each in inputs:
            if self._is_full() or self.is_over():
                break
            self._take(each)
            self.effects.consumed += 1

    def _take(self, each: KeyedRecord) -> None:
        key, value, at, stream, late_at, *_ = each
        if stream == DEAD_TIMERS:
            tag, fires_at, is_processing_time = value
            self._fire_one(key, tag, SetTimer(fires_at, is_processing_time, at, True))
            return
        if late_at and self.computation.late == "drop":
            self._drop(each)
            return
        self._input = each
        self.enter(key, at, late_at, None)
        if not self.call(each, self.computation.record, Record(key, value, at, stream)):
            return
        if self._has_dropped:
            self._drop(each)
        else:
            self.effects.counts.records += 1
        if self.ttl is not None:
            self._keep_until(at + self.ttl)

    def _drop(self, each: KeyedRecord) -> None:
        """Count a record as late, and hand it to the stream for late ones."""
        self.effects.counts.late += 1
        if self.computation.late_stream is not None:
            self.produce_late(self.computation.late_stream, each.text, each.timestamp_ms)

    def _is_full(self) -> bool:
        return len(self.effects.productions) >= MAX_PRODUCTIONS or self.bytes >= MAX_PRODUCED_BYTES

    # Timers

    def _fire_all(self, due: Iterable[str]) -> bool:
        """Fire what is due; return whether that was all."""
        return all(self._fire(key) for key in due)

    def _fire(self, key: str) -> bool:
        """Fire the timers of a key that are due, each in its turn; return whether those were all.

        Those of the watermark come before those of the clock.
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
            self._fire_one(key, tag, work.timers.pop(tag))
        if self.ttl is not None and (work.expires <= self.watermark or self.watermark >= FOREVER):
            self._forget(work)
        return True

    def _forget(self, work: Work) -> None:
        """Forget a key whose time is over.

        When no records come any more, that is behind its last timer of the clock: nothing else
        can bring that forward, and whoever waits for the computation to leave waits for it.
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
        told = Timer(key, tag, timer.at_ms, timer.is_processing_time)
        self.effects.fired.append((key, timer))
        if self.call((tag, timer), self.computation.timer, told):
            self.effects.counts.timers += 1

    def _freeze_all(self) -> None:
        for key, work in self.works.items():
            try:
                self.effects.keys[key] = work.freeze()
            except Exception as error:
                raise _HookError from error


class _CarefulRunner(_BundleRunner):
    """A batch in which each hook can be undone by itself."""

    def call(self, what: What, hook: Hook, told: Record | Timer) -> bool:
        effects, key, at = self.effects, self.key, self.timestamp_ms
        before, late_at, firing = self._work.freeze(), self.late_at, self.firing
        produced, size, counts = len(effects.productions), self.bytes, replace(effects.counts)
        for _ in range(self.computation.max_attempts):
            try:
                hook(self.context, _fresh_value(what, told))
                self._work.freeze()
            except MemoryError:
                raise
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                self._work.put(before)
                del effects.productions[produced:]
                self.bytes, effects.counts = size, replace(counts)
                self.enter(key, at, late_at, firing)
            else:
                return True
        effects.failures.append(Failure(key, what, storable(said, MAX_ERROR_CHARS)))
        effects.counts.dead += 1
        return False


def _fresh_value(what: What, told: Record | Timer) -> Record | Timer:
    """Return what a hook is given, as if no hook had had it before."""
    return told._replace(value=decoded(what.text)) if isinstance(what, KeyedRecord) else told  # type: ignore[union-attr]


def _check_strong(computation: Computation, what: str) -> None:
    """Check that a computation may have what has to be durable."""
    if computation.weak:
        raise WeakError(f"{computation.name} is weak: it has no {what}")


def _milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else span // timedelta(milliseconds=1)
