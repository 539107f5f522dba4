"""Spans in the bytes of OTLP, as OpenTelemetry's exporters send them by HTTP.

Source: opentelemetry-proto, `collector/trace/v1/trace_service.proto`; the messages are from the
package `opentelemetry-proto`, which each exporter of OTLP brings along.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rollforward.local.traces.spans import (
    MAX_ATTRIBUTES,
    MAX_EVENTS,
    MAX_LINKS,
    MAX_NAME_CHARS,
    MAX_STACK_CHARS,
    MAX_TEXT_CHARS,
    Event,
    Span,
    SpanId,
    Value,
)

_KINDS = ("internal", "internal", "server", "client", "producer", "consumer")
_ERROR = 2  # Of the status codes.
_REFUSED = "a span needs its ids, and ends after its begin; and a request may have too many spans"
# Until the year 2262; beyond it `datetime` and pages fail.
_MAX_NS = 2**63
_MAX_KEY_CHARS = 100
_NO_PARENT = bytes(8)
# An exporter sends 512 at once by default. More than these are refused, and it is told how many.
MAX_SPANS = 10_000


class BadTracesError(ValueError):
    """The bytes are no spans."""


class NoProtocolError(RuntimeError):
    """The messages of OTLP are not installed; the text says what to install."""


def is_installed() -> bool:
    """Return whether spans can be read here."""
    try:
        _messages()
    except NoProtocolError:
        return False
    return True


def read(body: bytes) -> tuple[list[Span], int]:
    """Return the spans of a request, and the number of refused ones.

    Raises:
        BadTracesError: the body is no request of OTLP.
        NoProtocolError: the messages are not installed.
    """
    messages = _messages()
    from google.protobuf.message import DecodeError

    try:
        request = messages.ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise BadTracesError(f"the body is no ExportTraceServiceRequest: {error}") from error
    spans, refused = list[Span](), 0
    for process, sent in _sent(request):
        if _is_complete(sent) and len(spans) < MAX_SPANS:
            spans.append(_span(sent, process))
        else:
            refused += 1
    return spans, refused


def response_body(refused: int) -> bytes:
    """Return the body that tells an exporter how many spans were refused."""
    response = _messages().ExportTraceServiceResponse()
    if refused:
        response.partial_success.rejected_spans = refused
        response.partial_success.error_message = _REFUSED
    body: bytes = response.SerializeToString()
    return body


def _messages() -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise NoProtocolError(
            "Install opentelemetry-exporter-otlp-proto-http: it brings the messages of OTLP."
        ) from error
    return trace_service_pb2


def _sent(request: Any) -> Iterator[tuple[str, Any]]:
    """Yield the spans of a request, with the name of their process."""
    for by_resource in request.resource_spans:
        resource = _attributes(by_resource.resource.attributes)
        service, pid = resource.get("service.name", ""), resource.get("process.pid", "")
        process = f"{service} {pid}".strip()[:MAX_NAME_CHARS]
        for by_scope in by_resource.scope_spans:
            for sent in by_scope.spans:
                yield process, sent


def _is_complete(sent: Any) -> bool:
    return (
        len(sent.trace_id) == 16
        and len(sent.span_id) == 8
        and len(sent.parent_span_id) in (0, 8)
        and 0 < sent.start_time_unix_nano <= sent.end_time_unix_nano < _MAX_NS
    )


def _span(sent: Any, process: str) -> Span:
    is_failed = sent.status.code == _ERROR
    links = [link for link in sent.links if len(link.trace_id) == 16 and len(link.span_id) == 8]
    return Span(
        id=SpanId(sent.trace_id.hex(), sent.span_id.hex()),
        parent_id=sent.parent_span_id.hex() if sent.parent_span_id != _NO_PARENT else "",
        name=sent.name[:MAX_NAME_CHARS] or "(no name)",
        kind=_KINDS[sent.kind] if 0 <= sent.kind < len(_KINDS) else "internal",
        started_ns=sent.start_time_unix_nano,
        ended_ns=sent.end_time_unix_nano,
        problem=sent.status.message[:MAX_TEXT_CHARS] if is_failed else None,
        attributes=_attributes(sent.attributes),
        links=tuple(SpanId(link.trace_id.hex(), link.span_id.hex()) for link in links[:MAX_LINKS]),
        events=tuple(
            Event(
                min(event.time_unix_nano, _MAX_NS),
                event.name[:MAX_NAME_CHARS],
                _attributes(event.attributes, MAX_STACK_CHARS),
            )
            for event in sent.events[:MAX_EVENTS]
        ),
        process=process,
    )


def _attributes(pairs: Iterable[Any], max_chars: int = MAX_TEXT_CHARS) -> dict[str, Value]:
    return {
        pair.key[:_MAX_KEY_CHARS]: _value(pair.value, max_chars)
        for pair in list(pairs)[:MAX_ATTRIBUTES]
    }


def _value(value: Any, max_chars: int) -> Value:
    kind = value.WhichOneof("value")
    if kind in ("bool_value", "int_value", "double_value"):
        number: Value = getattr(value, kind)
        return number
    if kind == "string_value":
        return str(value.string_value[:max_chars])
    if kind == "array_value":
        items = [_value(item, max_chars) for item in value.array_value.values[:MAX_ATTRIBUTES]]
        return json.dumps(items, ensure_ascii=False)[:max_chars]
    # Maps and bytes are rare: shown as the protocol's own text.
    return str(value)[:max_chars]
