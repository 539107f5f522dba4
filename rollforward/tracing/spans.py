"""Spans: begun by the API of OpenTelemetry if an SDK is configured, and otherwise none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
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
        """Mark the work of the span as failed. The first reason stays."""
        ...


class _NoSpan(AbstractContextManager["Span"]):
    """The span of a process without an SDK, and the block of that span."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

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


class _Block(AbstractContextManager[Span]):
    """A block of code in a span, by fewer calls than `start_as_current_span`."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self._shown = _ApiSpan(span)
        self._token: Any = None

    def __enter__(self) -> Span:
        trace = sys.modules["opentelemetry.trace"]
        context = trace.set_span_in_context(self._span)
        self._token = sys.modules["opentelemetry.context"].attach(context)
        return self._shown

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        sys.modules["opentelemetry.context"].detach(self._token)
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._shown.fail(f"{type(error).__name__}: {error}")
        self._span.end()


_NO_SPAN = _NoSpan()


def tracer() -> Any:
    """Return the tracer of the configured SDK; None: there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    known_provider, known_tracer = _Known.tracer
    if provider is known_provider:
        return known_tracer
    is_none = isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
    new_tracer = None if is_none else provider.get_tracer(NAME)
    _Known.tracer = provider, new_tracer
    return new_tracer


class _Known:
    """The last provider of this process, with the tracer of that provider."""

    tracer: tuple[Any, Any] = None, None


def is_on() -> bool:
    """Return whether spans are made here."""
    return tracer() is not None


def start_span(
    name: str,
    kind: Kind = "INTERNAL",
    *,
    attributes: Mapping[str, Any] | None = None,
    parent: Any = None,
    links: Sequence[str] = (),
) -> AbstractContextManager[Span]:
    """Run the code inside in a span; an exception ends it as failed, and is raised on.

    Internal work and calls are no traces of their own: outside of one they make no span, and none
    within one that is not sampled, at the cost of a look.

    Args:
        parent: The context of its cause (`context_of`); None: the span that runs now.
        links: The traceparents of further causes, of which the first 128 count.
    """
    made_by = tracer()
    is_part = kind in ("INTERNAL", "CLIENT") and parent is None
    if made_by is None or (is_part and not is_recorded()):
        return _NO_SPAN
    trace = sys.modules["opentelemetry.trace"]
    return _Block(
        made_by.start_span(
            name,
            context=parent,
            kind=trace.SpanKind[kind],
            attributes=attributes,
            links=links_of(links[:MAX_LINKS]) if links else None,
        )
    )


def is_recorded() -> bool:
    """Return whether a span runs here that is sampled, or recorded in this process."""
    if tracer() is None:
        return False
    span = sys.modules["opentelemetry.trace"].get_current_span()
    context = span.get_span_context()
    return bool(context.is_valid and (context.trace_flags.sampled or span.is_recording()))


def has_current_span() -> bool:
    """Return whether a span runs here, made by us or by another instrumentation."""
    if tracer() is None:
        return False
    trace = sys.modules["opentelemetry.trace"]
    return bool(trace.get_current_span().get_span_context().is_valid)
