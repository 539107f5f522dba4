"""SDKs with a batch processor that a process turns on and off, and the number of their spans.

off      no SDK
sampled  one trace in ten is recorded
all      all traces are recorded
bare     the library makes no span; the SDK makes as many at the end of a request
"""

from __future__ import annotations

from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

OFF, BARE = "off", "bare"
STATES = (OFF, "sampled", "all", BARE)
# Only `flush` sends spans, during the state that made them.
NEVER_MS, QUEUED, BATCH = 10**9, 2**20, 2**19


class Sdk(SpanProcessor):
    """Counts ended spans, which an exporter sends to a collector."""

    def __init__(self, collector: str) -> None:
        self.spans = self.requests = self.spans_of_a_request = 0
        self._session = requests.Session()
        self._session.trust_env = False
        self._state = OFF
        self._providers = {
            "sampled": TracerProvider(sampler=ParentBasedTraceIdRatio(0.1)),
            "all": TracerProvider(),
            BARE: TracerProvider(),
        }
        for provider in self._providers.values():
            exporter = OTLPSpanExporter(endpoint=collector, session=self._session)
            provider.add_span_processor(self)
            provider.add_span_processor(
                BatchSpanProcessor(
                    exporter,
                    max_queue_size=QUEUED,
                    schedule_delay_millis=NEVER_MS,
                    max_export_batch_size=BATCH,
                )
            )
        self._bare = self._providers[BARE].get_tracer("bare")

    def turn(self, state: str) -> None:
        """Switch to a state."""
        api: Any = trace
        self._state = state
        # `set_tracer_provider` works once in a process.
        api._TRACER_PROVIDER = None if state == BARE else self._providers.get(state)

    def end_request(self) -> None:
        """Make a request's spans if the library makes none; otherwise update their number."""
        if self._state == "all":
            self.requests += 1
            self.spans_of_a_request = round(self.spans / self.requests)
        elif self._state == BARE:
            self._make_spans(self.spans_of_a_request)

    def flush(self, state: str) -> None:
        """Send the pending spans of a state."""
        if state != OFF:
            self._providers[state].force_flush()

    def on_end(self, span: ReadableSpan) -> None:
        """Count a span of the library."""
        if self._state == "all":
            self.spans += 1

    def _make_spans(self, count: int) -> None:
        if count == 0:
            return
        with self._bare.start_as_current_span("request", kind=trace.SpanKind.SERVER):
            for _ in range(count - 1):
                self._bare.start_span(
                    "call", kind=trace.SpanKind.CLIENT, attributes={"rpc.system": "grpc"}
                ).end()
