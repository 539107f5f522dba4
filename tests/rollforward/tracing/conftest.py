"""An SDK of OpenTelemetry that keeps the spans of a test in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The exporter of the process's SDK, which it has for this test alone."""
    provider, kept = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    # `set_tracer_provider` works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield kept
    provider.shutdown()
