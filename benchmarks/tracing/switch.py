"""An SDK with a batch exporter that a process turns on and off, and its number of spans."""

from __future__ import annotations

from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio


class Sdk(SpanProcessor):
    """Counts spans that have ended, before the exporter gets them."""

    def __init__(self, collector: str) -> None:
        self.spans = 0
        session = requests.Session()
        session.trust_env = False
        exporter = OTLPSpanExporter(endpoint=collector, session=session)
        one_in_ten = ParentBasedTraceIdRatio(0.1)
        self._providers = {"on": TracerProvider(), "sampled": TracerProvider(sampler=one_in_ten)}
        for provider in self._providers.values():
            provider.add_span_processor(self)
            provider.add_span_processor(BatchSpanProcessor(exporter))

    def turn(self, state: str) -> None:
        """Record all traces from now on ("on"), one in ten ("sampled"), or make no span."""
        api: Any = trace
        # `set_tracer_provider` works once in a process.
        api._TRACER_PROVIDER = self._providers.get(state)

    def flush(self) -> None:
        """Send the spans that wait: they cost the round that made them."""
        for provider in self._providers.values():
            provider.force_flush()

    def on_end(self, span: ReadableSpan) -> None:
        """Count a span."""
        self.spans += 1
