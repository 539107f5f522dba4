"""SDKs with a batch processor that a process turns on and off, and the number of their spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio


class Sdk(SpanProcessor):
    """Counts spans that have ended, before the exporter gets them."""

    def __init__(self, collector: str) -> None:
        self.spans = 0
        session = requests.Session()
        session.trust_env = False
        one_in_ten = ParentBasedTraceIdRatio(0.1)
        self._providers = {
            "all": TracerProvider(),
            "sampled": TracerProvider(sampler=one_in_ten),
            "sent": TracerProvider(),
        }
        for state, provider in self._providers.items():
            sent = OTLPSpanExporter(endpoint=collector, session=session)
            exporter = sent if state == "sent" else _Discarded()
            provider.add_span_processor(self)
            provider.add_span_processor(BatchSpanProcessor(exporter))

    def turn(self, state: str) -> None:
        """Record all traces from now on ("all"), one in ten ("sampled"), or make no span.

        "sent" records all, too, and sends them to the collector.
        """
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


class _Discarded(SpanExporter):
    """Keeps no span: what is measured with it is the SDK and the library."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS
