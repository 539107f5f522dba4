"""Holds: the state of a key keeps the watermark of the outputs back, until it is released."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    PushedRecord,
    PushSource,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.testing import Output
from tests.infra.world import Services
from tests.rollforward.streams.harness import stream_world

SECOND = 1_000


def key_of(value: Any) -> str:
    return str(value["k"])


class Pairs(Computation):
    """Writes each two records of a key as one, at the time of the first."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("pairs",)

    def record(self, ctx: Context, record: Record) -> None:
        if "first" not in ctx.state:
            ctx.state["first"] = record.value["n"]
            ctx.hold(record.timestamp_ms)
            return
        value = {"k": ctx.key, "sum": ctx.state.pop("first") + record.value["n"]}
        ctx.produce("pairs", value, ctx.release())


COUNTED = Windowed("counted", Tumbling(timedelta(seconds=10)), inputs={"pairs": key_of}, output="n")


def pair_test(*computations: Computation | type[Computation]) -> StreamTest:
    return StreamTest(Pipeline("holds", *(computations or (Pairs, COUNTED))))


def push(test: StreamTest, *seconds: float, key: str = "a") -> None:
    for second in seconds:
        test.push("in", {"k": key, "n": 1}, timestamp_ms=round(second * SECOND))


def windows(test: StreamTest) -> list[tuple[str, int, int, bool]]:
    written = test.read("n")
    return [(o.value["key"], o.value["start"], o.value["records"], o.late) for o in written]


def test_a_window_built_from_a_held_state_is_never_late() -> None:
    """G18: it waits for the output, however far its inputs have come; other keys wait with it."""
    test = pair_test()
    push(test, 1)
    push(test, 2, 3, key="b")

    test.advance_watermark(60 * SECOND)
    assert windows(test) == []

    push(test, 70)
    assert windows(test) == [("a", 0, 1, False), ("b", 0, 1, False)]
    assert test.late.total() == 0


def test_a_key_without_a_hold_holds_nothing() -> None:
    """Released, it lets the watermark go, although the key has a state."""

    class Releases(Pairs):
        name = "pairs"

        def record(self, ctx: Context, record: Record) -> None:
            super().record(ctx, record)
            if record.value["n"] == 2:
                held = ctx.held_ms
                ctx.state["released at"] = [held, ctx.release(), ctx.held_ms, ctx.release()]

    test = pair_test(Releases, COUNTED)
    push(test, 2, 3, key="b")
    test.push("in", {"k": "a", "n": 2}, timestamp_ms=SECOND)
    test.advance_watermark(60 * SECOND)

    assert windows(test) == [("b", 0, 1, False)]
    assert test.state("pairs", "a")["released at"] == [SECOND, SECOND, None, None]


def test_the_end_of_the_inputs_ends_a_hold_behind_the_last_timers() -> None:
    """What a timer then writes may still have the held time; no hook sees the hold's end."""

    class Ends(Pairs):
        name = "pairs"

        def record(self, ctx: Context, record: Record) -> None:
            super().record(ctx, record)
            ctx.set_timer("end", record.timestamp_ms + 1_000 * SECOND)

        def timer(self, ctx: Context, timer: Timer) -> None:
            ctx.state.list("fired").append(timer.tag)
            ctx.produce("pairs", {"k": ctx.key, "sum": 0}, SECOND)

    test = pair_test(Ends, COUNTED)
    push(test, 1)
    test.close()

    assert windows(test) == [("a", 0, 1, False)]
    assert test.state("pairs", "a")["fired"] == ["end"]
    assert test.timers("pairs", "a") == []


def test_a_hold_is_no_timer_of_a_test() -> None:
    """It was listed as one without a tag, at the end of all times."""
    test = pair_test(Pairs, COUNTED)
    push(test, 1)

    assert test.timers("pairs", "a") == []
    assert test.keys("pairs") == ["a"]


def test_a_forgotten_key_holds_nothing() -> None:
    class Forgets(Pairs):
        name = "pairs"
        ttl = timedelta(minutes=1)

    test = pair_test(Forgets, COUNTED)
    push(test, 1)
    push(test, 2, 3, key="b")
    test.advance_watermark(60 * SECOND)
    before = windows(test)
    test.advance_watermark(62 * SECOND)

    assert before == []
    assert windows(test) == [("b", 0, 1, False)]
    assert test.keys("pairs") == []


class Told(Computation):
    """Does what a record says, and notes what came of it."""

    name = "told"
    inputs: ClassVar = {"in": key_of}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        for verb, at in record.value["do"]:
            if verb == "hold":
                ctx.state.list("held").append(ctx.hold(at))
            elif verb == "produce":
                ctx.produce("out", record.value["k"], at)
            else:
                ctx.state.list("held").append(ctx.release())


def tell(test: StreamTest, at: int, *verbs: tuple[str, int]) -> None:
    test.push("in", {"k": "a", "do": [list(verb) for verb in verbs]}, timestamp_ms=at)


@pytest.mark.parametrize(
    ("first", "then", "expected", "late"),
    [
        # What was held in time is in time, also when a late record writes it.
        ((60, [("hold", 60)]), (10, [("produce", 60)]), 60, False),
        ((60, [("hold", 60)]), (10, [("release", 0), ("produce", 60)]), 60, False),
        ((60, [("hold", 60)]), (80, [("hold", 90), ("produce", 60)]), 60, False),
        # A late record does not move a hold, and what it writes behind it is late.
        ((60, [("hold", 60)]), (10, [("hold", 10), ("produce", 10)]), 10, True),
        ((60, [("hold", 60)]), (10, [("hold", 70), ("produce", 60)]), 60, False),
        # What a late record holds is late, whoever writes it.
        ((10, [("hold", 10)]), (80, [("produce", 10)]), 10, True),
        ((10, [("hold", 10)]), (80, [("produce", 80)]), 80, False),
        ((10, [("hold", 10)]), (12, [("produce", 12)]), 12, True),
    ],
)
def test_an_output_is_as_late_as_what_held_it(
    first: tuple[int, list[Any]], then: tuple[int, list[Any]], expected: int, late: bool
) -> None:
    test = StreamTest(Pipeline("holds", Told))
    test.advance_watermark(50)
    tell(test, first[0], *first[1])
    tell(test, then[0], *then[1])

    assert test.dead == []
    assert test.read("out") == [Output("a", expected, late=late)]


def test_a_late_record_gets_the_time_that_is_held() -> None:
    """It replaces a late hold, and none of a record that was on time."""
    test = StreamTest(Pipeline("holds", Told))
    test.advance_watermark(50)
    for at, wanted in ((10, 10), (20, 20), (60, 60), (30, 30), (40, 70)):
        tell(test, at, ("hold", wanted))

    assert test.state("told", "a")["held"] == [10, 20, 60, 60, 70]


@pytest.mark.parametrize(
    ("first", "then", "bound"),
    [
        ([], [("produce", 79)], "its input's, 80"),
        ([], [("hold", 79)], "its input's, 80"),
        ([("hold", 70)], [("produce", 69)], "the hold's, 70"),
        ([("hold", 70)], [("hold", 69)], "the hold's, 70"),
        ([("hold", 90)], [("produce", 79)], "its input's, 80"),
        # The hold as the hook found it counts, not one that the hook has made itself.
        ([("hold", 70), ("release", 0)], [("produce", 70)], "its input's, 80"),
    ],
)
def test_a_time_before_input_and_hold_is_refused(
    first: Sequence[tuple[str, int]], then: Sequence[tuple[str, int]], bound: str
) -> None:
    """And nothing of the hook stays."""
    test = StreamTest(Pipeline("holds", Told))
    tell(test, 60, *first)
    before = test.state("told", "a")
    tell(test, 80, ("hold", 95), *then)

    assert f"must not be before {bound}, got" in test.dead[0][1].error
    assert test.state("told", "a") == before
    tell(test, 85, ("release", 0))
    assert test.state("told", "a")["held"][-1] != 95


@pytest.mark.parametrize("at", [-1, FOREVER, 1.5, True, "1", None])
def test_a_hold_at_no_time_is_refused(at: Any) -> None:
    test = StreamTest(Pipeline("holds", Told))
    tell(test, 1, ("hold", at))

    assert "a time must be whole milliseconds" in test.dead[0][1].error


def test_a_weak_computation_holds_nothing() -> None:
    class Weak(Computation):
        inputs: ClassVar = {"in": key_of}
        weak = idempotent = True

        def record(self, ctx: Context, record: Record) -> None:
            if record.value["n"]:
                ctx.hold(record.timestamp_ms)
            else:
                ctx.release()

    for n in (0, 1):
        test = StreamTest(Pipeline("holds", Weak))
        test.push("in", {"k": "a", "n": n}, timestamp_ms=1)
        assert test.dead[0][1].error == "WeakError: weak is weak: it has no holds"


def test_a_hold_cannot_be_cancelled_as_a_timer() -> None:
    class Cancels(Pairs):
        name = "pairs"

        def record(self, ctx: Context, record: Record) -> None:
            super().record(ctx, record)
            ctx.state["had"] = ctx.cancel_timer("")

    test = pair_test(Cancels, COUNTED)
    push(test, 1, 70)
    test.advance_watermark(90 * SECOND)

    assert test.state("pairs", "a")["had"] is False
    assert windows(test) == [("a", 0, 1, False)]


class Breaks(Pairs):
    """Its timer, which would release, fails."""

    name = "pairs"
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        ctx.set_timer("end", record.timestamp_ms + SECOND)

    def timer(self, ctx: Context, timer: Timer) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_dead_timer_ends_the_hold_that_it_might_have_released(is_fused: bool) -> None:
    """G7, G18: one bad key stops no other; the rest of its state stays for a replay."""
    fused = Fused("fused", Breaks, Twice, outputs=["pairs"])
    test = pair_test(fused if is_fused else Breaks, COUNTED)
    push(test, 1)
    push(test, 2, 3, key="b")
    test.advance_watermark(60 * SECOND)

    assert len(test.dead) == 2
    assert windows(test) == [("b", 0, 1, False)]


class Twice(Pairs):
    """The same, of another stream, so that two parts hold for one key."""

    name = "twice"
    inputs: ClassVar = {"more": key_of}


def test_each_fused_part_has_its_hold() -> None:
    """One that releases its own leaves the other's."""
    test = pair_test(Fused("fused", Pairs, Twice, outputs=["pairs"]), COUNTED)
    push(test, 1)
    test.push("more", {"k": "a", "n": 1}, timestamp_ms=12 * SECOND)
    test.advance_watermark(60 * SECOND)
    push(test, 70)
    first = windows(test)
    test.push("more", {"k": "a", "n": 1}, timestamp_ms=71 * SECOND)

    assert first == [("a", 0, 1, False)]
    assert windows(test) == [("a", 10_000, 1, False)]


def test_a_fused_part_with_readers_among_the_parts_cannot_hold() -> None:
    test = pair_test(Fused("fused", Pairs, COUNTED))
    push(test, 1)

    assert "pairs cannot have holds" in test.dead[0][1].error


PAIRS = Pipeline(
    "pairs-on-services", Pairs, COUNTED, intervals=2,
    sources=[PushSource("in", disorder=timedelta(0))],
)  # fmt: skip


def test_a_hold_is_stored_with_the_state(services: Services) -> None:
    """G18: on the services, by workers and ticks; a hold counts as no timer."""
    world = stream_world(services, PAIRS)

    def come(*records: tuple[str, int, str]) -> None:
        pushed = [PushedRecord(id_, {"k": key, "n": 1}, at) for id_, at, key in records]
        with world.context():
            PAIRS.push(world.clients, "in", pushed)
        world.settle()

    come(("1", 1_000, "a"), ("2", 2_000, "b"), ("3", 3_000, "b"))
    come(("4", 60_000, "c"))
    with world.context():
        held = PAIRS.status(world.clients)
    come(("5", 70_000, "a"))
    with world.context():
        released = PAIRS.status(world.clients)
        PAIRS.close(world.clients, "in")
    world.settle()
    with world.context():
        ended = PAIRS.status(world.clients)

    counts = [each.computations["counted"].timers for each in (held, released, ended)]
    assert counts == [0, 2, 2]  # Windows of "a" and "b".
    pairs = [each.computations["pairs"] for each in (held, released, ended)]
    assert [each.hold for each in pairs] == [1_000, 60_000, None]
    assert [each.waiting_timers for each in pairs] == [0, 0, 0]
    assert ended.computations["counted"].late == 0
