"""Fused computations have the same effects as unfused ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from rollforward.streams import Computation, Context, Pipeline, Record, StreamTest, Timer
from rollforward.streams.execution.bundle_runner import run_bundle
from rollforward.streams.model.key_state import KeyState, SetTimer
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.storage.inbox import inputs_of
from rollforward.streams.storage.schema import InboxRecord
from rollforward.streams.testing import Output

SECOND = 1_000
KEYS = ("a", "b")


def key_of(value: Any) -> str:
    return str(value["k"])


class Spread(Computation):
    """Hands records on: some at once, some by a timer, some twice."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        for wait_ms in record.value["waits"]:
            if wait_ms:
                tag = str(ctx.state.counter("tags").add(1))
                ctx.state.map("waiting").set(tag, record.value)
                ctx.set_timer(tag, record.timestamp_ms + wait_ms)
            else:
                ctx.produce("mid", record.value)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("mid", ctx.state.map("waiting").pop(timer.tag))


class Follow(Computation):
    """Stores and forwards the records of two streams."""

    inputs: ClassVar = {"mid": key_of, "windows": lambda window: window["key"]}
    outputs = ("told",)

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append([record.timestamp_ms, ctx.watermark])
        ctx.state.list(record.stream).append(record.timestamp_ms)
        ctx.produce("told", {"k": ctx.key, "stream": record.stream, "value": record.value})


COUNT = Windowed("count", Tumbling(timedelta(seconds=1)), inputs={"mid": key_of}, output="windows")
FUSED = Pipeline("p", Fused("fused", Spread, COUNT, Follow))
APART = Pipeline("p", Spread, COUNT, Follow)
SENT = st.tuples(
    st.sampled_from(KEYS),
    st.integers(0, 3 * SECOND),
    st.lists(st.sampled_from((0, 300, 1_200)), max_size=2),
)
STEPS = st.lists(st.one_of(SENT, st.integers(0, 2 * SECOND)), max_size=12)


def played(pipeline: Pipeline, steps: Sequence[Any], *, in_time: bool) -> StreamTest:
    """Push records; a number advances the watermark by that."""
    test, watermark = StreamTest(pipeline), 0
    for step in steps:
        if isinstance(step, int):
            watermark += step
            test.advance_watermark(watermark)
        else:
            key, at, waits = step
            test.push("in", {"k": key, "waits": waits}, timestamp_ms=watermark * in_time + at)
    test.close()
    return test


def told(test: StreamTest) -> dict[tuple[str, str], list[Any]]:
    """Return the records of `told` by key and stream, in their order."""
    by_place: dict[tuple[str, str], list[Any]] = {}
    for output in test.read("told"):
        place = output.value["k"], output.value["stream"]
        result = output.value["value"], output.timestamp_ms, output.late
        by_place.setdefault(place, []).append(result)
    return by_place


@given(STEPS)
def test_what_is_in_time_leads_to_the_same_as_with_computations_apart(steps: list[Any]) -> None:
    """G16: also the states, and the order of a stream's records for a key."""
    fused, apart = played(FUSED, steps, in_time=True), played(APART, steps, in_time=True)

    assert told(fused) == told(apart)
    for key in KEYS:
        parts = {name: apart.state(name, key) for name in ("spread", "count", "follow")}
        assert fused.state("fused", key) == {name: part for name, part in parts.items() if part}
        assert "bad" not in parts["follow"]
    assert fused.late.total() == apart.late.total() == 0
    assert not fused.dead


@given(STEPS)
def test_each_late_record_counts_once_or_is_dropped_once(steps: list[Any]) -> None:
    """G16: and none that was in time is late."""
    test = played(FUSED, steps, in_time=False)

    written = told(test)
    mids = sum(len(outputs) for (_, stream), outputs in written.items() if stream == "mid")
    windows = [outputs for (_, stream), outputs in written.items() if stream == "windows"]
    counted = [value for outputs in windows for value, _, _ in outputs]
    assert mids == sum(value["records"] for value in counted) + test.late["fused"]
    starts = Counter((value["key"], value["start"]) for value in counted if value["pane"] != "late")
    assert max(starts.values(), default=1) == 1
    assert all("bad" not in test.state("fused", key).get("follow", {}) for key in KEYS)


# What a part sees


class Watch(Computation):
    """Writes its times and flags."""

    inputs: ClassVar = {"mid": key_of}
    outputs = ("seen",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("seen", [record.timestamp_ms, ctx.watermark, ctx.late, ctx.is_over])


def test_a_later_part_sees_a_watermark_that_waits_for_timers_of_those_before_it() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Watch)))
    test.push("in", {"k": "a", "waits": [0, 300, 1_200]}, timestamp_ms=100)
    test.advance_watermark(200)
    test.close()

    assert [output.value for output in test.read("seen")] == [
        [100, 0, False, False], [400, 400, False, False], [1_300, 1_300, False, False],
    ]  # fmt: skip


def test_a_late_timer_does_not_move_a_later_parts_watermark_back() -> None:
    """Records of a late timer see the current watermark, and no earlier one."""
    fused = Fused("fused", Spread, Watch)
    waiting = '{"spread":{"waiting":{"1":{"k":"a"},"2":{"k":"a"}}}}'
    timers = {
        "spread:1": SetTimer(100, False, 100, True),
        "spread:2": SetTimer(500, False, 500, False),
    }
    state = KeyState(waiting, timers)
    effects = run_bundle(fused, {"a": state}, watermark=900, now_ms=0, due=["a"])

    assert [production.text for production in effects.productions] == [
        "[100,500,true,false]", "[500,500,false,false]",
    ]  # fmt: skip


class Changes(Computation):
    """Goes on with a value that it has written."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)

    def record(self, ctx: Context, record: Record) -> None:
        value = {**record.value, "pair": (1, 2), "many": []}
        ctx.produce("mid", value)
        value["many"].append("more")
        ctx.state["mine"] = value


class Keeps(Computation):
    inputs: ClassVar = {"mid": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        record.value["many"].append(self.name)
        ctx.state["kept"] = record.value


class KeepsToo(Keeps):
    """Has a value of its own."""


def test_each_part_gets_a_value_of_its_own_as_json_has_made_it() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Changes, Keeps, KeepsToo)))
    test.push("in", {"k": "a"}, timestamp_ms=1)

    state = test.state("fused", "a")
    assert state["changes"]["mine"]["many"] == ["more"]
    assert state["keeps"]["kept"] == {"k": "a", "pair": [1, 2], "many": ["keeps"]}
    assert state["keeps-too"]["kept"]["many"] == ["keeps-too"]


class KeepsInput(Keeps):
    inputs: ClassVar = {"in": key_of}


class KeepsInputToo(Keeps):
    inputs: ClassVar = {"in": key_of}


def test_a_stream_from_outside_may_have_several_parts() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", KeepsInput, KeepsInputToo)))
    test.push("in", {"k": "a", "many": []}, timestamp_ms=1)

    assert test.state("fused", "a") == {
        "keeps-input": {"kept": {"k": "a", "many": ["keeps-input"]}},
        "keeps-input-too": {"kept": {"k": "a", "many": ["keeps-input-too"]}},
    }


# What fails


class Fails(Computation):
    inputs: ClassVar = {"mid": key_of}
    outputs = ("out",)
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce("out", record.value)
        if record.value.get("poison"):
            raise ValueError("poison")


def test_a_hook_that_fails_undoes_what_all_parts_have_done_and_takes_no_neighbour_with_it() -> None:
    """G7, G16."""
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Fails)))
    inputs = [{"k": "a", "waits": [0]}, {"k": "a", "waits": [0], "poison": 1}]
    for value in (*inputs, inputs[0]):
        test.push("in", value, timestamp_ms=1)

    assert [output.value for output in test.read("out")] == [inputs[0]] * 2
    assert test.state("fused", "a") == {"spread": {"seen": 2}, "fails": {"seen": 2}}
    [(name, failure)] = test.dead
    assert (name, failure.input[1], failure.error) == ("fused", inputs[1], "ValueError: poison")


def test_a_timer_whose_record_fails_is_the_dead_letter() -> None:
    """G7: the items that it removed from its state are still there when it is replayed."""
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Fails)))
    test.push("in", {"k": "a", "waits": [300], "poison": 1}, timestamp_ms=1)
    test.close()

    [(_, failure)] = test.dead
    assert failure.input[0] == "spread:1"
    assert list(test.state("fused", "a")["spread"]["waiting"]) == ["1"]
    assert test.read("out") == []


class OtherKey(Fails):
    inputs: ClassVar = {"mid": lambda value: value.get("other", "a")}


def test_a_record_with_another_key_fails() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Spread, OtherKey)))
    for fields in ({}, {"other": "b"}):
        test.push("in", {"k": "a", "waits": [0], **fields}, timestamp_ms=1)

    assert len(test.read("out")) == 1
    [(_, failure)] = test.dead
    assert "the key at other-key must be 'a'" in failure.error


class Floods(Computation):
    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)

    def record(self, ctx: Context, record: Record) -> None:
        for _ in range(record.value["times"]):
            ctx.produce("mid", {"k": ctx.key, "text": "x" * 100_000})


def test_what_parts_write_for_each_other_in_one_hook_is_bounded() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Floods, Fails)))
    test.push("in", {"k": "a", "times": 4}, timestamp_ms=1)
    test.push("in", {"k": "a", "times": 11}, timestamp_ms=1)

    assert test.state("fused", "a")["fails"] == {"seen": 4}
    assert "one call must write at most" in test.dead[0][1].error


class Clock(Computation):
    """Forwards its records a second later in processing time."""

    inputs: ClassVar = {"mid": key_of}
    outputs = ("told",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.set_timer("tell", ctx.now_ms + SECOND, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("told", [timer.tag, timer.at_ms, timer.is_processing_time])


class Relay(Clock):
    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)


def test_only_a_part_that_writes_for_no_other_has_timers_of_the_clock() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Clock)))
    test.push("in", {"k": "a", "waits": [0]}, timestamp_ms=1)
    test.advance_clock(SECOND)
    assert test.read("told") == [Output(["tell", SECOND, True], timestamp_ms=1)]

    test = StreamTest(Pipeline("p", Fused("fused", Relay, Clock)))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    assert "relay cannot have processing-time timers" in test.dead[0][1].error


class Cancels(Spread):
    outputs = ("mid",)

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        ctx.state["had"] = ctx.cancel_timer("1")


def test_a_timer_is_cancelled_by_its_part() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Cancels, Fails)))
    test.push("in", {"k": "a", "waits": [300]}, timestamp_ms=1)
    test.close()

    assert test.state("fused", "a")["cancels"]["had"] is True
    assert test.read("out") == []


# What is late


class Drops(Computation):
    """Drops late records."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)
    late = "drop"
    late_stream = "too-late"

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("mid", record.value)


class DropsLater(Drops):
    """Drops late records downstream of another part."""

    inputs: ClassVar = {"mid": key_of}
    outputs = ("out",)
    late_stream = "later"


class Late(Computation):
    """Counts the dropped records of another part."""

    inputs: ClassVar = {"later": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("late" if ctx.late else "in time").add(1)


def late_of(*parts: type[Computation]) -> tuple[StreamTest, Any]:
    """Push an on-time record and a late one; also return the counts of a late bundle."""
    fused = Fused("fused", *parts)
    test = StreamTest(Pipeline("p", fused))
    test.push("in", {"k": "a", "waits": [0]}, timestamp_ms=10)
    test.advance_watermark(20)
    test.push("in", {"k": "a", "waits": [0]}, timestamp_ms=10)
    inputs = inputs_of([InboxRecord("a", 10, "in", "", '{"k":"a","waits":[0]}')], late_at=1)
    return test, run_bundle(fused, {}, inputs, watermark=20, now_ms=0).counts


def test_a_late_record_that_its_part_drops_counts_as_late() -> None:
    test, counts = late_of(Drops, Fails)

    assert (counts.records, counts.late, counts.late_between_parts) == (0, 1, 0)
    assert [output.late for output in test.read("too-late")] == [True]
    assert len(test.read("out")) == 1


def test_one_that_is_dropped_by_a_later_part_counts_as_worked_on_and_as_late_inside() -> None:
    """G7: so the inputs are still the sum of processed, late and dead records."""
    test, counts = late_of(Spread, DropsLater)

    assert (counts.records, counts.late, counts.late_between_parts) == (1, 0, 1)
    assert [output.late for output in test.read("later")] == [True]
    assert test.late["fused"] == 1


def test_another_part_may_read_what_is_late() -> None:
    test, _ = late_of(Spread, DropsLater, Late)

    assert test.state("fused", "a")["late"] == {"late": 1}


class DropsTimer(Spread):
    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.drop_late()


def test_a_part_cannot_drop_a_timer() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", DropsTimer, Fails)))
    test.push("in", {"k": "a", "waits": [300]}, timestamp_ms=1)
    test.close()
    assert "must be called for a record, not for a timer" in test.dead[0][1].error


# How long a key is kept


class Remembers(Drops):
    """Keeps its last record for a second."""

    late = "process"
    ttl = timedelta(seconds=1)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["last"] = record.timestamp_ms
        ctx.produce(self.outputs[0], record.value, record.timestamp_ms + 5 * SECOND)


class RemembersLonger(Remembers):
    inputs: ClassVar = {"mid": key_of}
    outputs = ("out",)
    ttl = timedelta(seconds=2)


def test_a_key_is_forgotten_as_one_when_the_last_part_forgets_it() -> None:
    test = StreamTest(Pipeline("p", Fused("fused", Remembers, RemembersLonger)))
    test.push("in", {"k": "a"}, timestamp_ms=1)

    test.advance_watermark(7 * SECOND)  # Behind the latest record of a part: that at 5001.
    assert set(test.state("fused", "a")) == {"remembers", "remembers-longer"}
    test.advance_watermark(7 * SECOND + 1)
    assert test.state("fused", "a") == {}
