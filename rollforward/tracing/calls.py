"""Spans of remote calls of Datastore and Cloud Tasks, made by an interceptor of gRPC."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grpc

from rollforward.tracing.spans import StartedCall, is_recorded


class CallSpans(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Makes a span for each call that belongs to a trace that is sampled, when the call has ended.

    Calls outside of one make none: background work (a relay, a sweep, a group commit) serves many
    traces at once.
    """

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if not is_recorded():
            return continuation(details, request)
        name, attributes = _describe(details.method)
        started = StartedCall(name)
        try:
            call = continuation(details, request)
        except BaseException as error:
            started.end(attributes, type(error).__name__)
            raise
        call.add_done_callback(lambda done: _end(started, attributes, done))
        return call


@functools.lru_cache(maxsize=256)
def _describe(method: str) -> tuple[str, dict[str, str]]:
    """Return the name of a call's span, and the attributes that do not depend on its answer."""
    service, _, rpc = method.removeprefix("/").partition("/")
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
    return f"{service.rpartition('.')[2]}/{rpc}", attributes


def _end(started: StartedCall, attributes: dict[str, str], call: Any) -> None:
    """End a call with the code of its answer."""
    code = call.code()
    error = "" if code is grpc.StatusCode.OK else code.name
    started.end({**attributes, "rpc.grpc.status_code": code.value[0]}, error)
