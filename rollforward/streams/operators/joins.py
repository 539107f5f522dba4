"""Joins: records of two streams that belong together, by key and time.

    PAID = IntervalJoin(
        "paid",
        inputs={"orders": by_order, "payments": by_order},
        output="paid-orders",
        lower=timedelta(0),
        upper=timedelta(hours=1),
    )

The first of the two streams is the left one, the second the right one, and each record of a result
says when it was: {"key": ..., "left": ..., "left_at": ..., "right": ..., "right_at": ...}.

- `WindowJoin`: every left record with every right one of the same window.
- `IntervalJoin`: every left record at t with every right one from t + `lower` to t + `upper`.
- `AsOfJoin`: each left record with the last right one that is not after it.

Source: Kafka Streams and Apache Flink (window and interval join); kdb+ (as-of join).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.records import FOREVER, NEVER, Record, Timer
from rollforward.streams.operators.aggregates import Combine
from rollforward.streams.operators.windows import Windowed, Windows, milliseconds

_LEFT, _RIGHT, _AT = "left", "right", "at:"
_NOTHING = (None, None)  # The time and the value of a side that has no record.


class WindowJoin(Windowed):
    """Every left record of a window with every right one, when the window ends.

    A result has the bounds of the window, too. A window's pairs are written by one call, so they
    have at most 1 MB together.
    """

    def __init__(
        self,
        name: str,
        windows: Windows,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        outer: bool = False,
        late_stream: str | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            windows: `Tumbling`, `Sliding` or `Session` (of both streams together).
            inputs: The left stream and the right one, each with its key.
            output: The stream of the results.
            outer: A record without a partner is written, too, with None on the other side.
            late_stream: Gets the records that came too late for every window.

        Raises:
            TypeError: these are not two streams.
        """
        left, _ = _two(name, inputs)
        self.outer = outer
        super().__init__(
            name,
            windows,
            inputs=inputs,
            output=output,
            combine=_sides(left),
            late_stream=late_stream,
        )

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        """Write the pairs of a window."""
        bounds = {"start": window["start"], "end": window["end"]}
        lefts, rights = window["total"]
        if self.outer:
            lefts, rights = lefts or [_NOTHING], rights or [_NOTHING]
        for left in lefts:
            for right in rights:
                ctx.produce(self.output, {**_pair(ctx.key, left, right), **bounds}, at)


class IntervalJoin(Computation):
    """Every left record at t with every right one from t + `lower` to t + `upper`, both included.

    A pair is written when its second record comes, with the later one's time. A record is taken as
    long as it lies at most `lateness` behind the watermark; then it meets every partner that was
    taken.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        lower: timedelta,
        upper: timedelta,
        lateness: timedelta = timedelta(0),
        late_stream: str | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            inputs: The left stream and the right one, each with its key.
            output: The stream of the results.
            lower: Where the interval begins; below zero: before the left record.
            upper: Where it ends.
            lateness: How far behind the watermark a record may be.
            late_stream: Gets the records that are further behind.

        Raises:
            TypeError: these are not two streams, or this is no interval.
        """
        self.left, _ = _two(name, inputs)
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.lower, self.upper = milliseconds(lower), milliseconds(upper)
        self.lateness = milliseconds(lateness)
        self.late_stream = late_stream
        if self.lower > self.upper or self.lateness < 0:
            raise TypeError(f"{name}: `lower` is at most `upper`, `lateness` not below zero")

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms + self.lateness < ctx.watermark:
            ctx.drop_late()
            return
        if record.stream == self.left:
            mine, others, low, high = _LEFT, _RIGHT, self.lower, self.upper
        else:
            mine, others, low, high = _RIGHT, _LEFT, -self.upper, -self.lower
        me = record.timestamp_ms, record.value
        for other in ctx.state.buffer(others).between(
            record.timestamp_ms + low, record.timestamp_ms + high + 1
        ):
            left, right = (me, other) if mine == _LEFT else (other, me)
            ctx.produce(
                self.outputs[0], _pair(ctx.key, left, right), max(record.timestamp_ms, other[0])
            )
        self._keep(ctx, mine, record)

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Forget what no record can meet any more."""
        ctx.state.value("forget").clear()
        for side in (_LEFT, _RIGHT):
            span, buffer = self._span(side), ctx.state.buffer(side)
            buffer.drop_before(timer.at_ms - span + 1)
            for at, _ in buffer.between(0, FOREVER)[:1]:
                self._forget_at(ctx, at + span)

    def _keep(self, ctx: Context, side: str, record: Record) -> None:
        """Keep a record for those that it may meet."""
        end = record.timestamp_ms + self._span(side)
        if end > ctx.watermark:
            ctx.state.buffer(side).add(record.timestamp_ms, record.value)
            self._forget_at(ctx, max(end, record.timestamp_ms))

    def _span(self, side: str) -> int:
        """Return how far behind a record the watermark is when no further one can meet it."""
        return (self.upper if side == _LEFT else -self.lower) + self.lateness + 1

    def _forget_at(self, ctx: Context, at: int) -> None:
        """Set the timer, if it is not set for an earlier time."""
        cell = ctx.state.value("forget", NEVER)
        if at < cell.get():
            cell.set(at)
            ctx.set_timer("forget", at)


class AsOfJoin(Computation):
    """Each left record with the last right one that is not later than it.

    A left record waits until the watermark has passed it; its result comes one millisecond after
    its own time. A left record that is late is dropped; a late right one is kept as long as it can
    be the last one of left records to come. The last right record of a key is kept for ever,
    unless there is a `max_age`.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        max_age: timedelta | None = None,
        outer: bool = True,
        late_stream: str | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            inputs: The left stream and the right one, each with its key.
            output: The stream of the results.
            max_age: How much earlier than the left record the right one may be at most.
            outer: A left record without a right one is written, too, with None in its place.
            late_stream: Gets the records that came too late.

        Raises:
            TypeError: these are not two streams, or the age is below zero.
        """
        self.left, _ = _two(name, inputs)
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.max_age = FOREVER if max_age is None else milliseconds(max_age)
        self.ttl = None if max_age is None else max_age + timedelta(milliseconds=2)
        self.outer = outer
        self.late_stream = late_stream
        if self.max_age < 0:
            raise TypeError(f"{name}: `max_age` is not below zero")

    def record(self, ctx: Context, record: Record) -> None:
        if record.stream != self.left:
            self._keep(ctx, record)
        elif record.timestamp_ms < ctx.watermark:
            ctx.drop_late()
        else:
            ctx.state.buffer(_LEFT).add(record.timestamp_ms, record.value)
            ctx.set_timer(f"{_AT}{record.timestamp_ms}", record.timestamp_ms + 1)

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Join the left records of one time."""
        at, waiting, rights = timer.at_ms - 1, ctx.state.buffer(_LEFT), ctx.state.buffer(_RIGHT)
        last = rights.latest(at)
        if last is not None and at - last[0] > self.max_age:
            last = None
        for left in waiting.between(at, at + 1):
            if last is not None or self.outer:
                ctx.produce(self.outputs[0], _pair(ctx.key, left, last or _NOTHING))
        waiting.drop_before(at + 1)
        if last is not None:
            rights.drop_before(last[0])

    def _keep(self, ctx: Context, record: Record) -> None:
        """Keep a right record, unless there is a later one for all left records to come."""
        # All left records that wait, or come in time, are at the watermark or behind it.
        rights = ctx.state.buffer(_RIGHT)
        last = rights.latest(ctx.watermark)
        if last is not None and record.timestamp_ms < last[0]:
            ctx.drop_late()
            return
        rights.add(record.timestamp_ms, record.value)
        last = rights.latest(ctx.watermark)
        if last is not None:
            rights.drop_before(last[0])


def _two(name: str, inputs: Mapping[str, KeyOf]) -> tuple[str, str]:
    """Return the names of the left and of the right stream.

    Raises:
        TypeError: these are not two.
    """
    if len(inputs) != 2:
        raise TypeError(f"{name} joins two streams, not {len(inputs)}")
    left, right = inputs
    return left, right


def _sides(left: str) -> Combine:
    """Collect the records of the left stream and of the right one, each with its time."""

    def add(sides: Any, record: Record) -> Any:
        sides[0 if record.stream == left else 1].append([record.timestamp_ms, record.value])
        return sides

    def merge(first: Any, second: Any) -> Any:
        return [first[0] + second[0], first[1] + second[1]]

    return Combine(lambda: [[], []], add, merge)


def _pair(key: str, left: Sequence[Any], right: Sequence[Any]) -> dict[str, Any]:
    (left_at, left_value), (right_at, right_value) = left, right
    return {
        "key": key,
        "left": left_value,
        "left_at": left_at,
        "right": right_value,
        "right_at": right_at,
    }
