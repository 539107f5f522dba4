"""An SDK with a batch exporter that a process turns on and off, and its number of spans."""

from __future__ import annotations

from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


class Sdk(SpanProcessor):
    """Counts spans that have ended, before the exporter gets them."""

    def __init__(self, collector: str) -> None:
        self.spans = 0
        session = requests.Session()
        session.trust_env = False
        self._provider = TracerProvider()
        self._provider.add_span_processor(self)
        exporter = OTLPSpanExporter(endpoint=collector, session=session)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def turn(self, *, on: bool) -> None:
        """Make spans from now on, or none."""
        api: Any = trace
        # `set_tracer_provider` works once in a process.
        api._TRACER_PROVIDER = self._provider if on else None

    def on_end(self, span: ReadableSpan) -> None:
        """Count a span."""
        self.spans += 1
