"""Spans of remote calls of Datastore and Cloud Tasks, made by an interceptor of gRPC."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import grpc

from rollforward.tracing.spans import is_recorded, tracer


class CallSpans(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Makes a span for each call that belongs to a trace that is sampled.

    Calls outside of one make none: background work (a relay, a sweep, a group commit) serves many
    traces at once.
    """

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if not is_recorded():
            return continuation(details, request)
        trace = sys.modules["opentelemetry.trace"]
        service, _, method = details.method.removeprefix("/").partition("/")
        span = tracer().start_span(
            f"{service.rpartition('.')[2]}/{method}",
            kind=trace.SpanKind.CLIENT,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
        )
        try:
            call = continuation(details, request)
        except BaseException:
            span.end()
            raise
        call.add_done_callback(lambda done: _end(span, done))
        return call


def _end(span: Any, call: Any) -> None:
    """End the span of a call with the code of its answer."""
    trace = sys.modules["opentelemetry.trace"]
    code = call.code()
    span.set_attribute("rpc.grpc.status_code", code.value[0])
    if code is not grpc.StatusCode.OK:
        span.set_status(trace.Status(trace.StatusCode.ERROR, code.name))
    span.end()
