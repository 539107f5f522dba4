"""Traces of the app, as its SDK of OpenTelemetry sends them: what the console's pages show.

- spans: a span, and the limits of its kept parts.
- otlp: spans in the bytes of OTLP, the protocol of OpenTelemetry's exporters.
- store: the newest traces, in memory and within bounds.

Nothing is written to Datastore or to a file. A stop of the platform forgets all traces.
"""
