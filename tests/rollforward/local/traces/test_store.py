"""The newest traces: kept whole, found by filters, and never more than the limits."""

from __future__ import annotations

import pytest

from rollforward.local.traces import store
from rollforward.local.traces.spans import SpanId
from rollforward.local.traces.store import TraceFilter, TraceStore
from tests.rollforward.local.traces.spans import span, span_id, trace_id

pytestmark = pytest.mark.fast

TASK = {"messaging.destination.name": "default", "messaging.message.id": "t7"}


def ids(traces: TraceStore, **fields: object) -> list[int]:
    """Return the traces that a filter lets through, by their numbers."""
    chosen = TraceFilter(**fields)  # type: ignore[arg-type]
    return [int(trace.trace_id, 16) for trace in traces.newest(chosen, 100)]


@pytest.fixture
def traces() -> TraceStore:
    """A request, a slow one, and a task that failed and works for a run."""
    kept = TraceStore()
    kept.add([span(1, trace=1, name="GET /"), span(2, trace=2, name="GET /slow", ms=900)])
    attributes = {**TASK, "rollforward.run": "r7"}
    name = "process /tasks/ship"
    kept.add([span(3, trace=3, name=name, attributes=attributes, problem="KeyError: 'x'")])
    return kept


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [3, 2, 1]),
        ({"text": "SHIP"}, [3]),
        ({"text": "default/t7"}, [3]),
        ({"run": "r7"}, [3]),
        ({"is_failed": True}, [3]),
        ({"slow_ms": 900}, [2]),
        ({"slow_ms": 901}, []),
        ({"before": 3}, [2, 1]),
        ({"text": "GET", "slow_ms": 100}, [2]),
    ],
)
def test_filters_let_traces_through(
    traces: TraceStore, fields: dict[str, object], expected: list[int]
) -> None:
    """The newest first; all fields must fit."""
    assert ids(traces, **fields) == expected


def test_spans_of_one_trace_arrive_in_any_order_and_more_than_once() -> None:
    """An exporter sends again whose answer was lost."""
    traces = TraceStore()
    traces.add([span(2, 1, at_ms=5, ms=50)])
    traces.add([span(1, at_ms=0, ms=10, problem="no"), span(2, 1, at_ms=5, ms=50)])

    [trace] = traces.newest(TraceFilter(), 10)
    assert (len(trace.spans), trace.failures, trace.duration_ms) == (2, 1, 55.0)
    assert trace.root.id.span_id == span_id(1)


def test_the_traces_that_grew_least_recently_go_first() -> None:
    """By the number of spans; what is counted is what is kept."""
    traces = TraceStore(max_spans=4)
    traces.add([span(1, trace=1), span(2, trace=2), span(3, trace=3)])
    traces.add([span(4, 1, trace=1), span(5, trace=4)])

    assert ids(traces) == [4, 3, 1]
    assert traces.get(trace_id(2)) is None
    traces.add([span(number, trace=5) for number in range(10, 14)])
    assert ids(traces) == [5]


def test_many_bytes_push_out_others_and_one_trace_never_has_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the spans say."""
    size = span(1, attributes={"text": "x" * 500}).bytes
    monkeypatch.setattr(store, "MAX_BYTES_OF_ONE", 2 * size)
    traces = TraceStore(max_bytes=3 * size)
    for trace in (1, 2):
        for number in range(5):
            traces.add([span(number + 1, trace=trace, attributes={"text": "x" * 500})])

    assert ids(traces) == [2]
    kept = traces.get(trace_id(2))
    assert kept is not None
    assert (len(kept.spans), kept.dropped) == (2, 3)


def test_an_endless_trace_keeps_its_first_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many it has dropped."""
    monkeypatch.setattr(store, "MAX_SPANS_OF_ONE", 3)
    traces = TraceStore()
    traces.add(span(number, trace=1) for number in range(1, 6))

    trace = traces.get(trace_id(1))
    assert trace is not None
    assert (len(trace.spans), trace.dropped) == (3, 2)


def test_links_are_found_from_the_other_side() -> None:
    """A fold links to items of two traces; none is found once its own trace is gone."""
    traces = TraceStore(max_spans=4)
    item, other = SpanId(trace_id(1), span_id(1)), SpanId(trace_id(2), span_id(2))
    traces.add([span(9, trace=3, links=(item, other)), span(1, trace=1), span(2, trace=2)])

    assert [(found.id, link) for found, link in traces.linking_to(trace_id(1))] == [
        (SpanId(trace_id(3), span_id(9)), item)
    ]
    traces.add([span(number, trace=4) for number in range(20, 24)])
    assert list(traces.linking_to(trace_id(1))) == []
