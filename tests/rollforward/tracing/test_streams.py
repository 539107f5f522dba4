"""Traces of streams: from a push through inboxes, strong and weak stages, and a sink."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from rollforward.streams.entities import StreamChunk
from rollforward.streams.exchange.forwarding import forwarded
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import Target
from rollforward.streams.storage.inbox import Bundle
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import Head, InboxRecord, trace_of
from rollforward.tracing import current_traceparent, start_span
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import is_drained, stream_world
from tests.rollforward.streams.scenarios.weak_sources import COLOURS, colours
from tests.rollforward.tracing.test_traces import causes, named, trace_ids

pytestmark = pytest.mark.fast

TRACES = [f"00-{digit * 32}-{digit * 16}-01" for digit in "abc"]


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services, COLOURS)


def push(world: World, *ids: str) -> None:
    """Push a record from the code of a request of its own."""
    with world.context(), start_span(f"request {' '.join(ids)}", "SERVER"):
        COLOURS.push(world.clients, "in", colours(*ids))


def links_of(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def span_ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {span.get_span_context().span_id for span in spans}


def test_a_record_takes_its_trace_through_every_stage(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """A weak stage and a weak sink within the push; a strong one, a weak one, and a strong one."""
    push(world, "1")
    world.settle()
    spans = exporter.get_finished_spans()

    [request] = named(spans, "request 1")
    [ingest] = named(spans, "ingest colours/in")
    [tag] = named(spans, "inline colours/tag")
    [sink] = named(spans, "sink colours/outside")
    [total] = named(spans, "bundle colours/total")
    [shout] = named(spans, "inline colours/shout")
    [heard] = named(spans, "bundle colours/heard")
    stages = [request, ingest, tag, sink, total, shout, heard]
    assert trace_ids(stages) == trace_ids([request])
    assert causes(tag, spans) == causes(sink, spans) == ["ingest colours/in", "request 1"]
    assert causes(total, spans) == ["ingest colours/in", "request 1"]
    assert causes(shout, spans)[0] == "bundle colours/total"
    assert causes(heard, spans)[0] == "bundle colours/total"
    workers = [span for span in spans if span.name.startswith("process /tasks/streams/")]
    assert links_of(total) <= span_ids(workers)
    assert len(links_of(total)) == 1
    assert heard.attributes["rollforward.records"] == 2


def test_a_bundle_of_many_traces_links_to_each_and_the_next_stage_follows_it(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """Three requests, one commit: the bundle belongs to its worker's delivery."""
    for id_ in ("1", "2", "3"):
        push(world, id_)
    world.settle()
    spans = exporter.get_finished_spans()

    [total] = named(spans, "bundle colours/total")
    [heard] = named(spans, "bundle colours/heard")
    assert links_of(total) == span_ids(named(spans, "ingest colours/in"))
    assert causes(total, spans)[0].startswith("process /tasks/streams/")
    assert causes(heard, spans)[0] == "bundle colours/total"


def test_without_an_sdk_no_name_has_a_trace(world: World) -> None:
    """Rows and names are as long as before."""
    with world.context():
        COLOURS.push(world.clients, "in", colours("1", "2"))
        names = [key.id() for key in StreamChunk.query().fetch(keys_only=True)]
        assert names
        assert not any("~" in name for name in names)
    world.settle()
    with world.context():
        assert is_drained()


@pytest.mark.usefixtures("exporter")
def test_a_trace_that_nobody_records_makes_no_name_longer(world: World) -> None:
    """Of a hundred requests an SDK may sample one; small chunks of the others merge as before."""
    unsampled = NonRecordingSpan(SpanContext(7, 7, is_remote=True))
    with world.context(), use_span(unsampled):
        assert current_traceparent().endswith("-00")
        COLOURS.push(world.clients, "in", colours("1"))
        names = [key.id() for key in StreamChunk.query().fetch(keys_only=True)]

    assert names
    assert not any("~" in name for name in names)


def test_a_chunk_that_is_forwarded_stays_in_its_trace(exporter: InMemorySpanExporter) -> None:
    """After a split, records of many chunks go on in chunks of their own, within another trace."""
    head = Head(intervals={"total": [0]})
    environment = Environment(
        COLOURS, now_ms=lambda: 0, elapsed_ms=lambda: 0.0, new_id=lambda: "id", warn=print
    )
    chunks = []
    for number, trace in enumerate([*TRACES, ""]):
        outgoing = Outbound(environment, head)
        if trace:
            outgoing.continue_trace(trace)
        record = InboxRecord("red", 1_000 + number, "tagged", "", "{}")
        outgoing.send(Target("total", "red"), record, late_at=0)
        [(key, body)] = outgoing.inserts()
        chunks.append((key.name, StoredRow(body, 1)))
    with start_span("split", "SERVER"):
        commit, _ = forwarded(environment, head, "total", chunks)

    assert sorted(trace_of(key.name) for key, _ in commit.inserts) == ["", *TRACES]


def test_a_record_has_the_id_that_a_version_without_traces_gives_it() -> None:
    """A sink recognizes a record by it, also when attempts of two versions follow each other."""
    name = "p:c:0000:0:000000000001000:a7.0.12.840"
    traced = name.replace("a7.0.", f"a7.0~{TRACES[0]}.")
    row = StoredRow((InboxRecord("k", 1, "s", "", "{}"),), 1)
    bundles = [Bundle([(each, row)], places=[(0, 0)]) for each in (name, traced)]

    names = [each.rpartition(":")[2] + ".1" for each in (name, traced)]
    assert [bundle.name_of(0) for bundle in bundles] == names
    assert [bundle.traceparents for bundle in bundles] == [[""], [TRACES[0]]]
    assert current_traceparent() == ""
