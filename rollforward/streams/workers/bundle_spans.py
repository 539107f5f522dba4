"""Spans of bundles: each continues the trace of its records, or links to the traces of many."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rollforward.streams.storage.inbox import Bundle
from rollforward.tracing import Span, context_of, current_traceparent, is_on, start_span


def bundle_span(
    pipeline: str, computation: str, bundle: Bundle
) -> AbstractContextManager[Span | None]:
    """Process a bundle in a span.

    Records of one trace: the span continues it, and links to the worker's delivery. Records of many
    traces, or of one and of none: the span belongs to the worker's delivery, and links to each of
    them. The records that the bundle emits follow from this span.
    """
    if not is_on():
        return nullcontext()
    traces = [trace for trace in bundle.traceparents if trace]
    is_of_one = len(traces) == 1 and bundle.traceparents == traces
    return start_span(
        f"bundle {pipeline}/{computation}",
        "CONSUMER" if traces else "INTERNAL",
        attributes={"rollforward.records": len(bundle.inputs)},
        parent=context_of(traces[0]) if is_of_one else None,
        links=[current_traceparent()] if is_of_one else traces,
    )
