"""Spans: begun by the API of OpenTelemetry if an SDK is configured, and otherwise none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from rollforward.tracing.contexts import links_of

NAME = "rollforward"
# A span keeps no more of them by default (OTEL_SPAN_LINK_COUNT_LIMIT).
MAX_LINKS = 128

Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]


class Span(Protocol):
    """The methods of a span that the library uses."""

    @property
    def is_recorded(self) -> bool:
        """Whether attributes of this span are kept."""
        ...

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

    is_recorded = False

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


_NO_SPAN = _NoSpan()


class _ApiSpan:
    """A span of OpenTelemetry."""

    is_recorded = True

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
        self._shown: Span = _ApiSpan(span) if span.is_recording() else _NO_SPAN
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
            with suppress(Exception):  # Of its own `__str__`: the error is raised on.
                self._span.record_exception(error)
                self._shown.fail(f"{type(error).__name__}: {error}")
            self._shown.fail(type(error).__name__)
        self._span.end()


def tracer() -> Any:
    """Return the tracer of the configured SDK; None: there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if not hasattr(trace, "get_tracer_provider"):  # Another thread may be in its import.
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
    details: Callable[[], Mapping[str, Any]] | None = None,
) -> AbstractContextManager[Span]:
    """Run the code inside in a span; an exception ends it as failed, and is raised on.

    Internal work and calls are no traces of their own: outside of one they make no span, and none
    within one that is not sampled, at the cost of a look.

    Args:
        parent: The context of its cause (`context_of`); None: the span that runs now.
        links: The traceparents of further causes, of which the first 128 count.
        details: Further attributes, which are asked for only if the span is recorded. A sampler
            does not see them.
    """
    # In this order: outside of a trace, and in most deliveries, the first look is the only one.
    if parent is None and kind in ("INTERNAL", "CLIENT") and not is_recorded():
        return _NO_SPAN
    made_by = tracer()
    if made_by is None:
        return _NO_SPAN
    span = made_by.start_span(
        name,
        context=parent,
        kind=sys.modules["opentelemetry.trace"].SpanKind[kind],
        attributes=attributes,
        links=links_of(links[:MAX_LINKS]) if links else None,
    )
    if details is not None and span.is_recording():
        span.set_attributes(details())
    return _Block(span)


@contextmanager
def leaf_span(name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Run a call that has no spans inside; its span is made when it has ended.

    That takes less than a block of `start_span`, which shows its span to the code inside.
    """
    if not is_recorded():
        yield
        return
    call = StartedCall(name)
    try:
        yield
    finally:
        call.end(attributes)


class StartedCall:
    """A call of the span that runs here, kept as two numbers until it ends."""

    __slots__ = ("_began_ns", "_context", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._context = sys.modules["opentelemetry.context"].get_current()
        self._began_ns = time.time_ns()

    def end(self, attributes: Mapping[str, Any], error: str = "") -> None:
        """Make the span of the call.

        Args:
            error: The reason why it failed; "": it did not.
        """
        ended_ns, made_by = time.time_ns(), tracer()
        if made_by is None:  # The SDK went away meanwhile, as in a test.
            return
        trace = sys.modules["opentelemetry.trace"]
        span = made_by.start_span(
            self._name,
            context=self._context,
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            start_time=self._began_ns,
        )
        if error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, error))
        span.end(ended_ns)


def is_recorded() -> bool:
    """Return whether a span runs here that is sampled, or recorded in this process."""
    return _current().is_recorded


def has_current_span() -> bool:
    """Return whether a span runs here, made by us or by another instrumentation."""
    return bool(_current().traceparent) and tracer() is not None


def traceparent_here(*, if_sampled: bool) -> str:
    """Return the traceparent of the span that runs here; "": none does.

    Args:
        if_sampled: Return "" for a span that is not sampled.
    """
    current = _current()
    return current.traceparent if current.is_sampled or not if_sampled else ""


class _Current(NamedTuple):
    """The span that runs here, as its context was read once.

    Attributes:
        context: A context of OpenTelemetry, which does not change. It is kept so that no other one
            gets its identity.
        span: The one of the context; it may end before the context does.
        traceparent: The span as W3C writes it; "": none runs.
    """

    context: Any
    span: Any = None
    traceparent: str = ""
    is_sampled: bool = False

    @property
    def is_recorded(self) -> bool:
        return self.is_sampled or (self.span is not None and bool(self.span.is_recording()))


class _Last(threading.local):
    """The context in which this thread looked last: most looks are within the same one."""

    current = _Current(None)


_last = _Last()


def _current() -> _Current:
    if not hasattr(sys.modules.get("opentelemetry.trace"), "get_current_span"):
        return _NOTHING
    context = sys.modules["opentelemetry.context"].get_current()
    cached = _last.current
    if cached.context is not context:
        cached = _last.current = _read(context)
    return cached


def _read(context: Any) -> _Current:
    span = sys.modules["opentelemetry.trace"].get_current_span(context)
    names = span.get_span_context()
    if not names.is_valid:
        return _Current(context, span)
    trace_id, span_id, flags = names.trace_id, names.span_id, names.trace_flags
    text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    return _Current(context, span, text, bool(flags & 1))  # Sampled.


_NOTHING = _Current(None)
