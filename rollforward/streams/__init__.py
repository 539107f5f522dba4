"""Streams: computations over keyed records, with state and timers, exactly once.

    class HitsPerPath(Computation):
        inputs = {"requests": lambda request: request["path"]}
        outputs = ["hits"]

        def record(self, ctx, record): ...
        def timer(self, ctx, timer): ...

    WEBLOG = Pipeline("weblog", HitsPerPath)

Computations that are there to be used: `rollforward.streams.windows` (tumbling, sliding, session
and count windows) with `combine` (what they make of their records), `joins` (window, interval,
as-of) and `deduplicate`. Those that have the same keys run as one by `fused`. What `PullSource`s
read is in `readers`; where records go that leave, in `sinks`; how much may wait, in `limits`; what
is refused, in `errors`.

Source: T. Akidau and others, "MillWheel: Fault-Tolerant Stream Processing at Internet Scale", 2013.
"""

from rollforward.streams.computation import Computation
from rollforward.streams.context import Context
from rollforward.streams.errors import StreamError
from rollforward.streams.pipeline import Pipeline, Pushed
from rollforward.streams.records import FOREVER, Record, Timer
from rollforward.streams.sources import Pulled, PullSource, PushSource
from rollforward.streams.testing import StreamTest

__all__ = [
    "FOREVER",
    "Computation",
    "Context",
    "Pipeline",
    "PullSource",
    "Pulled",
    "PushSource",
    "Pushed",
    "Record",
    "StreamError",
    "StreamTest",
    "Timer",
]
