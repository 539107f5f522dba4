"""Spans: begun by the API of OpenTelemetry if an SDK is configured, and otherwise none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from rollforward.tracing.contexts import links_of

NAME = "rollforward"
# A span keeps no more of them by default (OTEL_SPAN_LINK_COUNT_LIMIT).
MAX_LINKS = 128

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]


class Span(Protocol):
    """The methods of a span that the library uses."""

    def set_attribute(self, key: str, value: Any) -> None:
        """Describe the work of the span by one more value."""
        ...

    def update_name(self, name: str) -> None:
        """Name the span by something that was not known when it began."""
        ...

    def fail(self, reason: str) -> None:
        """Mark the work of the span as failed; the first reason stays."""
        ...


class _NoSpan:
    """The span of a process without an SDK."""

    def set_attribute(self, key: str, value: Any) -> None:
        """Do nothing."""

    def update_name(self, name: str) -> None:
        """Do nothing."""

    def fail(self, reason: str) -> None:
        """Do nothing."""


class _ApiSpan:
    """A span of OpenTelemetry."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self._has_failed = False

    def set_attribute(self, key: str, value: Any) -> None:
        self._span.set_attribute(key, value)

    def update_name(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, reason: str) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        trace = sys.modules["opentelemetry.trace"]
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, reason[:500]))


_NO_SPAN = _NoSpan()


def tracer() -> Any:
    """Return the tracer of the configured SDK; None: there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    if _Tracer.provider is not provider:
        _Tracer.provider, _Tracer.tracer = provider, provider.get_tracer(NAME)
    return _Tracer.tracer


class _Tracer:
    """The tracer of this process, with the provider that made it."""

    provider: Any = None
    tracer: Any = None


def is_on() -> bool:
    """Return whether spans are made here."""
    return tracer() is not None


@contextmanager
def start_span(
    name: str,
    kind: Kind = "INTERNAL",
    *,
    attributes: Mapping[str, Any] | None = None,
    parent: Any = None,
    links: Sequence[str] = (),
) -> Iterator[Span]:
    """Run the code inside in a span; an exception ends it as failed, and is raised on.

    Internal work and calls are no traces of their own: outside of one they make no span.

    Args:
        parent: The context of its cause (`context_of`); None: the span that runs now.
        links: The traceparents of further causes, of which the first 128 count.
    """
    made_by = tracer()
    is_part = kind in ("INTERNAL", "CLIENT") and parent is None
    if made_by is None or (is_part and not has_current_span()):
        yield _NO_SPAN
        return
    trace = sys.modules["opentelemetry.trace"]
    with made_by.start_as_current_span(
        name,
        context=parent,
        kind=trace.SpanKind[kind],
        attributes=dict(attributes or {}),
        links=links_of(links[:MAX_LINKS]),
    ) as started:
        yield _ApiSpan(started)


def has_current_span() -> bool:
    """Return whether a span runs here, made by us or by another instrumentation."""
    if tracer() is None:
        return False
    trace = sys.modules["opentelemetry.trace"]
    return bool(trace.get_current_span().get_span_context().is_valid)
