"""W3C's traceparent: the text by which a trace travels with a task, a row or a pack.

Source: W3C, "Trace Context", level 1 (2021). Sampling travels in it; tracestate does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rollforward.tracing.spans import has_current_span, is_on

# Front ends write headers called `traceparent` themselves, in requests that carry tasks, too.
TRACE_HEADER = "X-Rollforward-Traceparent"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def current_traceparent() -> str:
    """Return the traceparent of the span that runs here; "": none does."""
    if not has_current_span():
        return ""
    context = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def trace_headers(traceparent: str | None = None) -> dict[str, str]:
    """Return the headers that carry a trace with a task: of the span that runs here by default."""
    carried = current_traceparent() if traceparent is None else traceparent
    return {TRACE_HEADER: carried} if carried else {}


def traceparent_of(request_headers: Mapping[str, str]) -> str:
    """Return the traceparent of the code that enqueued a delivered task; "": it had none."""
    carried = request_headers.get(TRACE_HEADER, "")
    return carried if is_on() and _TRACEPARENT.fullmatch(carried) else ""


@contextmanager
def caused_by(traceparent: str) -> Iterator[None]:
    """Run the code inside as a part of a trace that another thread has begun."""
    if not traceparent or not is_on():
        yield
        return
    from opentelemetry import context

    token = context.attach(context_of(traceparent))
    try:
        yield
    finally:
        context.detach(token)


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
    parts = _TRACEPARENT.fullmatch(traceparent)
    if parts is None:
        return None
    trace = sys.modules["opentelemetry.trace"]
    trace_id, span_id, flags = (int(part, 16) for part in parts.groups())
    return trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(flags))
