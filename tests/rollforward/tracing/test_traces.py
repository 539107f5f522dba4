"""One trace from a request to all that it causes, however many tasks and rows are between."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from google.cloud import ndb
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

import rollforward as rf
from rollforward.batches import Completed, TaskBatch
from rollforward.datastore.batched import batched
from rollforward.fork_join import Batch, fork_join
from rollforward.fork_join.entities import WorkPack
from rollforward.local.console.reading.waterfall import WIDTH, draw
from rollforward.local.traces import otlp
from rollforward.local.traces.store import TraceStore
from rollforward.outbox.entities import OutboxTask
from rollforward.telemetry import Trace, current_trace
from rollforward.tracing import TRACE_HEADER, start_span
from rollforward.tracing.spans import leaf_span
from tests.infra.world import Services, World

pytestmark = pytest.mark.fast

PRINTS = 100


class Order(ndb.Model):
    printed = ndb.IntegerProperty(indexed=False, default=0)
    is_done = ndb.BooleanProperty(indexed=False, default=False)


@dataclass(frozen=True)
class Printed:
    page: int


@fork_join("prints", queue="fork-join", period_s=1)
def count_prints(clients: rf.Clients, batch: Batch, items: Sequence[Printed]) -> None:
    order = Order.get_by_id(batch.key)
    order.printed += len(items)
    order.put()


@rf.task
def print_page(clients: rf.Clients, order_id: str, page: int) -> None:
    count_prints.insert(clients, order_id, Printed(page))


@rf.task
def finish(clients: rf.Clients, args: Completed) -> None:
    order = Order.get_by_id(args.batch_id)
    order.is_done = True
    order.put()


PAGES = TaskBatch("pages", members=[print_page], on_complete=finish)


@rf.task
def accept(clients: rf.Clients, order_id: str) -> None:
    pages = [(print_page, print_page.bind(order_id, page)) for page in range(PRINTS)]
    PAGES.populate(clients, order_id, pages, seal=True)


def order(order_id: str) -> str:
    """Store an order and the task that accepts it, in one commit."""

    def body() -> None:
        Order(id=order_id).put()
        rf.enqueue(accept, accept.bind(order_id))

    rf.transact(body)
    return "ordered"


@pytest.fixture
def world(services: Services) -> World:
    opened = World(services, tasks=[accept], fork_joins=[count_prints], batches=[PAGES])
    opened.app.add_url_rule("/order/<order_id>", view_func=order)
    return opened


def visit(app: Flask, order_id: str, **headers: str) -> None:
    with app.test_client() as client:
        assert client.get(f"/order/{order_id}", headers=headers).text == "ordered"


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def trace_ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {span.get_span_context().trace_id for span in spans}


def causes(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> list[str]:
    """Return the names of a span's ancestors, the nearest first."""
    by_id = {known.get_span_context().span_id: known for known in spans}
    names = []
    parent: Any = span.parent
    while parent is not None:
        names.append(by_id[parent.span_id].name)
        parent = by_id[parent.span_id].parent
    return names


def test_one_trace_leads_from_an_order_to_the_callback_of_its_batch(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """Through the outbox, a task, a hundred members, a fold of them, and the batch's completion."""
    visit(world.app, "one")
    world.settle()
    spans = exporter.get_finished_spans()
    with world.context():
        stored = Order.get_by_id("one")

    [asked] = named(spans, "GET /order/<order_id>")
    [accepted] = named(spans, "process /tasks/accept")
    members = named(spans, "process /tasks/batches/pages/print-page")
    [finished] = named(spans, f"process {PAGES.tasks[-1].path}")
    folds = named(spans, "fold prints")
    assert (stored.printed, stored.is_done) == (PRINTS, True)
    assert asked.kind is trace.SpanKind.SERVER
    assert accepted.kind is trace.SpanKind.CONSUMER
    assert causes(accepted, spans)[-1] == "GET /order/<order_id>"
    assert len(members) == PRINTS
    assert trace_ids([asked, accepted, *members, *folds, finished]) == trace_ids([asked])
    linked = {link.context.span_id for fold in folds for link in fold.links}
    assert linked == {member.get_span_context().span_id for member in members}
    assert sum(fold.attributes["rollforward.items"] for fold in folds) == PRINTS
    assert {"memcached incr", "Datastore/Lookup", "CloudTasks/CreateTask"} <= {
        s.name for s in spans
    }


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_the_console_draws_the_trace_of_an_order_as_a_waterfall(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """By what an exporter sends: a line of its own for each stage, and one for ninety members."""
    encoder = pytest.importorskip("opentelemetry.exporter.otlp.proto.common.trace_encoder")
    visit(world.app, "five")
    world.settle()
    spans = exporter.get_finished_spans()
    [asked] = named(spans, "GET /order/<order_id>")
    store = TraceStore()
    for part in batched(spans, 512):
        read, refused = otlp.read(encoder.encode_spans(part).SerializeToString())
        assert refused == 0
        store.add(read)
    trace_id = f"{asked.get_span_context().trace_id:032x}"
    kept = store.get(trace_id)
    assert kept is not None

    picture = draw(kept, store)

    lines = {row.span.name: row for row in picture.rows}
    member = "process /tasks/batches/pages/print-page"
    [many] = [row for row in picture.rows if row.alike and row.span.name == member]
    assert picture.rows[0].span.name == "GET /order/<order_id>"
    assert len(many.alike) > PRINTS // 2
    assert {"process /tasks/accept", "fold prints", f"process {PAGES.tasks[-1].path}"} <= {*lines}
    assert len(lines["fold prints"].span.links) > 1
    depths = [lines[name].depth for name in ("process /tasks/accept", member, "fold prints")]
    assert depths == sorted(depths)
    assert all(0 <= row.bar.x <= row.bar.x + row.bar.width <= WIDTH for row in picture.rows)


def test_calls_of_the_services_are_spans_of_the_work_that_makes_them(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """A transaction says how many attempts it took; a call which answer it got."""
    visit(world.app, "two")
    spans = exporter.get_finished_spans()

    [transaction] = named(spans, "transaction")
    [commit, *_] = named(spans, "Datastore/Commit")
    assert causes(commit, spans) == ["transaction", "GET /order/<order_id>"]
    assert transaction.attributes["rollforward.attempts"] == 1
    assert commit.kind is trace.SpanKind.CLIENT
    assert commit.attributes["rpc.grpc.status_code"] == 0


def test_a_trace_of_the_caller_goes_on(world: World, exporter: InMemorySpanExporter) -> None:
    """W3C's header, by the propagators that the app has configured."""
    visit(world.app, "three", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    world.settle()

    [asked] = named(exporter.get_finished_spans(), "GET /order/<order_id>")
    [accepted] = named(exporter.get_finished_spans(), "process /tasks/accept")
    assert f"{asked.get_span_context().trace_id:032x}" == "a" * 32
    assert asked.parent is not None
    assert f"{asked.parent.span_id:016x}" == "b" * 16
    assert trace_ids([accepted]) == trace_ids([asked])


@pytest.mark.parametrize("carried", ["", "x", f"00-{'a' * 31}-{'b' * 16}-01", "00-" + "a" * 5000])
def test_a_trace_that_is_none_begins_a_new_one(
    world: World, exporter: InMemorySpanExporter, carried: str
) -> None:
    """A stranger or another version may have written the header."""
    with world.app.test_client() as client:
        client.post("/tasks/accept", json={}, headers={TRACE_HEADER: carried})

    [refused] = named(exporter.get_finished_spans(), "process /tasks/accept")
    assert refused.parent is None
    assert refused.attributes["http.response.status_code"] == 403


def test_without_an_sdk_nothing_is_made_or_stored(world: World) -> None:
    """Tasks carry no header, and rows no trace."""
    with world.context():
        rf.transact(lambda: rf.enqueue(accept, accept.bind("four")))
        count_prints.insert(world.clients, "four", Printed(1))
        rows = [*OutboxTask.query(), *WorkPack.query()]
        assert {getattr(row, "traceparent", None) for row in rows} == {None}
        assert {getattr(row, "traceparents", None) for row in rows} == {None}
    tasks = [world.engine.begin_attempt(task.task_name) for task in world.engine.due()]
    assert tasks
    assert not any(TRACE_HEADER in str(task.headers) for task in tasks)


def test_log_entries_name_the_span_that_runs(world: World, exporter: InMemorySpanExporter) -> None:
    """Cloud Logging shows them beside the span; without an SDK they name the request's trace."""
    traces = []
    world.app.add_url_rule("/log", view_func=lambda: str(traces.append(current_trace())))
    with world.app.test_client() as client:
        client.get("/log", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})

    [asked] = named(exporter.get_finished_spans(), "GET /log")
    assert traces == [Trace("a" * 32, f"{asked.get_span_context().span_id:016x}", is_sampled=True)]


def test_a_trace_that_is_not_sampled_makes_no_spans_inside_and_is_carried_on(
    world: World, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One span for the request and one for each delivery, which nobody records."""
    made: list[str] = []
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    start = Tracer.start_span

    def noted(self: Tracer, name: str, *args: Any, **options: Any) -> Any:
        made.append(name)
        return start(self, name, *args, **options)

    monkeypatch.setattr(Tracer, "start_span", noted)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    visit(world.app, "six")
    [enqueued] = [task.task_name for task in world.engine.due()]
    carried = dict(world.engine.begin_attempt(enqueued).headers)[TRACE_HEADER]
    requests_made = list(made)
    made.clear()
    with world.app.test_client() as client:
        client.post("/tasks/accept", json={}, headers={TRACE_HEADER: carried})

    assert requests_made == ["GET"]
    assert not int(carried[-2:], 16) & 1  # Sampled.
    assert made == ["process /tasks/accept"]
    assert exporter.get_finished_spans() == ()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_ON))
    made.clear()
    visit(world.app, "seven")
    assert {"GET", "transaction", "Datastore/Commit"} <= {*made}


def test_details_are_made_for_a_span_that_is_recorded_only(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def details() -> dict[str, str]:
        asked.append("details")
        return {"queue": "mail"}

    with start_span("seen", "CONSUMER", details=details) as span:
        assert span.is_recorded
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    with start_span("unseen", "CONSUMER", details=details) as span:
        assert not span.is_recorded
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    with start_span("none", "CONSUMER", details=details) as span:
        assert not span.is_recorded

    [seen] = exporter.get_finished_spans()
    assert asked == ["details"]
    assert dict(seen.attributes or {}) == {"queue": "mail"}


def test_a_call_that_fails_has_its_span_within_its_cause(exporter: InMemorySpanExporter) -> None:
    """Its span is made afterwards, with the times of the call."""
    with (
        start_span("cause", "SERVER"),
        pytest.raises(TimeoutError),
        leaf_span("memcached get", {"db.system": "memcached"}),
    ):
        raise TimeoutError

    call, cause = exporter.get_finished_spans()
    assert (call.name, cause.name) == ("memcached get", "cause")
    assert causes(call, [call, cause]) == ["cause"]
    times = [cause.start_time, call.start_time, call.end_time, cause.end_time]
    assert times == sorted(times, key=lambda at_ns: at_ns or 0)
    assert call.kind is trace.SpanKind.CLIENT


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_delivery_that_is_not_sampled_makes_few_calls_more_than_one_without_an_sdk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of Python functions, the SDK's among them, which no other work of a machine moves."""
    unsampled = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    unsampled.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    calls = []
    for provider in (None, unsampled):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        deliveries = []
        for number in range(3):  # The first one has what a process does once.
            known = {due.task_name for due in world.engine.due()}
            with world.context():
                print_page.enqueue(world.clients, print_page.bind(f"{len(calls)}", number))
            [new] = {due.task_name for due in world.engine.due()} - known
            attempt = world.engine.begin_attempt(new)
            deliveries.append(_calls_of(world, attempt))
            world.end(attempt, 204)
        calls.append(min(deliveries))
    unsampled.shutdown()

    without, with_sdk = calls
    assert without > 1_000
    assert with_sdk <= 1.04 * without


def _calls_of(world: World, attempt: Any) -> int:
    """Return how many functions an attempt calls in its thread."""
    profile = cProfile.Profile()
    with world.app.test_client() as client:
        path = f"/{attempt.url.split('/', 3)[3]}"
        profile.enable()
        answer = client.post(path, headers=dict(attempt.headers), data=attempt.body)
        profile.disable()
    assert answer.status_code < 300
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
