"""Computations in virtual time: hooks, state, timers, late and poison records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    PushSource,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.model.state import State
from rollforward.streams.testing import Output

MINUTE = 60_000


class Hits(Computation):
    """Hits per path and minute."""

    inputs: ClassVar = {"requests": lambda request: request["path"]}
    outputs = ("hits",)
    late_stream = "late-hits"

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // MINUTE * MINUTE
        if start + MINUTE <= ctx.watermark:
            ctx.drop_late()
            return
        ctx.state.map("windows").add(str(start))
        ctx.set_timer(str(start), start + MINUTE)

    def timer(self, ctx: Context, timer: Timer) -> None:
        hits = ctx.state.map("windows").pop(timer.tag)
        ctx.produce("hits", {"path": ctx.key, "start": int(timer.tag), "hits": hits})


class Total(Computation):
    inputs: ClassVar = {"hits": lambda hits: "all"}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("hits").add(record.value["hits"])


WEBLOG = Pipeline("weblog", Hits, Total)


def hit(test: StreamTest, at: int, path: str = "/") -> None:
    test.push("requests", {"path": path}, timestamp_ms=at)


def test_a_window_is_counted_when_the_watermark_passes_its_end() -> None:
    test = StreamTest(WEBLOG)
    for at in (1_000, 59_999, 60_000):
        hit(test, at)

    test.advance_watermark(MINUTE - 1)
    assert test.read("hits") == []

    test.advance_watermark(MINUTE)
    assert test.read("hits") == [Output({"path": "/", "start": 0, "hits": 2}, timestamp_ms=MINUTE)]
    assert test.state("total", "all") == {"hits": 2}
    assert [timer.at_ms for timer in test.timers("hits", "/")] == [2 * MINUTE]

    test.close()
    assert [output.value["hits"] for output in test.read("hits")] == [1]
    assert test.keys("hits") == []
    assert test.state("total", "all") == {"hits": 3}


def test_a_timer_holds_back_what_follows_and_not_its_own_computation() -> None:
    test = StreamTest(WEBLOG)
    hit(test, 1_000)
    test.advance_watermark(30_000)

    assert test.watermark("hits") == 30_000
    assert test.watermark("total") == 30_000

    hit(test, 70_000)
    test.advance_watermark(MINUTE)
    assert test.watermark("total") == MINUTE


def test_a_late_record_is_dropped_and_counted_when_its_window_is_closed() -> None:
    """A record that is late, but not too late, still counts, and its results are late."""
    test = StreamTest(WEBLOG)
    hit(test, 1_000)
    test.advance_watermark(30_000)
    hit(test, 20_000)
    test.advance_watermark(MINUTE)
    hit(test, 50_000)

    assert [(output.value["hits"], output.late) for output in test.read("hits")] == [(2, False)]
    assert test.late == {"hits": 1, "total": 0}
    assert test.read("late-hits") == [Output({"path": "/"}, timestamp_ms=50_000, late=True)]

    test.advance_watermark(MINUTE + 10_000)
    hit(test, MINUTE + 5_000)
    test.close()
    assert [(output.value["hits"], output.late) for output in test.read("hits")] == [(1, True)]


class Recorded(Computation):
    """Does what its records say, and writes its timers down."""

    inputs: ClassVar = {"orders": lambda order: order.get("key", "k")}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add()
        ctx.produce("out", "begun")
        for name, args in record.value.get("do", []):
            getattr(ctx, name)(*args)
        if record.value.get("fails"):
            raise ValueError("bad record")
        ctx.state.list("kept").append(record.value.get("n"))

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("out", [timer.tag, timer.at_ms])


def told(do: Sequence[Any], at: int = 1_000, **fields: Any) -> StreamTest:
    test = StreamTest(Pipeline("p", Recorded))
    test.push("orders", {"do": do, **fields}, timestamp_ms=at)
    return test


def test_timers_fire_in_order_once_and_the_last_setting_counts() -> None:
    test = told(
        [("set_timer", (tag, at)) for tag, at in [("c", 5_000), ("b", 4_000), ("a", 4_000)]]
    )
    test.push(
        "orders",
        {"do": [("set_timer", ("c", 3_000)), ("cancel_timer", ("b",))]},
        timestamp_ms=2_000,
    )
    test.read("out")

    test.advance_watermark(10_000)

    assert [output.value for output in test.read("out")] == [["c", 3_000], ["a", 4_000]]
    test.advance_watermark(20_000)
    assert test.read("out") == []


def test_a_timer_of_the_clock_fires_by_the_clock_and_writes_at_its_record_s_time() -> None:
    class Reminder(Recorded):
        def record(self, ctx: Context, record: Record) -> None:
            ctx.set_timer("wall", 100, processing_time=True)

    test = StreamTest(Pipeline("p", Reminder, Sink))
    test.push("orders", {}, timestamp_ms=1_000)
    test.advance_watermark(50_000)

    assert test.read("out") == []
    assert test.watermark("sink") == 1_000  # What it will write is in time then.

    test.advance_clock(100)
    assert test.read("out") == [Output(["wall", 100], timestamp_ms=1_000)]
    assert test.watermark("sink") == 50_000


class Sink(Computation):
    inputs: ClassVar = {"out": lambda value: "k"}


@pytest.mark.parametrize(
    "do",
    [
        ("produce", ("out", 1, 999)),
        ("produce", ("other", 1)),
        ("set_timer", ("t", 999)),
        ("set_timer", ("t", 1.5)),
        ("set_timer", ("", 2_000)),
        ("set_timer", ("t", -1, )),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_leaves_nothing(do: Any) -> None:
    """The record is a dead letter; nothing that its hook did before remains."""
    test = told([do])
    test.push("orders", {"n": 2}, timestamp_ms=1_000)

    [(computation, failure)] = test.dead
    assert computation == "recorded"
    assert failure.input.timestamp_ms == 1_000  # type: ignore[union-attr]
    assert [output.value for output in test.read("out")] == ["begun"]
    assert test.state("recorded", "k") == {"seen": 1, "kept": [2]}


@pytest.mark.parametrize("bad", [{1, 2}, "x" * 300_000, float("nan"), object()])
def test_an_output_or_a_state_that_is_not_json_or_too_large_is_refused(bad: Any) -> None:
    class Bad(Recorded):
        max_attempts = 1

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.counter("seen").add()
            if record.timestamp_ms == 1:
                ctx.produce("out", bad)
            elif record.timestamp_ms == 2:
                ctx.state["bad"] = bad if bad != "x" * 300_000 else bad * 4

    test = StreamTest(Pipeline("p", Bad))
    for at in range(3):
        test.push("orders", {}, timestamp_ms=at)

    assert [failure.input.timestamp_ms for _, failure in test.dead] == [1, 2]  # type: ignore[union-attr]
    assert test.state("bad", "k") == {"seen": 1}


def test_a_poison_record_takes_no_neighbour_with_it() -> None:
    """Its attempts are bounded; other records of its key continue in order."""
    calls = []

    class Poisoned(Recorded):
        max_attempts = 2

        def record(self, ctx: Context, record: Record) -> None:
            calls.append(record.value["n"])
            super().record(ctx, record)

    test = StreamTest(Pipeline("p", Poisoned))
    for n in range(4):
        test._deliver("orders", f'{{"n":{n},"fails":{str(n == 1).lower()}}}', 5, False,
                      test._graph.route("orders", {}))  # fmt: skip
    test._run()

    assert test.state("poisoned", "k") == {"seen": 3, "kept": [0, 2, 3]}
    assert calls == [0, 1, 0, 1, 1, 2, 3]
    assert [failure.error for _, failure in test.dead] == ["ValueError: bad record"]


def test_a_record_without_a_key_is_a_dead_letter_of_its_reader() -> None:
    test = StreamTest(Pipeline("p", Recorded))
    test.push("orders", {"key": 7}, timestamp_ms=1)

    [(computation, failure)] = test.dead
    assert computation == "recorded"
    assert "a key must be a non-empty text" in failure.error


def test_a_key_is_forgotten_when_its_time_to_live_is_over() -> None:
    class Kept(Recorded):
        ttl = timedelta(seconds=10)

    test = StreamTest(Pipeline("p", Kept))
    test.push("orders", {"do": [("set_timer", ("t", 30_000))]}, timestamp_ms=1_000)
    test.push("orders", {"n": 1}, timestamp_ms=6_000)

    test.advance_watermark(15_999)
    assert test.keys("kept") == ["k"]
    test.advance_watermark(16_000)
    assert test.keys("kept") == []


def test_a_late_record_does_not_make_late_what_others_have_set() -> None:
    """A timer that was in time stays so, unless it is set to an earlier time than it had."""
    for at, is_late in ((6_000, False), (5_000, False), (4_500, True)):
        test = told([("set_timer", ("t", 5_000))], at=1_000)
        test.advance_watermark(4_000)
        test.push("orders", {"do": [("set_timer", ("t", at))]}, timestamp_ms=2_000)
        test.read("out")

        test.close()

        assert [output.late for output in test.read("out")] == [is_late]


def test_cells_keep_what_is_written_and_take_no_place_when_empty() -> None:
    seen: dict[str, Any] = {}

    class Cells(Recorded):
        def record(self, ctx: Context, record: Record) -> None:
            state = ctx.state
            if record.timestamp_ms == 1:
                state.value("v").set({"a": 1})
                state.list("l").append(1)
                state.map("m").set("x", 2)
                state.buffer("b").add(5, "late")
                state.buffer("b").add(3, "early")
            else:
                seen["b"] = state.buffer("b").between(0, 5), state.buffer("b").latest(9)
                seen["v"] = state.value("v").get(), state.value("none", 7).get()
                state.map("m").pop("x")
                state.buffer("b").drop_before(9)
                state.list("l").clear()
                state.value("v").clear()

    test = StreamTest(Pipeline("p", Cells))
    test.push("orders", {}, timestamp_ms=1)
    assert test.state("cells", "k")["b"] == [[3, "early"], [5, "late"]]

    test.push("orders", {}, timestamp_ms=2)
    assert seen == {"b": ([(3, "early")], (5, "late")), "v": ({"a": 1}, 7)}
    assert test.keys("cells") == []


class Color(str, Enum):  # noqa: UP042 - As in code from before there was `StrEnum`.
    RED = "red"


class Named(Computation):
    """Writes its key as a text."""

    inputs: ClassVar = {"in": lambda value: Color(value["color"])}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("out", f"{ctx.key}")


def test_a_member_of_an_enumeration_is_the_key_that_is_stored() -> None:
    """A hook has the same text in a test, inline, and from an inbox."""
    test = StreamTest(Pipeline("p", Named))
    test.push("in", {"color": "red"}, timestamp_ms=1)

    assert [output.value for output in test.read("out")] == ["red"]


def test_a_number_as_a_key_of_a_map_is_the_text_that_was_stored() -> None:
    """`set` and `add` store a text, so what reads the map looks for the same one."""
    state = State({}).map("statuses")
    state.set(200, 1)  # type: ignore[arg-type]
    state.add(200)  # type: ignore[arg-type]

    assert 200 in state
    assert state.get(200) == 2  # type: ignore[arg-type]
    assert state.pop(200) == 2  # type: ignore[arg-type]
    assert state.items() == []


def test_a_pipeline_refuses_what_cannot_run() -> None:
    class Loop(Computation):
        inputs: ClassVar = {"a": str, "b": str}
        outputs = ("b",)

    class Nothing(Computation):
        pass

    class Reads(Computation):
        inputs: ClassVar = {"a": str}

        def record(self, ctx: Context, record: Record) -> None:
            """Do nothing."""

    for parts in ((Loop,), (Nothing,), (), (Sink, Sink)):
        with pytest.raises(TypeError):
            Pipeline("p", *parts)
    with pytest.raises(TypeError, match="each source must be of another stream"):
        Pipeline("p", Reads, sources=[PushSource("a"), PushSource("a", processes=["x"])])


def test_a_watermark_of_a_test_is_a_time_that_is_no_earlier() -> None:
    """With one that is no number all timers would wait for ever, without an error."""
    test = StreamTest(WEBLOG)
    test.advance_watermark(5)
    with pytest.raises(ValueError, match="must not fall below"):
        test.advance_watermark(4)
    with pytest.raises(ValueError, match="must be whole milliseconds"):
        test.advance_watermark(math.nan)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.counter(404).add(),
        lambda state: state.list(404).append(1),
        lambda state: state.value(None).set(1),
        lambda state: state.__setitem__(404, 1),
    ],
)
def test_the_name_of_an_item_of_a_state_is_a_text(write: Any) -> None:
    """JSON made a text of a status, and each bundle counted it anew: the count was that of one."""

    class Statuses(Computation):
        inputs: ClassVar = {"in": lambda value: "all"}

        def record(self, ctx: Context, record: Record) -> None:
            write(ctx.state)

    test = StreamTest(Pipeline("statuses", Statuses))
    test.push("in", {}, 1)

    [(_, failure)] = test.dead
    assert "must be a text, got" in failure.error
    assert test.keys("statuses") == []
