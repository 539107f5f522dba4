"""Streams: computations over keyed records, with state and timers, exactly once.

    class HitsPerPath(Computation):
        inputs = {"requests": lambda request: request["path"]}
        outputs = ["hits"]

        def record(self, ctx, record): ...
        def timer(self, ctx, timer): ...

    WEBLOG = Pipeline("weblog", HitsPerPath)

Ready-made computations are in `operators`: `windows` (tumbling, sliding, session and count
windows) with their `aggregates`, `joins` (window, interval, as-of), `deduplicate`, `hot_keys`, and
`fused`, which runs computations with the same keys as one. Readers of pull sources and sinks are in
`connectors`. `model.limits` has the limits of backlogs, and `model.errors` the refusals.

The rooms stand on each other, from the top to the bottom:

    inspection   states, status and dead letters, read at any time
    topology     computations attached, replaced and detached while a pipeline runs
    watermarks   one cut through all rows, and the watermarks that follow
    workers      the lease of an interval, and one bundle after the other
    scaling      intervals split and merged by their load
    exchange     records on their way from sources and workers into inboxes
    execution    hooks over one bundle of records
    connectors   readers of pull sources, and sinks
    operators    ready-made computations
    graph        running computations and versions, and the readers of each stream
    storage      rows, their texts and caches, and remote calls as values
    model        the parts that a user writes, without any service

A record has another type at each stage of its way:

    PushedRecord    an app pushes it                    pipeline
    IncomingRecord  checked, before its first commit    exchange.ingest
    InboxRecord     stored in an inbox                  storage.schema
    KeyedRecord     decoded, in a bundle                model.bundle
    Record          in a hook                           model.records
    EmittedRecord   written by a hook                   model.bundle
    PendingEffect   for a weak sink, before the commit  exchange.inline
    SinkRecord      in a sink                           model.sink

Source: T. Akidau and others, "MillWheel: Fault-Tolerant Stream Processing at Internet Scale", 2013.
"""

from rollforward.streams.model.computation import Computation
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.records import FOREVER, Record, Timer
from rollforward.streams.model.sources import Pulled, PullSource, PushSource
from rollforward.streams.pipeline import Pipeline, PushedRecord
from rollforward.streams.testing import StreamTest

__all__ = [
    "FOREVER",
    "Computation",
    "Context",
    "Pipeline",
    "PullSource",
    "Pulled",
    "PushSource",
    "PushedRecord",
    "Record",
    "StreamError",
    "StreamTest",
    "Timer",
]
