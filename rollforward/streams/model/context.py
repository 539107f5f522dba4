"""What a hook of a computation may see and do."""

from __future__ import annotations

from typing import Protocol

from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.state import State


class ContextBackend(Protocol):
    """What stands behind a context: it collects what a hook does."""

    key: str
    timestamp_ms: int
    now_ms: int
    late_at: int

    @property
    def watermark(self) -> int: ...

    def state(self) -> State: ...

    def set_timer(self, tag: str, at_ms: int, is_processing_time: bool) -> None: ...

    def cancel_timer(self, tag: str) -> bool: ...

    def produce(self, stream: str, value: object, timestamp_ms: int) -> None: ...

    def drop_late(self) -> None: ...


class Context:
    """One key of a computation, while one of its records or timers is worked on."""

    __slots__ = ("_backend",)

    def __init__(self, backend: ContextBackend) -> None:
        self._backend = backend

    def close(self) -> None:
        """Let go of what stands behind it, so that no garbage collector is needed for that."""
        del self._backend

    @property
    def key(self) -> str:
        return self._backend.key

    @property
    def state(self) -> State:
        """The state of the key; what is changed here is kept if the hook ends well."""
        return self._backend.state()

    @property
    def timestamp_ms(self) -> int:
        """The time of the record, or of the timer; outputs may not be earlier.

        Of a timer of the clock it is the time of the record that has set it.
        """
        return self._backend.timestamp_ms

    @property
    def watermark(self) -> int:
        """The time before which every record that came in time has been worked on."""
        return self._backend.watermark

    @property
    def is_over(self) -> bool:
        """Whether the inputs have ended: then each timer fires at once, so set no further ones."""
        return self._backend.watermark >= FOREVER

    @property
    def now_ms(self) -> int:
        """The time of day; it may jump."""
        return self._backend.now_ms

    @property
    def late(self) -> bool:
        """Whether this record came behind its source's watermark, or follows from one that did."""
        return self._backend.late_at > 0

    def set_timer(self, tag: str, at_ms: int, *, processing_time: bool = False) -> None:
        """Have `timer` called for this key, once, when a time is reached.

        A timer of the same tag is replaced. Until it has fired, a timer holds back the watermark
        of what this computation writes: at its time; one of the clock at the time of this input.

        Args:
            at_ms: A time of the watermark, not before that of this input; a timer that is set by a
                timer lies behind it. A time that the watermark has passed fires at once.
            processing_time: `at_ms` is a time of day (processing time).

        Raises:
            TooEarlyError: it lies too early.
            BadRecordError: it is no time.
        """
        self._backend.set_timer(tag, at_ms, processing_time)

    def cancel_timer(self, tag: str) -> bool:
        """Cancel a timer; return whether there was one."""
        return self._backend.cancel_timer(tag)

    def produce(self, stream: str, value: object, timestamp_ms: int | None = None) -> None:
        """Write a record to a stream.

        Args:
            value: Anything that JSON knows.
            timestamp_ms: Its time, by default that of the input, and not before it.

        Raises:
            TooEarlyError: it lies before the input.
            UnknownStreamError: the stream is not among the `outputs`.
            BadRecordError: the value is not JSON, or too large.
        """
        self._backend.produce(
            stream, value, self._backend.timestamp_ms if timestamp_ms is None else timestamp_ms
        )

    def drop_late(self) -> None:
        """Count this record as late, and hand it to the computation's `late_stream` if it has one.

        For records that are of no use any more, because their window is closed: the record then
        counts as late and not as processed.
        """
        self._backend.drop_late()
