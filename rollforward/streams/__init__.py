"""Streams: computations over keyed records, with state and timers, exactly once.

    class HitsPerPath(Computation):
        inputs = {"requests": lambda request: request["path"]}
        outputs = ["hits"]

        def record(self, ctx, record): ...
        def timer(self, ctx, timer): ...

    WEBLOG = Pipeline("weblog", HitsPerPath)

Ready-made computations are in `operators`: `windows` (tumbling, sliding, session and count
windows) with their `aggregates`, `joins` (window, interval, as-of), `deduplicate`, `hot_keys`, and
`fused` (operator chaining). Readers of pull sources and sinks are in `connectors`. `model.limits`
configures backpressure, `model.codecs` stores values as bytes, and `model.errors` lists the errors.

A record changes its type on its way from a source through a computation to a sink:

    Type            Made by                     Lives in
    PushedRecord    the app                     the arguments of `Pipeline.push`
    InboundRecord   `exchange.ingest_attempt`  a source's commit: checked, the value as text
    InboxRecord     `exchange`                  a chunk in the inbox of an interval
    KeyedRecord     `storage.inbox`             a bundle: the value decoded
    Record          `execution.bundle_runner`   the call of a hook
    EmittedRecord   `Context.produce`           the effects of a bundle, until they are committed
    PendingEffect   `exchange.inline`           a call of a weak sink, before the commit
    SinkRecord      `workers.sink_worker`       the call of a sink

The rooms in layers, from top to bottom; a room imports only rooms below it:

    moving       a stopped pipeline as a file, and a pipeline that begins with one
    inspection   reads of states, status and dead letters, at any time
    topology     attaching, replacing and detaching computations while a pipeline runs
    watermarks   a consistent cut through all rows, and the watermarks it yields
    workers      the lease of an interval, and its bundles
    scaling      splits and merges of intervals by their load
    exchange     records on their way from sources and workers into inboxes
    execution    the run of one bundle of records
    connectors   readers of pull sources, and sinks
    operators    ready-made computations
    publications streams that other pipelines read
    graph        the running computations, their versions, and the streams between them
    storage      rows, their JSON and caches, and remote calls as values
    model        the vocabulary of a pipeline's author, without services

Source: T. Akidau and others, "MillWheel: Fault-Tolerant Stream Processing at Internet Scale", 2013.
"""

from rollforward.streams.model.computation import Computation
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import StreamError
from rollforward.streams.model.records import FOREVER, Record, Timer
from rollforward.streams.model.sources import Pulled, PullSource, PushSource
from rollforward.streams.pipeline import Pipeline
from rollforward.streams.pushes import PushedRecord
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
