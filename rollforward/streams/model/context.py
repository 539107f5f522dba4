"""Context of a hook: keyed state, timers, outputs and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rollforward.streams.model.key_state import SetTimer
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.state import State


class ContextBackend(Protocol):
    """Backend of a Context: records the effects of a hook."""

    key: str
    timestamp_ms: int
    now_ms: int
    late_at: int

    @property
    def watermark(self) -> int: ...

    def state(self) -> State: ...

    def set_timer(self, tag: str, at_ms: int, is_processing_time: bool) -> None: ...

    def cancel_timer(self, tag: str) -> bool: ...

    def hold(self, at_ms: int) -> int: ...

    def release(self) -> int | None: ...

    @property
    def timers(self) -> Mapping[str, SetTimer]: ...

    @property
    def hold_tag(self) -> str: ...

    def produce(self, stream: str, value: object, timestamp_ms: int) -> None: ...

    def drop_late(self) -> None: ...


class Context:
    """One key of a computation, while a hook processes one of its records or timers."""

    __slots__ = ("_backend",)

    def __init__(self, backend: ContextBackend) -> None:
        self._backend = backend

    def close(self) -> None:
        """Release the backend, which breaks a reference cycle: no garbage collection is needed."""
        del self._backend

    @property
    def key(self) -> str:
        """The key of the record or timer."""
        return self._backend.key

    @property
    def state(self) -> State:
        """The keyed state; changes are stored if the hook returns without an error."""
        return self._backend.state()

    @property
    def timestamp_ms(self) -> int:
        """The event time of the record or timer; outputs may not be earlier.

        For a processing-time timer: the event time of the record that has set it.
        """
        return self._backend.timestamp_ms

    @property
    def watermark(self) -> int:
        """The event time before which every on-time record has been processed."""
        return self._backend.watermark

    @property
    def is_over(self) -> bool:
        """Whether the inputs have ended. Timers then fire immediately, so set no further ones."""
        return self._backend.watermark >= FOREVER

    @property
    def now_ms(self) -> int:
        """The processing time, from the worker's clock; it may jump."""
        return self._backend.now_ms

    @property
    def late(self) -> bool:
        """Whether this record arrived behind its source's watermark, or derives from a late one."""
        return self._backend.late_at > 0

    def set_timer(self, tag: str, at_ms: int, *, processing_time: bool = False) -> None:
        """Schedule a call of `timer` for this key, once, when a time is reached.

        A timer with the same tag is replaced. Until it fires, a timer holds the watermark of this
        computation's outputs: at its own time, or, for a processing-time timer, at the time of this
        input.

        Args:
            at_ms: An event time, not before that of this input. A timer that is set by a timer
                must be later than that one. A time that the watermark has passed fires immediately.
            processing_time: `at_ms` is a processing time.

        Raises:
            TooEarlyError: the time is too early.
            BadRecordError: this is not a time.
        """
        self._backend.set_timer(tag, at_ms, processing_time)

    def cancel_timer(self, tag: str) -> bool:
        """Cancel a timer; return whether there was one."""
        return self._backend.cancel_timer(tag)

    def has_timer(self, tag: str) -> bool:
        """Return whether a timer of this tag is pending; one that fires now is not."""
        timer = self._backend.timers.get(self._backend.hold_tag + tag)
        return timer is not None and not timer.is_hold

    def hold(self, at_ms: int) -> int:
        """Hold the watermark of this computation's outputs for this key; return the held time.

        Until `release`, outputs at or after that time are on time, whenever they are written:

            ctx.hold(record.timestamp_ms)                    # The first record of a group.
            ctx.produce("groups", group, ctx.release())      # Later, when it is complete.

        A key has one hold, which a new one replaces. It ends with `release`, with the key's `ttl`,
        or when the inputs have ended and the key's last event-time timer has fired. A key that is
        never released stops all windows downstream: give its computation a `ttl`, or set a timer
        that releases it.

        A late record cannot hold the watermark, which has passed it. So outputs from its time on
        are late, and it does not replace a hold of on-time records, whose time is returned then.

        Args:
            at_ms: An event time, not before that of this input or the key's hold.

        Raises:
            TooEarlyError: the time is too early.
            BadRecordError: this is not a time.

        Source: MillWheel (2013), 5.2: the low watermark includes the timestamps of stored state.
        """
        return self._backend.hold(at_ms)

    def release(self) -> int | None:
        """End the hold of this key; return its time, None if there was none.

        The outputs of this hook may still have that time: all is stored in one commit.
        """
        return self._backend.release()

    @property
    def held_ms(self) -> int | None:
        """The event time that this key holds; None: it holds none."""
        timer = self._backend.timers.get(self._backend.hold_tag)
        return None if timer is None or not timer.is_hold else timer.hold

    def produce(self, stream: str, value: object, timestamp_ms: int | None = None) -> None:
        """Write a record to a stream.

        Args:
            value: Any JSON value.
            timestamp_ms: Its event time; default: the input's. Not before that, or before the hold
                that the key had when the hook began.

        Raises:
            TooEarlyError: the time is before both.
            UnknownStreamError: the stream is not among the `outputs`.
            BadRecordError: the value is not JSON, or too large.
        """
        self._backend.produce(
            stream, value, self._backend.timestamp_ms if timestamp_ms is None else timestamp_ms
        )

    def drop_late(self) -> None:
        """Drop this record as late: write it to the `late_stream`, if the computation has one.

        For records that have become useless, for example because their window is closed. The record
        counts as late, not as processed.
        """
        self._backend.drop_late()
