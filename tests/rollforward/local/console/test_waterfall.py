"""The waterfall: spans below their causes, bars on one axis, and no more lines than a page has."""

from __future__ import annotations

import pytest

from rollforward.local.console.reading import waterfall
from rollforward.local.console.reading.waterfall import MAX_ALIKE, SHOWN_ALIKE, draw
from rollforward.local.traces.spans import Span, SpanId
from rollforward.local.traces.store import TraceStore
from tests.rollforward.local.traces.spans import span, span_id, trace_id

pytestmark = pytest.mark.fast


def drawn(*spans: Span, below: int = 0, is_whole: bool = False) -> waterfall.Waterfall:
    """Return the waterfall of the first trace among some spans."""
    store = TraceStore()
    store.add(spans)
    trace = store.get(trace_id(1))
    assert trace is not None
    return draw(trace, store, below=span_id(below) if below else "", is_whole=is_whole)


def lines(picture: waterfall.Waterfall) -> list[tuple[int, str]]:
    return [(row.depth, row.span.name) for row in picture.rows]


def test_spans_stand_below_their_causes_in_order_of_time() -> None:
    """Whatever the order in which they arrived."""
    picture = drawn(
        span(4, 2, at_ms=30), span(3, 1, at_ms=60), span(1, at_ms=0, ms=100), span(2, 1, at_ms=20)
    )

    assert lines(picture) == [(0, "span 1"), (1, "span 2"), (2, "span 4"), (1, "span 3")]
    assert [(row.bar.x, row.bar.width) for row in picture.rows] == [
        *((0.0, 1000.0), (200.0, 100.0), (300.0, 100.0), (600.0, 100.0))
    ]
    assert picture.ticks_ms == [0, 25, 50, 75, 100]


def test_a_part_has_an_axis_of_its_own() -> None:
    """Below one span: a delivery of an hour later is as wide as the page."""
    picture = drawn(
        span(1, ms=10, at_ms=0), span(2, 1, at_ms=3_600_000, ms=40), span(3, 2, at_ms=3_600_010),
        below=2,
    )  # fmt: skip

    assert lines(picture) == [(0, "span 2"), (1, "span 3")]
    assert [(row.bar.x, row.bar.width) for row in picture.rows] == [(0.0, 1000.0), (250.0, 250.0)]


def test_a_span_whose_cause_has_not_arrived_says_so() -> None:
    """Its worker was killed, or has not sent it yet."""
    picture = drawn(span(2, 1), span(3, 2))

    assert [row.has_lost_cause for row in picture.rows] == [True, False]


def test_many_spans_alike_are_one_line_and_failed_ones_are_shown() -> None:
    """A hundred members of a batch; each of them on demand."""
    members = [
        span(number, 1, name="member", ms=5, problem="no" if number == 50 else None)
        for number in range(2, 102)
    ]
    picture = drawn(span(1, ms=200), *members)
    whole = drawn(span(1, ms=200), *members, is_whole=True)

    assert len(picture.rows) == 1 + SHOWN_ALIKE + 1 + 1
    [many] = [row for row in picture.rows if row.alike]
    assert len(many.alike) == 100 - SHOWN_ALIKE - 1
    assert [row.span.problem for row in picture.rows if row.span.problem] == ["no"]
    assert len(whole.rows) == 101
    assert len(drawn(span(1), *members[:MAX_ALIKE]).rows) == 1 + MAX_ALIKE


def test_work_that_only_one_of_many_caused_is_in_sight() -> None:
    """The member that ends a batch causes its callback; the others stay one line."""
    members = [span(number, 1, name="member") for number in range(2, 42)]
    calls = [span(100 + number, number, name="call") for number in range(2, 42)]
    picture = drawn(span(1), *members, *calls, span(90, 30, name="callback"))

    assert (2, "callback") in lines(picture)
    assert [len(row.alike) for row in picture.rows if row.alike] == [40 - SHOWN_ALIKE - 1]


def test_a_failure_far_below_keeps_all_its_causes_in_sight() -> None:
    """A member is not folded away if something failed beneath it."""
    members = [span(number, 1, name="member") for number in range(2, 42)]
    picture = drawn(span(1), *members, span(90, 30, name="call", problem="no"))

    assert (2, "call") in lines(picture)


def test_work_of_another_trace_that_took_this_one_along_is_a_line() -> None:
    """A fold of many traces stands below the item that it links to."""
    item = SpanId(trace_id(1), span_id(1))
    fold = span(9, trace=2, name="fold", links=(item, SpanId(trace_id(3), span_id(5))), at_ms=500)
    picture = drawn(span(1, ms=100), fold)

    row, linked = picture.rows
    assert (linked.is_elsewhere, linked.span.name, linked.depth) == (True, "fold", 1)
    assert row.linked_by == [fold]
    assert 0 <= linked.bar.x <= 1000 - linked.bar.width


def test_a_long_trace_is_cut_and_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a chain of causes nor a circle ends the page."""
    monkeypatch.setattr(waterfall, "MAX_ROWS", 50)
    chain = [span(number, number - 1) for number in range(1, 3_000)]
    circle = [span(1, 2), span(2, 1), span(3, 3)]

    assert len(drawn(*chain).rows) == 50
    assert drawn(*chain).left > 0
    assert drawn(*chain).rows[-1].depth == waterfall.MAX_DEPTH
    assert lines(drawn(*circle)) == [(0, "span 3")]


def test_the_run_of_a_span_is_named_with_its_pattern() -> None:
    """By the path of its task."""
    name, attributes = "process /tasks/continuations/mail", {"rollforward.run": "r7"}
    [row] = drawn(span(1, name=name, attributes=attributes)).rows

    assert row.run is not None
    assert row.run.url == "/runs/continuations/r7"
