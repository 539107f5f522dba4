"""Contexts of OpenTelemetry for the spans that traceparents name."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def context_of(traceparent: str) -> Any:
    """Return a context whose current span is the one of a traceparent; "": none is."""
    from opentelemetry.context import Context

    trace = sys.modules["opentelemetry.trace"]
    remote = _span_context(traceparent)
    if remote is None:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def links_of(traceparents: Sequence[str]) -> list[Any]:
    """Return links to some spans; texts that are no traceparent are left out."""
    trace = sys.modules["opentelemetry.trace"]
    contexts = [_span_context(text) for text in dict.fromkeys(traceparents)]
    return [trace.Link(context) for context in contexts if context is not None]


def _span_context(traceparent: str) -> Any:
    parts = TRACEPARENT.fullmatch(traceparent)
    if parts is None:
        return None
    trace = sys.modules["opentelemetry.trace"]
    trace_id, span_id, flags = (int(part, 16) for part in parts.groups())
    return trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(flags))
