"""Deduplicate: one record of each key passes within a span of time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.records import Record
from rollforward.streams.operators.windows import milliseconds


class Deduplicate(Computation):
    """Passes a record on unless one of its key was passed on within a span of time.

    The first that comes is passed on, also if another one has an earlier time. A record that lies a
    whole span behind the watermark counts as late: what was passed on then may be forgotten.
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
            inputs: The streams that it reads, each with what must not be repeated.
            output: The stream of the records that pass.
            within: Records of one key that lie this far apart, or further, are no repetition.
            late_stream: Gets the records that come too late.

        Raises:
            TypeError: the span is too short.
        """
        self.name = name
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.within = milliseconds(within)
        # What was passed on at t matters to records before t + within, and those that are taken may
        # lie up to `within` behind the watermark.
        self.ttl = 2 * within
        self.late_stream = late_stream
        if self.within < 1:
            raise TypeError(f"{name}: `within` is at least a millisecond, not {within}")

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
