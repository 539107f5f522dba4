"""Traces of OpenTelemetry, by its API alone: the SDK and the exporter are the app's.

    pip install 'rollforward[otel]' opentelemetry-sdk

Spans: a request (SERVER), a delivery of a task (CONSUMER), a transaction, a fold of a fork-join
queue, a remote call of Datastore or Cloud Tasks, and an operation of memcached (CLIENT).

The trace of the code that enqueues a task travels with the task: in a header, in a row of the
outbox, in a pack of a fork-join queue, and in a batch. So a delivery belongs to the trace of the
request that caused it, however long after. A fold takes items of many traces, and its span links to
each of them.

Without an SDK no span is made, and no trace is stored. The library never imports OpenTelemetry: an
app that has configured an SDK has imported it.
"""

from rollforward.tracing.calls import CallSpans
from rollforward.tracing.contexts import context_of
from rollforward.tracing.spans import Span, has_current_span, is_on, start_span
from rollforward.tracing.traceparent import (
    TRACE_HEADER,
    caused_by,
    current_traceparent,
    trace_headers,
    trace_id_of,
    traceparent_of,
)

__all__ = [
    "TRACE_HEADER",
    "CallSpans",
    "Span",
    "caused_by",
    "context_of",
    "current_traceparent",
    "has_current_span",
    "is_on",
    "start_span",
    "trace_headers",
    "trace_id_of",
    "traceparent_of",
]
