"""Spans in OTLP: what an exporter writes is read, within limits; anything else is refused."""

from __future__ import annotations

import pytest
from opentelemetry import trace

from rollforward.local.traces import otlp
from rollforward.local.traces.spans import MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS, MAX_TEXT_CHARS
from tests.rollforward.local.traces.spans import exported, provider

pytestmark = pytest.mark.fast

trace_service_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


def test_a_span_is_read_as_the_sdk_made_it() -> None:
    """With its cause, its links, its failure and the process that made it."""
    tracer = provider().get_tracer("test")
    with tracer.start_as_current_span("GET /", kind=trace.SpanKind.SERVER) as cause:
        linked = trace.Link(cause.get_span_context())
        work = tracer.start_span("fold", links=[linked], kind=trace.SpanKind.CONSUMER)
        work.set_attribute("messaging.destination.name", "projects/p/queues/default")
        work.set_attribute("messaging.message.id", "t7")
        work.set_attribute("numbers", [1, 2])
        work.record_exception(ValueError("no such page"))
        work.set_status(trace.Status(trace.StatusCode.ERROR, "ValueError"))
        work.end()

    spans, refused = otlp.read(exported(work, cause))  # type: ignore[arg-type]

    read, root = spans
    assert refused == 0
    assert (root.name, root.kind, root.parent_id, root.problem) == ("GET /", "server", "", None)
    assert (read.kind, read.problem, read.parent_id) == ("consumer", "ValueError", root.id.span_id)
    assert (read.links, read.task, read.process) == ((root.id,), "default/t7", "app 7")
    assert read.attributes["numbers"] == "[1, 2]"
    [event] = read.events
    assert event.name == "exception"
    assert event.attributes["exception.message"] == "no such page"
    assert 0 <= read.duration_ms <= root.duration_ms


def test_what_is_kept_of_a_span_is_bounded() -> None:
    """The exporter may be anybody's, with limits of its own or none."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    sent = request.resource_spans.add().scope_spans.add().spans.add()
    sent.trace_id, sent.span_id, sent.name = b"t" * 16, b"s" * 8, "n" * 10_000
    sent.start_time_unix_nano = sent.end_time_unix_nano = 10**18
    for number in range(500):
        sent.links.add(trace_id=b"t" * 16, span_id=b"s" * 8)
        sent.attributes.add(key=f"{number}").value.string_value = "x" * 10_000
        sent.events.add(name="e" * 10_000).attributes.add(key="a").value.bytes_value = (
            b"\xff" * 9_000
        )

    [span], _ = otlp.read(request.SerializeToString())

    assert len(span.links) == MAX_LINKS
    assert len(span.attributes) == MAX_ATTRIBUTES
    assert len(span.events) == MAX_EVENTS
    assert {len(str(value)) for value in span.attributes.values()} == {MAX_TEXT_CHARS}
    assert span.bytes < 400_000


def test_spans_that_are_none_are_counted_and_left_out() -> None:
    """Without ids, or ending before they begin; the others of the request are kept."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    good = {"start_time_unix_nano": 10, "end_time_unix_nano": 20}
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, **good)
    spans.add(trace_id=b"t" * 15, span_id=b"s" * 8, **good)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=b"p" * 1_000, **good)
    spans.add(trace_id=b"t" * 16, **good)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, start_time_unix_nano=20, end_time_unix_nano=10)
    spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, end_time_unix_nano=2**64 - 1)

    read, refused = otlp.read(request.SerializeToString())

    assert ([span.name for span in read], refused) == (["(no name)"], 5)
    answer = trace_service_pb2.ExportTraceServiceResponse.FromString(otlp.response_body(refused))
    assert answer.partial_success.rejected_spans == 5


def test_a_kind_that_is_not_known_and_a_parent_of_zeros_are_taken_for_none() -> None:
    """The kinds of OTLP are an open list, and some exporters write zeros for no parent."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for kind in (-7, 99):
        sent = spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, parent_span_id=bytes(8), kind=kind)
        sent.start_time_unix_nano = sent.end_time_unix_nano = 10

    read, refused = otlp.read(request.SerializeToString())

    assert refused == 0
    assert [(span.kind, span.parent_id) for span in read] == [("internal", "")] * 2


def test_a_request_of_too_many_spans_is_kept_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter is told how many were refused."""
    monkeypatch.setattr(otlp, "MAX_SPANS", 3)
    request = trace_service_pb2.ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(1, 6):
        span_id = number.to_bytes(8, "big")
        sent = spans.add(trace_id=b"t" * 16, span_id=span_id)
        sent.start_time_unix_nano = sent.end_time_unix_nano = 10

    read, refused = otlp.read(request.SerializeToString())

    assert (len(read), refused) == (3, 2)


@pytest.mark.parametrize("body", [b"\xff", b'{"resourceSpans": []}', b"\x0a\x05abc"])
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    """JSON among them: exporters of the local platform send protobuf."""
    with pytest.raises(otlp.BadTracesError):
        otlp.read(body)
