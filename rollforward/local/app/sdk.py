"""An SDK of OpenTelemetry for the app's worker, which sends spans to the local platform.

The app's own SDK comes first: this one is set up after the app was loaded, if there is none yet.
Nothing happens without the packages `opentelemetry-sdk` and
`opentelemetry-exporter-otlp-proto-http`, or with OTEL_SDK_DISABLED=true. This module runs in the
app's workers and imports nothing of the platform.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from rollforward.loopback import is_loopback

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The variables by which every exporter finds its collector; the first one is read first.

The platform sets neither: an exporter of the app's own may speak gRPC, and the console does not.
"""

CONSOLE_URL = "DEVSERVER_URL"

# A person waits for the page; the default is five seconds.
_BATCHED_FOR_MS = 500
# Of one worker. A burst beyond it loses spans, and the SDK logs that once.
_QUEUED_SPANS = 8_192


def export_traces(env: Mapping[str, str] = os.environ) -> bool:
    """Send this process's spans to its collector; return whether that began."""
    is_disabled = env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    named, console = named_collector(env), env.get(CONSOLE_URL, "")
    if is_disabled or not (named or console):
        return False
    try:
        import requests
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return False
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return False
    session = requests.Session()
    # A proxy of the laptop does not know its own loopback interface.
    session.trust_env = not is_loopback(urlsplit(named or console).hostname or "")
    provider = TracerProvider(resource=Resource.create(_resource(env)))
    # The exporter itself reads a collector that is named, and completes its path.
    endpoint = None if named else f"{console}/api/v1/traces"
    exporter: Any = OTLPSpanExporter(endpoint=endpoint, session=session)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter, max_queue_size=_QUEUED_SPANS, schedule_delay_millis=_BATCHED_FOR_MS
        )
    )
    trace.set_tracer_provider(provider)
    return True


def named_collector(env: Mapping[str, str]) -> str:
    """Return the URL of the collector that the environment names; "": spans go to the console."""
    return next((env[name] for name in ENDPOINTS if env.get(name)), "")


def _resource(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the name of this process, unless the environment names it."""
    name = {} if env.get("OTEL_SERVICE_NAME") else {"service.name": "app"}
    return {**name, "process.pid": os.getpid()}
