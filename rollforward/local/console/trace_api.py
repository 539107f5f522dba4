"""Traces as JSON, and the collector that takes them from an exporter.

POST /api/v1/traces                   OTLP, as an exporter of OpenTelemetry sends it by HTTP
GET  /api/v1/traces?q=&run=&failed=&slow=&before=&limit=   the newest traces
GET  /api/v1/traces/<id>              one trace with its spans

The console's guards admit programs of this machine alone.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web

from rollforward.local.app.server import READY_PATH
from rollforward.local.console.frame import whole
from rollforward.local.console.pages.traces import filter_of
from rollforward.local.traces import otlp
from rollforward.local.traces.spans import Span
from rollforward.local.traces.store import Trace, TraceStore

OTLP_TYPE = "application/x-protobuf"
# Unpacked: an exporter sends 512 spans at once by default.
MAX_BODY_BYTES = 8 * 1024 * 1024
_MAX_TRACES = 1_000


class TraceApi:
    """The handlers of the JSON routes of traces, and of the collector."""

    def __init__(self, store: TraceStore) -> None:
        """Serve the traces of this store."""
        self._store = store

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/api/v1/traces", self.collect),
            web.get("/api/v1/traces", self.list_traces),
            web.get("/api/v1/traces/{id:[0-9a-f]{32}}", self.show_trace),
        ]

    async def collect(self, request: web.Request) -> web.Response:
        """Keep the spans of an exporter."""
        if request.content_type != OTLP_TYPE:
            return _error(415, f"send OTLP as {OTLP_TYPE}: OTEL_EXPORTER_OTLP_PROTOCOL")
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return _error(413, f"a request may have {MAX_BODY_BYTES} bytes, unpacked")
        try:
            spans, refused = await asyncio.to_thread(otlp.read, bytes(body))
        except otlp.BadTracesError as error:
            return _error(400, str(error))
        except otlp.NoProtocolError as error:
            return _error(501, str(error))
        self._store.add(span for span in spans if not _is_probe(span))
        return web.Response(body=otlp.response_body(refused), content_type=OTLP_TYPE)

    async def list_traces(self, request: web.Request) -> web.Response:
        """Answer traces, the newest first; `next` continues the list."""
        limit = whole(request.query.get("limit", "100"))
        if not 1 <= limit <= _MAX_TRACES:
            return _error(400, f"limit must be a number from 1 to {_MAX_TRACES}")
        try:
            traces = self._store.newest(filter_of(request), limit)
        except web.HTTPBadRequest as error:
            return _error(400, error.text or "")
        next_number = traces[-1].number if len(traces) == limit else None
        return web.json_response({"traces": [*map(_trace_json, traces)], "next": next_number})

    async def show_trace(self, request: web.Request) -> web.Response:
        """Answer one trace with its spans, the first to begin first."""
        trace = self._store.get(request.match_info["id"])
        if trace is None:
            return _error(404, "This trace is not kept.")
        spans = sorted(trace.spans.values(), key=lambda span: span.started_ns)
        return web.json_response(_trace_json(trace) | {"spans": [*map(_span_json, spans)]})


def _is_probe(span: Span) -> bool:
    """Return whether a span is of the platform's own look at the app, every two seconds."""
    return not span.parent_id and span.attributes.get("url.path") == READY_PATH


def _trace_json(trace: Trace) -> dict[str, Any]:
    return {
        "id": trace.trace_id,
        "number": trace.number,
        "name": trace.root.name,
        "started": trace.started_ns / 1e9,
        "duration_ms": trace.duration_ms,
        "span_count": len(trace.spans),
        "failures": trace.failures,
        "dropped": trace.dropped,
    }


def _span_json(span: Span) -> dict[str, Any]:
    return {
        "id": span.id.span_id,
        "parent": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "started": span.started_ns / 1e9,
        "duration_ms": span.duration_ms,
        "problem": span.problem,
        "task": span.task,
        "run": span.run,
        "process": span.process,
        "attributes": dict(span.attributes),
        "links": [asdict(link) for link in span.links],
    }


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
