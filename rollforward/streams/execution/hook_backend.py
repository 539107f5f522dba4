"""Backend of the context of a bundle's hooks: the keys at work, and the effects so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rollforward.streams.model.bundle import (
    Effects,
    EmittedRecord,
    KeyedRecord,
    Target,
    derived_id,
)
from rollforward.streams.model.codecs import Codecs
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import (
    BadRecordError,
    TooEarlyError,
    UnknownStreamError,
    WeakError,
)
from rollforward.streams.model.key_state import NOTHING, KeyState, SetTimer
from rollforward.streams.model.records import (
    FOREVER,
    NEVER,
    check_tag,
    check_time,
    value_text,
)
from rollforward.streams.model.state import State, check_size, check_timers

# The limit of one hook; with the earlier productions it stays below the limit of a commit.
MAX_HOOK_BYTES = 1_000_000
# The tag of a key's hold among its timers; a timer's own tag is not empty.
HOLD = ""

Route = Callable[[str, Any], tuple[Target, ...]]


class Work:
    """The working copy of a key."""

    __slots__ = (
        "computation",
        "expires",
        "items",
        "original",
        "state",
        "text",
        "timers",
        "version",
    )  # fmt: skip

    def __init__(self, original: KeyState, computation: Computation) -> None:
        self.original, self.computation = original, computation
        self.put(original)

    def put(self, state: KeyState) -> None:
        """Replace the working copy by a state, discarding later changes."""
        self.text, timers, self.expires, self.version = state
        self.timers = dict(timers)
        self.items: dict[str, Any] | None = None  # Decoded when a hook asks for it.
        self.state: State | None = None

    def decoded(self) -> State:
        if self.state is None:
            self.items = self.computation.load(self.text, self.version) if self.text else {}
            self.state = State(self.items)
        return self.state

    def freeze(self) -> KeyState:
        """Return the current state of the key.

        Raises:
            Exception: the state cannot be written.
        """
        if self.items is not None:
            self.text = self.computation.codec.dump(self.items) if self.items else ""
            self.version = self.computation.version
            check_size(self.text)
        if not self.text and not self.timers:
            return NOTHING
        check_timers(self.timers)
        state = KeyState(self.text, dict(self.timers), self.expires, self.version)
        return self.original if state == self.original else state  # It caches derived values.


def without_hold(timers: Mapping[str, SetTimer], tag: str) -> dict[str, SetTimer]:
    """Return timers without the hold that a timer of a tag might have released.

    The hold is the computation's, or that of the fused part that the tag begins with.
    """
    part = tag.partition(":")[0] + ":"
    return {
        name: timer
        for name, timer in timers.items()
        if not (timer.is_hold and name in (HOLD, part))
    }


class HookBackend:
    """Backend of the context that all hooks of a bundle share."""

    hold_tag = HOLD

    def __init__(
        self,
        computation: Computation,
        keys: Mapping[str, KeyState],
        watermark: int,
        now_ms: int,
        route: Route,
        codecs: Codecs,
        limits: tuple[Callable[[], bool], int],
    ) -> None:
        self.computation = computation
        self.stored = keys
        self.watermark = watermark
        self.now_ms = now_ms
        self.route, self.codecs = route, codecs
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

    def drop_inner(self) -> None:
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
        timer = self._work.timers.get(tag)
        if timer is None or timer.is_hold:
            return False
        del self._work.timers[tag]
        return True

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
        targets = self.route(stream, value)
        text = value_text(value, self.codecs.writers.get(stream))
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
        targets = self.route(stream, self.codecs.value(text))
        late = EmittedRecord(stream, text, at, late_at, targets)
        self._keep(late, len(late.text) * (len(late.targets) or 1))

    def _keep_until(self, at: int) -> None:
        """Extend the key's expiry to a time."""
        work = self._work
        if work.expires == NEVER or work.expires < at:
            work.expires = at


def _check_strong(computation: Computation, feature: str) -> None:
    """Check that a computation may use a feature that must be durable."""
    if computation.weak:
        raise WeakError(f"{computation.name} is weak: it has no {feature}")


def _milliseconds(span: timedelta | None) -> int | None:
    return None if span is None else span // timedelta(milliseconds=1)
