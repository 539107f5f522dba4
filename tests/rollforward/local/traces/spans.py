"""Spans for tests: made by hand, or as an SDK makes them and an exporter writes them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from rollforward.local.traces.spans import Span, SpanId

MS = 1_000_000
BEGAN_NS = 1_700_000_000 * 10**9


def trace_id(number: int) -> str:
    return f"{number:032x}"


def span_id(number: int) -> str:
    return f"{number:016x}"


def span(number: int, parent: int = 0, *, trace: int = 1, **fields: Any) -> Span:
    """Return a span, 10 ms long and beginning at its number in ms, unless the fields differ."""
    started_ns = BEGAN_NS + fields.pop("at_ms", number) * MS
    ended_ns = started_ns + fields.pop("ms", 10) * MS
    return Span(
        SpanId(trace_id(trace), span_id(number)),
        span_id(parent) if parent else "",
        fields.pop("name", f"span {number}"),
        fields.pop("kind", "internal"),
        started_ns,
        ended_ns,
        **fields,
    )


def provider() -> TracerProvider:
    return TracerProvider(resource=Resource({"service.name": "app", "process.pid": 7}))


def exported(*spans: ReadableSpan) -> bytes:
    """Return the body that the exporter sends."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    body: bytes = encode_spans(spans).SerializeToString()
    return body
