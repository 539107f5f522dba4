"""What a hook of a computation may see and do."""

from __future__ import annotations

from typing import Protocol

from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.state import State


class Hands(Protocol):
    """What stands behind a context: it collects what a hook does."""

    key: str
    at: int
    now: int
    late_at: int

    @property
    def watermark(self) -> int: ...

    def state(self) -> State: ...

    def set_timer(self, tag: str, at: int, is_wall: bool) -> None: ...

    def cancel_timer(self, tag: str) -> bool: ...

    def produce(self, stream: str, value: object, at: int) -> None: ...

    def drop_late(self) -> None: ...


class Context:
    """One key of a computation, while one of its records or timers is worked on."""

    __slots__ = ("_hands",)

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    def close(self) -> None:
        """Let go of what stands behind it, so that no garbage collector is needed for that."""
        del self._hands

    @property
    def key(self) -> str:
        return self._hands.key

    @property
    def state(self) -> State:
        """The state of the key; what is changed here is kept if the hook ends well."""
        return self._hands.state()

    @property
    def at(self) -> int:
        """The time of the record, or of the timer; outputs may not be earlier.

        Of a timer of the clock it is the time of the record that has set it.
        """
        return self._hands.at

    @property
    def watermark(self) -> int:
        """The time before which every record that came in time has been worked on."""
        return self._hands.watermark

    @property
    def is_over(self) -> bool:
        """Whether the inputs have ended: then each timer fires at once, so set no further ones."""
        return self._hands.watermark >= FOREVER

    @property
    def now(self) -> int:
        """The time of day; it may jump."""
        return self._hands.now

    @property
    def late(self) -> bool:
        """Whether this record came behind its source's watermark, or follows from one that did."""
        return self._hands.late_at > 0

    def set_timer(self, tag: str, at: int, *, wall: bool = False) -> None:
        """Have `timer` called for this key, once, when a time is reached.

        A timer of the same tag is replaced. Until it has fired, a timer holds back the watermark
        of what this computation writes: at its time; one of the clock at the time of this input.

        Args:
            at: A time of the watermark, not before that of this input; a timer that is set by a
                timer lies behind it. A time that the watermark has passed fires at once.
            wall: `at` is a time of day.

        Raises:
            TooEarlyError: it lies too early.
            BadRecordError: it is no time.
        """
        self._hands.set_timer(tag, at, wall)

    def cancel_timer(self, tag: str) -> bool:
        """Cancel a timer; return whether there was one."""
        return self._hands.cancel_timer(tag)

    def produce(self, stream: str, value: object, at: int | None = None) -> None:
        """Write a record to a stream.

        Args:
            value: Anything that JSON knows.
            at: Its time, by default that of the input, and not before it.

        Raises:
            TooEarlyError: it lies before the input.
            UnknownStreamError: the stream is not among the `outputs`.
            BadRecordError: the value is not JSON, or too large.
        """
        self._hands.produce(stream, value, self._hands.at if at is None else at)

    def drop_late(self) -> None:
        """Count this record as late, and hand it to the computation's `late_stream` if it has one.

        For records that are of no use any more, because their window is closed: the record then
        counts as late and not as processed.
        """
        self._hands.drop_late()
