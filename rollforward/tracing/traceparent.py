"""W3C's traceparent: the text by which a trace travels with a task, a row or a pack.

Source: W3C, "Trace Context", level 1 (2021). Sampling travels in it; tracestate does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rollforward.tracing.contexts import TRACEPARENT, context_of
from rollforward.tracing.spans import is_on, traceparent_here

# Front ends write headers called `traceparent` themselves, in requests that carry tasks, too.
TRACE_HEADER = "X-Rollforward-Traceparent"


def current_traceparent(*, if_sampled: bool = False) -> str:
    """Return the traceparent of the span that runs here; "": none does.

    Args:
        if_sampled: Return "" for a span that is not sampled.
    """
    return traceparent_here(if_sampled=if_sampled) if is_on() else ""


def trace_headers(traceparent: str | None = None) -> dict[str, str]:
    """Return the headers that carry a trace with a task: of the span that runs here by default."""
    carried = current_traceparent() if traceparent is None else traceparent
    return {TRACE_HEADER: carried} if carried else {}


def traceparent_of(request_headers: Mapping[str, str]) -> str:
    """Return the traceparent of the code that enqueued a delivered task; "": it had none."""
    carried = request_headers.get(TRACE_HEADER, "")
    return carried if is_on() and TRACEPARENT.fullmatch(carried) else ""


def trace_id_of(traceparent: str) -> str:
    """Return the id of the trace that a text names; "": it names none.

    >>> trace_id_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    '0af7651916cd43dd8448eb211c80319c'
    """
    parts = TRACEPARENT.fullmatch(traceparent)
    return parts[1] if parts else ""


@contextmanager
def caused_by(traceparent: str) -> Iterator[None]:
    """Run the code inside as a part of a trace that another thread may have begun."""
    if not traceparent or not is_on() or traceparent == current_traceparent():
        yield
        return
    from opentelemetry import context

    token = context.attach(context_of(traceparent))
    try:
        yield
    finally:
        context.detach(token)
