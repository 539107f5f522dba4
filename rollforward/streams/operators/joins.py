"""Joins: pairs of records of two streams, by key and event time.

    PAID = IntervalJoin(
        "paid",
        inputs={"orders": by_order, "payments": by_order},
        output="paid-orders",
        lower=timedelta(0),
        upper=timedelta(hours=1),
    )

The first of the two streams is the left one, the second the right one. A result contains both
records and their times: {"key": ..., "left": ..., "left_at": ..., "right": ..., "right_at": ...}.

- `WindowJoin`: every left record with every right one of the same window.
- `IntervalJoin`: every left record at t with every right one from t + `lower` to t + `upper`.
- `AsOfJoin`: each left record with the last right one at or before its time.

Source: Kafka Streams and Apache Flink (window and interval join); kdb+ (as-of join).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.records import FOREVER, NEVER, Record, Timer
from rollforward.streams.operators.aggregates import Combine
from rollforward.streams.operators.windows import Windowed, Windows, milliseconds

_LEFT, _RIGHT, _AT = "left", "right", "at:"
_END_OF_TIME = FOREVER - 1  # No timer can be later.
_NOTHING = (None, None)  # The time and the value of a side that has no record.


class WindowJoin(Windowed):
    """Joins every left record of a window with every right one, at the window's end.

    A result also contains the bounds of the window. One hook call writes all pairs of a window, so
    they are limited to 1 MB together.
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
            inputs: The left stream and the right one, each with its key function.
            output: The stream of the results.
            outer: Also write records without a partner, with None on the other side.
            late_stream: The stream for records that were too late for every window.

        Raises:
            TypeError: `inputs` are not two streams.
        """
        left_stream, _ = _two(name, inputs)
        self.outer = outer
        super().__init__(
            name,
            windows,
            inputs=inputs,
            output=output,
            combine=_sides(left_stream),
            late_stream=late_stream,
        )

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        """Write the pairs of a window."""
        bounds = {"start": window["start"], "end": window["end"]}
        lefts, rights = window["total"]
        if self.outer:
            lefts, rights = lefts or [_NOTHING], rights or [_NOTHING]
        for pair in itertools.product(lefts, rights):
            ctx.produce(self.output, {**_pair(ctx.key, *pair), **bounds}, at)


class IntervalJoin(Computation):
    """Joins every left record at t with every right one from t + `lower` to t + `upper`, inclusive.

    A pair is written when its second record arrives, with the later of the two times. A record is
    accepted while it is at most `lateness` behind the watermark. It is then joined with every
    accepted partner.
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
            inputs: The left stream and the right one, each with its key function.
            output: The stream of the results.
            lower: The start of the interval; negative: before the left record.
            upper: The end of the interval.
            lateness: The allowed lateness: how far behind the watermark a record may be.
            late_stream: The stream for records that are further behind.

        Raises:
            TypeError: `inputs` are not two streams, or the interval is invalid.
        """
        self.left, _ = _two(name, inputs)
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.lower, self.upper = milliseconds(lower), milliseconds(upper)
        self.lateness = milliseconds(lateness)
        self.late_stream = late_stream
        if self.lower > self.upper or self.lateness < 0:
            raise TypeError(
                f"{name}: `lower` must be at most `upper`, and `lateness` must not be negative"
            )

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms + self.lateness < ctx.watermark:
            ctx.drop_late()
            return
        if record.stream == self.left:
            side, other_side, low, high = _LEFT, _RIGHT, self.lower, self.upper
        else:
            side, other_side, low, high = _RIGHT, _LEFT, -self.upper, -self.lower
        at = record.timestamp_ms
        entry = at, record.value
        for partner in ctx.state.buffer(other_side).between(at + low, at + high + 1):
            pair = (entry, partner) if side == _LEFT else (partner, entry)
            ctx.produce(self.outputs[0], _pair(ctx.key, *pair), max(at, partner[0]))
        self._keep(ctx, side, record)

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Delete records that can have no further partner."""
        ctx.state.value("forget").clear()
        for side in (_LEFT, _RIGHT):
            span, buffer = self._span(side), ctx.state.buffer(side)
            if timer.at_ms == _END_OF_TIME:
                buffer.clear()
            buffer.drop_before(timer.at_ms - span + 1)
            for at, _ in buffer.between(0, FOREVER)[:1]:
                self._forget_at(ctx, at + span)

    def _keep(self, ctx: Context, side: str, record: Record) -> None:
        """Store a record for partners that may still arrive."""
        end = record.timestamp_ms + self._span(side)
        if end > ctx.watermark:
            ctx.state.buffer(side).add(record.timestamp_ms, record.value)
            self._forget_at(ctx, max(end, record.timestamp_ms))

    def _span(self, side: str) -> int:
        """Return the distance of the watermark after a record at which no partner can arrive."""
        return (self.upper if side == _LEFT else -self.lower) + self.lateness + 1

    def _forget_at(self, ctx: Context, at: int) -> None:
        """Set the timer, unless it is set for an earlier time."""
        at = min(at, _END_OF_TIME)
        earliest = ctx.state.value("forget", NEVER)
        if at < earliest.get():
            earliest.set(at)
            ctx.set_timer("forget", at)


class AsOfJoin(Computation):
    """Joins each left record with the last right one at or before its time.

    A left record waits until the watermark has passed it. Its result has its time plus one
    millisecond. Late left records are dropped. A late right record is stored as long as future left
    records may join it. The last right record of a key is stored forever, unless there is a
    `max_age`.
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
            inputs: The left stream and the right one, each with its key function.
            output: The stream of the results.
            max_age: The maximum age of the right record at the time of the left one.
            outer: Also write left records without a partner, with None on the right side.
            late_stream: The stream for late records.

        Raises:
            TypeError: `inputs` are not two streams, or the age is negative.
        """
        self.left, _ = _two(name, inputs)
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.max_age = FOREVER if max_age is None else milliseconds(max_age)
        self.ttl = None if max_age is None else timedelta(milliseconds=self.max_age + 2)
        self.outer = outer
        self.late_stream = late_stream
        if self.max_age < 0:
            raise TypeError(f"{name}: `max_age` must not be negative, got {max_age}")

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
        partner = rights.latest(at)
        if partner is not None and at - partner[0] > self.max_age:
            partner = None
        for entry in waiting.between(at, at + 1):
            if partner is not None or self.outer:
                ctx.produce(self.outputs[0], _pair(ctx.key, entry, partner or _NOTHING))
        waiting.drop_before(at + 1)
        if partner is not None:
            rights.drop_before(partner[0])

    def _keep(self, ctx: Context, record: Record) -> None:
        """Store a right record, unless a later one precedes all left records to come."""
        # All pending left records, and all on-time ones to come, are at or after the watermark.
        rights = ctx.state.buffer(_RIGHT)
        current = rights.latest(ctx.watermark)
        if current is not None and record.timestamp_ms < current[0]:
            ctx.drop_late()
            return
        rights.add(record.timestamp_ms, record.value)
        current = rights.latest(ctx.watermark)
        if current is not None:
            rights.drop_before(current[0])


def _two(name: str, inputs: Mapping[str, KeyOf]) -> tuple[str, str]:
    """Return the names of the left and of the right stream.

    Raises:
        TypeError: `inputs` are not two streams.
    """
    if len(inputs) != 2:
        raise TypeError(f"{name}: `inputs` must be two streams, got {len(inputs)}")
    left_stream, right_stream = inputs
    return left_stream, right_stream


def _sides(left_stream: str) -> Combine:
    """Collect the records of the left stream and of the right one, each with its time."""

    def add(sides: Any, record: Record) -> Any:
        sides[0 if record.stream == left_stream else 1].append([record.timestamp_ms, record.value])
        return sides

    def merge(sides: Any, others: Any) -> Any:
        return [sides[0] + others[0], sides[1] + others[1]]

    return Combine(lambda: [[], []], add, merge)


def _pair(key: str, left_entry: Sequence[Any], right_entry: Sequence[Any]) -> dict[str, Any]:
    (left_at, left_value), (right_at, right_value) = left_entry, right_entry
    return {
        "key": key,
        "left": left_value,
        "left_at": left_at,
        "right": right_value,
        "right_at": right_at,
    }
