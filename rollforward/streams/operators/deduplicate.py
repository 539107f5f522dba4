"""Deduplication by key: forwards one record of each key within a span of event time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.records import Record
from rollforward.streams.operators.windows import milliseconds


class Deduplicate(Computation):
    """Forwards a record unless another one of its key was forwarded within a span of time.

    The first record to arrive is forwarded, even if another one has an earlier time. A record that
    is a whole span behind the watermark counts as late, because the forwarded times near it may
    have been deleted.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        within: timedelta,
        late_stream: str | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            inputs: The streams to read, each with its key function.
            output: The stream of the forwarded records.
            within: The span of time. Records of a key that are at least this far apart are not
                duplicates.
            late_stream: The stream for late records.

        Raises:
            TypeError: the span is too short.
        """
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.within = milliseconds(within)
        # A record forwarded at t matters to records before t + within, and accepted records may be
        # up to `within` behind the watermark.
        self.ttl = timedelta(milliseconds=2 * self.within)
        self.late_stream = late_stream
        if self.within < 1:
            raise TypeError(f"{name}: `within` must be at least a millisecond, got {within}")

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms + self.within <= ctx.watermark:
            ctx.drop_late()
            return
        oldest = ctx.watermark - 2 * self.within
        passed = [at for at in ctx.state.list("passed").get() if at > oldest]
        if all(abs(at - record.timestamp_ms) >= self.within for at in passed):
            passed.append(record.timestamp_ms)
            ctx.produce(self.outputs[0], record.value)
        ctx.state.list("passed").set(passed)
