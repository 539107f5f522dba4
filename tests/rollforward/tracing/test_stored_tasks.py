"""Traces of tasks that wait in rows: due in months, with large arguments, or given up."""

from __future__ import annotations

import datetime

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import rollforward as rf
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.errors import Reject
from rollforward.tasks.stored.entities import DistantTask, StoredArguments
from rollforward.tracing import start_span, trace_id_of
from tests.infra.world import Services, World
from tests.rollforward.tracing.test_traces import causes, named, trace_ids

pytestmark = pytest.mark.fast

DAY_S = 24 * 3600.0


@rf.task
def remind(clients: rf.Clients, text: str) -> None:
    """Do nothing, or what can never work."""
    if text == "never":
        raise Reject("there is nobody to remind")


@pytest.fixture
def world(services: Services) -> World:
    return World(services, tasks=[remind])


def test_a_task_due_in_months_belongs_to_the_trace_of_its_call(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """By itself, and enqueued by a commit: the sweep creates both, in a trace of its own."""
    with world.context(), start_span("request", "SERVER"):
        remind.enqueue(world.clients, remind.bind("a"), delay_s=90 * DAY_S)
        due = world.clients.clock.now() + datetime.timedelta(days=90)
        rf.transact(lambda: rf.enqueue(remind, remind.bind("b"), at=due))
        assert len(DistantTask.query().fetch(keys_only=True)) == 2
    world.clock.sleep(89 * DAY_S)
    world.sweep("/cron/tasks/sweep")
    world.clock.sleep(2 * DAY_S)
    world.deliver_due()
    spans = exporter.get_finished_spans()

    [request] = named(spans, "request")
    delivered = named(spans, "process /tasks/remind")
    assert len(delivered) == 2
    assert trace_ids(delivered) == trace_ids([request])
    assert {causes(span, spans)[-1] for span in delivered} == {"request"}


def test_large_arguments_change_no_trace(world: World, exporter: InMemorySpanExporter) -> None:
    """They lie in rows, and the task carries the trace."""
    with world.context(), start_span("request", "SERVER"):
        remind.enqueue(world.clients, remind.bind("x" * 1_100_000))
        assert len(StoredArguments.query().fetch(keys_only=True)) == 1
    world.settle()
    spans = exporter.get_finished_spans()

    [delivered] = named(spans, "process /tasks/remind")
    assert trace_ids([delivered]) == trace_ids(named(spans, "request"))


def test_a_dead_task_names_its_trace_and_its_span_has_failed(
    world: World, exporter: InMemorySpanExporter
) -> None:
    """An operator finds what caused it; a replay belongs to the trace of its replay."""
    with world.context(), start_span("request", "SERVER"):
        remind.enqueue(world.clients, remind.bind("never"))
    world.settle()
    spans = exporter.get_finished_spans()

    [delivered] = named(spans, "process /tasks/remind")
    with world.context():
        [dead] = DeadTask.query()
    assert int(trace_id_of(dead.traceparent), 16) in trace_ids(named(spans, "request"))
    assert delivered.attributes["rollforward.dead_task"] == dead.key.id()
    assert delivered.status.description == "Reject: there is nobody to remind"


def test_without_an_sdk_rows_have_no_trace(world: World) -> None:
    """Neither of tasks that wait, nor of those that were given up."""
    with world.context():
        remind.enqueue(world.clients, remind.bind("a"), delay_s=90 * DAY_S)
        remind.enqueue(world.clients, remind.bind("never"))
    world.deliver_due()
    with world.context():
        rows = [*DistantTask.query(), *DeadTask.query()]
        assert [row.traceparent for row in rows] == [None, None]
