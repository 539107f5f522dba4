"""Declarations of fused computations: allowed parts, refused parts, versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    PushSource,
    Record,
    StreamTest,
    testing,
)
from rollforward.streams.graph.plan import running_computations
from rollforward.streams.model.errors import UnreadableStateError
from rollforward.streams.model.state import JsonCodec
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Session, Tumbling, Windowed
from rollforward.streams.topology.changes import replace
from tests.rollforward.streams.operators.test_fused import (
    COUNT,
    Follow,
    Keeps,
    Remembers,
    Spread,
    Watch,
    key_of,
)
from tests.rollforward.streams.simulator.driver import Came, Desk

# Versions


class Tally(Computation):
    inputs: ClassVar = {"in": key_of}
    outputs = ("mid",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("count").add(1)
        ctx.produce("mid", record.value)


class LaterTally(Tally):
    name = "tally"

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"count": 100 * version + state["count"]}


def test_another_version_goes_on_with_the_states_of_its_parts() -> None:
    second = Fused("fused", LaterTally, Follow, version=2, reads=[1])
    initial = Fused("fused", Tally, Follow, Watch)
    test = StreamTest(Pipeline("p", initial, standby=[second]))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    test.replace("fused", 2)
    test.push("in", {"k": "a"}, timestamp_ms=2)

    assert test.state("fused", "a") == {"tally": {"count": 102}, "follow": {"mid": [1, 2]}}


def test_what_a_part_that_is_not_there_any_more_has_left_is_forgotten_if_that_is_said() -> None:
    second = Fused("fused", Tally, Watch, version=2, reads=[1], forgets=["spread"])
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Watch), standby=[second]))
    test.push("in", {"k": "a", "waits": [300]}, timestamp_ms=1)
    test.replace("fused", 2)
    test.close()

    assert test.read("seen") == []
    assert not test.dead


def test_a_part_that_is_forgotten_holds_no_watermark_any_more() -> None:
    """G18: all windows downstream waited for it for ever."""
    minute = timedelta(minutes=1)
    held = Windowed("w", Session(minute), inputs={"in": key_of}, output="w", stamp="earliest")
    second = Fused("fused", Tally, Watch, version=2, reads=[1], forgets=["w"], outputs=["mid"])
    per_minute = Windowed("counts", Tumbling(minute), inputs={"mid": key_of}, output="counts")
    first = Fused("fused", Tally, held, outputs=["mid"])
    test = StreamTest(Pipeline("p", first, per_minute, standby=[second]))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    test.replace("fused", 2)
    test.advance_watermark(200_000)

    assert [output.value["records"] for output in test.read("counts")] == [1]


def test_a_timer_of_no_part_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """G16: nothing that was set is dropped in silence, if it was set behind the check."""
    monkeypatch.setattr(testing, "check_state", lambda code, key, state: None)
    second = Fused("fused", Tally, Watch, version=2, reads=[1])
    test = StreamTest(Pipeline("p", Fused("fused", Spread, Watch), standby=[second]))
    test.push("in", {"k": "a", "waits": [300]}, timestamp_ms=1)
    test.replace("fused", 2)
    test.close()

    [(_, failure)] = test.dead
    assert "spread is no part of fused" in failure.error


class Alone(Tally):
    """The unfused version of the computation, with timers, and optionally a state."""

    name = "fused"
    has_state = True

    def record(self, ctx: Context, record: Record) -> None:
        if self.has_state:
            super().record(ctx, record)
        ctx.set_timer("end", 9_000)


class Last(Computation):
    inputs: ClassVar = {"mid": key_of}


class AloneWithTimers(Alone):
    name = "fused"
    has_state = False


@pytest.mark.parametrize(
    ("alone", "message"), [(Alone, "count is no part"), (AloneWithTimers, "end is no part")]
)
def test_parts_do_not_take_the_place_of_what_was_not_fused(
    alone: type[Computation], message: str
) -> None:
    """G16: its states and timers would be lost; the trial finds them, and nothing is changed."""
    second = Fused("fused", Tally, Last, outputs=["mid"], version=2, reads=[1])
    sources = [PushSource("in", disorder=timedelta(0))]
    desk = Desk(Pipeline("p", alone, standby=[second], sources=sources, intervals=1))
    desk.push(Came("1", "a", 1_000), watermark=2_000)
    desk.run()

    with pytest.raises(UnreadableStateError, match=message):
        desk.do(replace(desk.environment, "fused", 2))

    assert running_computations(desk.head)["fused"].version == 1


# What cannot be fused


class Sent(Follow):
    outputs = ("mid",)
    inputs: ClassVar = {"windows": key_of}


class Writes(Tally):
    """Writes what others write, too."""


class Shouts(Tally):
    codec = JsonCodec()  # Another one than all have.


class Second(Tally):
    version = 2


class Weak(Tally):
    weak = idempotent = True


class Most(Tally):
    percentile = 90


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Spread], "at least two parts"),
        ([Spread, Spread], "with different names"),
        ([COUNT, Sent], "must not form a cycle"),
        ([Weak, Watch], "weak cannot be fused: leave `weak` out"),
        ([Most, Watch], "it has a `percentile`"),
        ([Shouts, Watch], "it has a `codec`"),
        ([Second, Watch], "it has a `version`"),
        ([Fused("inner", Tally, Watch), Watch], "it is fused itself"),
        ([Remembers, Watch], "all parts must have a `ttl`, or none"),
    ],
)
def test_what_cannot_be_fused_is_refused(parts: Sequence[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Pipeline("p", Fused("fused", *parts))


def test_a_stream_that_no_part_writes_cannot_leave() -> None:
    with pytest.raises(TypeError, match="no part writes 'nothing'"):
        Fused("fused", Spread, Watch, outputs=["nothing"])


def test_what_stays_inside_has_no_readers_and_no_writers_outside() -> None:
    fused = Fused("fused", Spread, Watch)
    with pytest.raises(TypeError, match="count reads 'mid', which is an inner stream"):
        Pipeline("p", fused, COUNT, Follow)
    with pytest.raises(TypeError, match="writes writes 'mid', which is an inner stream"):
        Pipeline("p", fused, Writes)


def test_a_stream_that_parts_read_can_leave_as_well() -> None:
    fused = Fused("fused", Spread, Watch, outputs=["mid", "seen"])
    test = StreamTest(Pipeline("p", fused, Keeps))
    test.push("in", {"k": "a", "waits": [0], "many": []}, timestamp_ms=1)

    assert len(test.read("seen")) == len(test.read("mid")) == 1
    assert "kept" in test.state("keeps", "a")


def test_an_output_before_its_input_or_of_an_unknown_stream_fails() -> None:
    class PercentileWatermarks(Tally):
        name = "early"

        def record(self, ctx: Context, record: Record) -> None:
            ctx.produce(record.value["to"], record.value, record.timestamp_ms - 1)

    test = StreamTest(Pipeline("p", Fused("fused", PercentileWatermarks, Watch)))
    for stream in ("mid", "nowhere"):
        test.push("in", {"k": "a", "to": stream}, timestamp_ms=5)

    assert [failure.error.partition(":")[0] for _, failure in test.dead] == [
        "TooEarlyError", "UnknownStreamError",
    ]  # fmt: skip
