"""Joins and deduplication in virtual time, and by a plain script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforward.streams import Computation, Pipeline, StreamTest
from rollforward.streams.operators.deduplicate import Deduplicate
from rollforward.streams.operators.joins import AsOfJoin, IntervalJoin, WindowJoin
from rollforward.streams.operators.windows import Session, Tumbling, Windowed

BOTH = {"left": lambda value: value[0], "right": lambda value: value[0]}
MS = timedelta(milliseconds=1)


def started(computation: Computation) -> StreamTest:
    return StreamTest(Pipeline("p", computation))


def window_join(**options: Any) -> StreamTest:
    return started(WindowJoin("j", Tumbling(10 * MS), inputs=BOTH, output="out", **options))


def interval_join(lower: int = -2, upper: int = 3, lateness: int = 0) -> StreamTest:
    return started(
        IntervalJoin("j", inputs=BOTH, output="out", lower=lower * MS, upper=upper * MS,
                     lateness=lateness * MS, late_stream="late")
    )  # fmt: skip


def as_of_join(max_age: int | None = None, *, outer: bool = True) -> StreamTest:
    age = None if max_age is None else max_age * MS
    return started(AsOfJoin("j", inputs=BOTH, output="out", max_age=age, outer=outer))


def push(test: StreamTest, side: str, at: int, name: str = "k") -> None:
    test.push(side, [name, at], timestamp_ms=at)


def pairs(test: StreamTest) -> list[tuple[int | None, int | None]]:
    """Return the times of the pairs written since the last call."""
    values = [output.value for output in test.read("out")]
    return [(value["left_at"], value["right_at"]) for value in values]


def test_a_window_join_pairs_all_of_one_window_at_its_end() -> None:
    test = window_join()
    for side, at in [("left", 1), ("right", 9), ("left", 2), ("right", 10)]:
        push(test, side, at)
    push(test, "right", 3, name="other")
    test.advance_watermark(10)

    written = test.read("out")
    assert [output.timestamp_ms for output in written] == [10, 10]
    assert written[0].value == {
        "key": "k", "start": 0, "end": 10,
        "left": ["k", 1], "left_at": 1, "right": ["k", 9], "right_at": 9,
    }  # fmt: skip
    assert written[1].value["left_at"] == 2
    test.close()
    assert pairs(test) == []
    assert test.keys("j") == []


def test_an_outer_window_join_shows_what_has_no_partner() -> None:
    test = window_join(outer=True)
    for side, at in [("left", 1), ("right", 12)]:
        push(test, side, at)
    test.close()

    assert pairs(test) == [(1, None), (None, 12)]


def test_a_session_join_pairs_what_two_sessions_have_when_they_become_one() -> None:
    test = started(WindowJoin("j", Session(5 * MS), inputs=BOTH, output="out"))
    for side, at in [("left", 1), ("right", 8), ("left", 4)]:
        push(test, side, at)
    test.close()

    assert pairs(test) == [(1, 8), (4, 8)]


def test_an_interval_join_pairs_at_once_and_forgets_what_can_meet_no_more() -> None:
    """Both ends of the interval are in it."""
    test = interval_join()
    push(test, "left", 10)
    for at in (7, 8, 13, 14):
        push(test, "right", at)
    written = test.read("out")
    assert [(output.value["right_at"], output.timestamp_ms) for output in written] == [
        (8, 10),
        (13, 13),
    ]

    test.advance_watermark(13)
    assert test.state("j", "k")["left"] == [[10, ["k", 10]]]
    test.advance_watermark(14)
    assert "left" not in test.state("j", "k")
    test.close()
    assert test.keys("j") == []


def test_a_record_behind_the_watermark_is_joined_within_the_lateness_only() -> None:
    test = interval_join(lateness=4)
    push(test, "right", 10)
    test.advance_watermark(13)
    push(test, "left", 9)
    push(test, "left", 8)

    assert pairs(test) == [(9, 10)]
    assert (test.late["j"], len(test.read("late"))) == (1, 1)


def test_an_as_of_join_waits_for_the_watermark_and_takes_the_last_before() -> None:
    """One of the same time is included; one that comes later for an earlier time, too."""
    test = as_of_join()
    push(test, "left", 5)
    push(test, "right", 7)
    push(test, "left", 7)
    push(test, "right", 3)
    test.advance_watermark(7)
    assert pairs(test) == [(5, 3)]
    push(test, "left", 9)
    test.advance_watermark(8)
    assert pairs(test) == [(7, 7)]

    push(test, "left", 7)
    push(test, "right", 6)
    assert test.late["j"] == 2
    test.close()
    assert pairs(test) == [(9, 7)]
    assert test.state("j", "k") == {"right": [[7, ["k", 7]]]}


def test_an_as_of_join_takes_nothing_that_is_too_old() -> None:
    test = as_of_join(max_age=3)
    push(test, "right", 1)
    push(test, "left", 4)
    push(test, "left", 5)
    test.advance_watermark(6)

    assert pairs(test) == [(4, 1), (5, None)]
    test.advance_watermark(10)
    assert test.keys("j") == []

    inner = as_of_join(outer=False)
    push(inner, "left", 4)
    inner.close()
    assert pairs(inner) == []


@pytest.mark.parametrize(
    "declare",
    [
        lambda: WindowJoin("j", Tumbling(MS), inputs={"left": BOTH["left"]}, output="out"),
        lambda: interval_join(lower=2, upper=1),
        lambda: interval_join(lateness=-1),
        lambda: as_of_join(max_age=-1),
        lambda: Deduplicate("d", inputs=BOTH, output="out", within=timedelta(0)),
    ],
)
def test_joins_that_cannot_be_are_refused(declare: Any) -> None:
    with pytest.raises(TypeError):
        declare()


# Against a plain script

Event = tuple[str, int]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["left", "right", "watermark"]), st.integers(0, 40)), max_size=40
)


def run(test: StreamTest, events: Sequence[Event]) -> list[tuple[str, int, int]]:
    """Push records; return each with its side, its time and the watermark of that moment."""
    watermark, pushed = 0, []
    for side, at in events:
        if side == "watermark":
            watermark = max(watermark, at)
            test.advance_watermark(watermark)
        else:
            push(test, side, at)
            pushed.append((side, at, watermark))
    return pushed


SPANS = st.sampled_from([(-2, 3), (2, 4), (-4, -2), (0, 0)])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVENTS, SPANS, st.sampled_from([0, 5]))
def test_an_interval_join_is_that_of_a_script(
    events: Sequence[Event], span: tuple[int, int], lateness: int
) -> None:
    """It takes every pair of records that were not too late, and forgets all in the end."""
    lower, upper = span
    test = interval_join(lower, upper, lateness)
    pushed = run(test, events)
    accepted = [(side, at) for side, at, watermark in pushed if at + lateness >= watermark]
    lefts = [at for side, at in accepted if side == "left"]
    rights = [at for side, at in accepted if side == "right"]
    expected = [(a, b) for a in lefts for b in rights if a + lower <= b <= a + upper]

    test.close()
    assert sorted(pairs(test)) == sorted(expected)
    assert test.late["j"] == len(pushed) - len(accepted)
    assert test.keys("j") == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVENTS, st.sampled_from([None, 6]))
def test_an_as_of_join_is_that_of_a_script(events: Sequence[Event], max_age: int | None) -> None:
    """Right records that come before the watermark has passed the left one are seen."""
    test = as_of_join(max_age)
    pushed = run(test, events)
    test.close()

    expected = []
    for side, at, watermark in pushed:
        if side == "left" and at >= watermark:
            on_time = [right for other, right, mark in pushed if other == "right" and mark <= at]
            partner = max((right for right in on_time if right <= at), default=None)
            is_old = partner is not None and max_age is not None and at - partner > max_age
            expected.append((at, None if is_old else partner))
    assert sorted(pairs(test), key=str) == sorted(expected, key=str)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVENTS, st.sampled_from([1, 5]))
def test_deduplication_is_that_of_a_script(events: Sequence[Event], within: int) -> None:
    """The script reads a key's records in order of arrival; late ones are behind the span."""
    test = started(Deduplicate("d", inputs=BOTH, output="out", within=within * MS))
    pushed = run(test, events)

    passed: list[int] = []
    late = 0
    for _, at, watermark in pushed:
        if at + within <= watermark:
            late += 1
        elif all(abs(at - other) >= within for other in passed):
            passed.append(at)
    assert [output.value[1] for output in test.read("out")] == passed
    assert test.late["d"] == late
    test.close()
    assert test.keys("d") == []


def test_a_late_repetition_is_known_as_long_as_it_is_taken() -> None:
    """Forwarded times are remembered for twice the span, because records may be late by one."""
    test = started(Deduplicate("d", inputs=BOTH, output="out", within=5 * MS))
    push(test, "left", 1)
    test.advance_watermark(6)
    push(test, "left", 2)
    push(test, "left", 1)

    assert [output.value[1] for output in test.read("out")] == [1]
    assert test.late["d"] == 1


def test_no_limit_of_time_is_a_span_as_others() -> None:
    """`timedelta.max` is "for ever": every record counts, and nothing becomes a dead letter."""
    forever, by_k = timedelta.max, {"left": key_of_k, "right": key_of_k}
    parts = [
        Windowed("w", Tumbling(timedelta(seconds=1)), inputs={"left": key_of_k}, output="windows",
                 lateness=forever),
        Windowed("s", Session(forever), inputs={"left": key_of_k}, output="sessions"),
        IntervalJoin("i", inputs=by_k, output="pairs", lower=timedelta.min, upper=forever,
                     lateness=forever),
        AsOfJoin("a", inputs=by_k, output="last", max_age=forever),
        Deduplicate("d", inputs={"left": key_of_k}, output="once", within=forever),
    ]  # fmt: skip
    test, now = StreamTest(Pipeline("p", *parts)), 1_800_000_000_000
    for at in (now, now + 5_000):
        test.push("right", {"k": "k"}, timestamp_ms=at)
        test.push("left", {"k": "k"}, timestamp_ms=at)
        test.advance_watermark(at + 4_000)
    test.push("left", {"k": "k"}, timestamp_ms=now)  # Late.
    test.close()

    assert (test.dead, test.late["w"], test.late["i"]) == ([], 0, 0)
    streams = ("windows", "sessions", "pairs", "last", "once")
    assert [len(test.read(stream)) for stream in streams] == [3, 1, 6, 2, 1]
    assert [test.keys(part.name) for part in parts if part.name != "d"] == [[]] * 4


def key_of_k(value: Any) -> str:
    return str(value["k"])
