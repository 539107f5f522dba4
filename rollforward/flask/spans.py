"""Spans of requests and of deliveries of tasks, around the WSGI app.

A delivery continues the trace of the code that enqueued its task. A request continues the trace
that its headers name, by the propagators that the app has configured. An instrumentation of Flask
by others makes the spans of requests itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from flask import Flask, request

from rollforward.tracing import (
    TRACE_HEADER,
    Span,
    context_of,
    current_traceparent,
    has_current_span,
    is_on,
    start_span,
    traceparent_of,
)

_SPAN = "rollforward.span"
_TASKS = "/tasks/"
# Of the headers of Cloud Tasks, in its two spellings.
_DELIVERY = {
    "messaging.destination.name": ("HTTP_X_CLOUDTASKS_QUEUENAME", "HTTP_X_APPENGINE_QUEUENAME"),
    "messaging.message.id": ("HTTP_X_CLOUDTASKS_TASKNAME", "HTTP_X_APPENGINE_TASKNAME"),
    "rollforward.retry": ("HTTP_X_CLOUDTASKS_TASKRETRYCOUNT", "HTTP_X_APPENGINE_TASKRETRYCOUNT"),
}


def in_span(wsgi_app: Any) -> Callable[..., Iterable[bytes]]:
    """Answer each request in a span, if an SDK is configured."""

    def respond(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not is_on():
            response: Iterable[bytes] = wsgi_app(environ, start_response)
            return response
        with _span(environ) as span:
            if not span.is_recorded:
                unseen: Iterable[bytes] = wsgi_app(environ, start_response)
                return unseen
            environ[_SPAN] = span

            def started(status: str, *args: Any) -> Any:
                span.set_attribute("http.response.status_code", int(status[:3]))
                if status.startswith("5"):
                    span.fail(status)  # Unless the endpoint has said why.
                return start_response(status, *args)

            answered: Iterable[bytes] = wsgi_app(environ, started)
            return answered

    return respond


def register(app: Flask) -> None:
    """Name the span of each request by its route, once that is known."""

    @app.before_request
    def name_span() -> None:
        span = request.environ.get(_SPAN)
        if span is not None and request.url_rule is not None and not _is_task(request.environ):
            span.update_name(f"{request.method} {request.url_rule.rule}")
            span.set_attribute("http.route", request.url_rule.rule)


def describe(**attributes: str) -> None:
    """Add to the span of the current request, if there is one: `run`, or `dead_task`."""
    span = request.environ.get(_SPAN)
    if span is not None:
        for name, value in attributes.items():
            if value:
                span.set_attribute(f"rollforward.{name}", value)


def fail(reason: str) -> None:
    """Mark the span of the current request as failed, if there is one."""
    span = request.environ.get(_SPAN)
    if span is not None:
        span.fail(reason)


def _span(environ: Mapping[str, Any]) -> AbstractContextManager[Span]:
    method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "")
    if _is_task(environ):
        carried = traceparent_of(_headers(environ))
        around = [current_traceparent()]
        return start_span(
            f"process {path[:200]}",
            "CONSUMER",
            attributes={"messaging.system": "cloud_tasks"},
            parent=context_of(carried) if carried else None,
            links=around if carried else (),
            details=lambda: _delivery(environ),
        )
    is_made = has_current_span()
    return start_span(
        method,
        "INTERNAL" if is_made else "SERVER",
        attributes={"http.request.method": method, "url.path": path[:500]},
        parent=None if is_made else _extract(environ),
    )


def _is_task(environ: Mapping[str, Any]) -> bool:
    return str(environ.get("PATH_INFO", "")).startswith(_TASKS)


def _delivery(environ: Mapping[str, Any]) -> dict[str, str]:
    """Return what the queue says of a delivery, as attributes."""
    found = {
        name: next((environ[header] for header in headers if environ.get(header)), "")
        for name, headers in _DELIVERY.items()
    }
    return {name: str(value)[-200:] for name, value in found.items() if value}


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    name = "HTTP_" + TRACE_HEADER.upper().replace("-", "_")
    return {TRACE_HEADER: str(environ.get(name, ""))}


def _extract(environ: Mapping[str, Any]) -> Any:
    """Return the context that the headers of a request name."""
    from opentelemetry import propagate

    return propagate.extract(environ, getter=_ENVIRON)  # type: ignore[arg-type]


class _EnvironHeaders:
    """Reads the headers of a WSGI request by their names, as a propagator's Getter."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get("HTTP_" + key.upper().replace("-", "_"))
        return None if value is None else [str(value)]

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        names = (name[5:] for name in carrier if name.startswith("HTTP_"))
        return [name.replace("_", "-").lower() for name in names]


_ENVIRON = _EnvironHeaders()
