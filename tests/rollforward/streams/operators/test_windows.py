"""Windows in virtual time: bounds, panes, late records, sessions; and by a plain script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforward.streams import Pipeline, StreamTest
from rollforward.streams.model.records import FOREVER
from rollforward.streams.operators.aggregates import Combine, collect, count, top, total
from rollforward.streams.operators.windows import (
    CountWindows,
    Enclosing,
    Session,
    Sliding,
    Tumbling,
    Windowed,
    Windows,
)

SECOND = 1_000
SECONDS_10 = timedelta(seconds=10)
BY_KEY = {"in": lambda value: value["key"]}


def windowed(windows: Windows, **options: Any) -> StreamTest:
    computation = Windowed("w", windows, inputs=BY_KEY, output="out", late_stream="late", **options)
    return StreamTest(Pipeline("p", computation))


def push(test: StreamTest, *seconds: float, key: str = "k", n: int = 1) -> None:
    for second in seconds:
        test.push("in", {"key": key, "n": n}, timestamp_ms=round(second * SECOND))


def results(test: StreamTest) -> list[tuple[str, float, float, Any]]:
    """Return the results since the last call: pane, start and end in seconds, value."""
    written = test.read("out")
    return [
        (value["pane"], value["start"] / SECOND, value["end"] / SECOND, value["value"])
        for value in (output.value for output in written)
    ]


def test_a_tumbling_window_ends_with_the_watermark_and_leaves_nothing() -> None:
    """Its end belongs to the next one; its result has the time of its end."""
    test = windowed(Tumbling(SECONDS_10))
    push(test, 0, 9.999, 10)

    test.advance_watermark(10 * SECOND - 1)
    assert test.read("out") == []

    test.advance_watermark(10 * SECOND)
    [output] = test.read("out")
    bounds = {"key": "k", "start": 0, "end": 10_000}
    assert output.value == {**bounds, "pane": "on-time", "records": 2, "value": 2}
    assert (output.timestamp_ms, output.late) == (10_000, False)

    test.close()
    assert results(test) == [("on-time", 10, 20, 1)]
    assert test.keys("w") == []


def test_a_record_is_in_every_sliding_window_around_it() -> None:
    test = windowed(Sliding(SECONDS_10, timedelta(seconds=5)))
    push(test, 12, 14.999, 15)
    test.close()

    assert results(test) == [
        ("on-time", 5, 15, 2),
        ("on-time", 10, 20, 3),
        ("on-time", 15, 25, 1),
    ]


def test_a_late_record_counts_in_the_windows_that_are_open_and_is_dropped_only_after_all() -> None:
    test = windowed(Sliding(SECONDS_10, timedelta(seconds=5)))
    push(test, 12)
    test.advance_watermark(15 * SECOND)
    results(test)
    push(test, 13)
    assert test.late["w"] == 0

    test.advance_watermark(20 * SECOND)
    push(test, 14)
    assert test.late["w"] == 1
    assert [output.value["key"] for output in test.read("late")] == ["k"]

    test.close()
    assert results(test) == [("on-time", 10, 20, 2)]


def test_an_early_pane_that_fails_ends_no_others_of_its_window() -> None:
    """Its timer is a dead letter, and the next record sets another one."""

    def result(total: int) -> int:
        if total == 1:
            raise ValueError("one is not enough")
        return total

    combine = Combine(lambda: 0, lambda total, record: total + 1, lambda a, b: a + b, result)
    test = windowed(Tumbling(timedelta(seconds=60)), early=SECONDS_10, combine=combine)
    push(test, 1)
    test.advance_watermark(10 * SECOND)
    push(test, 12)
    test.advance_watermark(20 * SECOND)

    assert len(test.dead) == 1
    assert results(test) == [("early", 0, 60, 2)]


def test_early_results_come_while_the_watermark_moves_and_only_if_something_has_changed() -> None:
    test = windowed(Tumbling(timedelta(seconds=60)), early=SECONDS_10)
    push(test, 5, 31)

    test.advance_watermark(9 * SECOND)
    assert results(test) == []
    test.advance_watermark(29 * SECOND)
    assert results(test) == [("early", 0, 60, 2)]
    test.advance_watermark(40 * SECOND)
    assert results(test) == []
    push(test, 41)
    test.advance_watermark(55 * SECOND)
    assert results(test) == [("early", 0, 60, 3)]
    push(test, 58)
    test.close()
    assert results(test) == [("on-time", 0, 60, 4)]
    assert test.keys("w") == []


def test_a_late_record_is_counted_again_until_the_lateness_has_passed() -> None:
    """Also if it is the first of its window."""
    test = windowed(Tumbling(SECONDS_10), lateness=timedelta(seconds=5))
    push(test, 1)
    test.advance_watermark(14 * SECOND)
    push(test, 2)
    push(test, 3, key="other")

    assert results(test) == [("on-time", 0, 10, 1), ("late", 0, 10, 2), ("late", 0, 10, 1)]

    test.advance_watermark(15 * SECOND)
    assert test.keys("w") == []
    push(test, 4)
    assert results(test) == []
    assert test.late["w"] == 1


def test_a_window_of_late_records_is_in_time_as_soon_as_it_has_one_that_was() -> None:
    test = windowed(Tumbling(SECONDS_10))
    test.advance_watermark(5 * SECOND)
    push(test, 1)
    push(test, 1, key="other")
    push(test, 6)
    test.close()

    written = {output.value["key"]: output for output in test.read("out")}
    assert {key: output.late for key, output in written.items()} == {"k": False, "other": True}
    assert written["k"].value["records"] == 2


def test_a_session_ends_after_a_gap_and_not_before() -> None:
    """A whole gap of silence parts two sessions."""
    test = windowed(Session(SECONDS_10), combine=collect())
    push(test, 1, 10.999, 30, 40)
    test.close()

    windows = [(start, end, len(values)) for _, start, end, values in results(test)]
    assert windows == [(1, 20.999, 2), (30, 40, 1), (40, 50, 1)]
    assert test.keys("w") == []


def test_a_record_between_two_sessions_makes_them_one() -> None:
    """Their records are in the order of the sessions; one timer remains."""
    test = windowed(Session(SECONDS_10), combine=collect())
    for n, at in enumerate((20, 3, 12)):
        push(test, at, n=n)

    assert [timer.at_ms for timer in test.timers("w", "k")] == [30 * SECOND]
    test.close()
    [(pane, start, end, values)] = results(test)
    assert (pane, start, end) == ("on-time", 3, 30)
    assert [value["n"] for value in values] == [1, 0, 2]


def test_a_late_record_widens_a_session_that_is_open_and_the_session_stays_in_time() -> None:
    """Its own gap has passed, the session's has not."""
    test = windowed(Session(timedelta(seconds=5)))
    push(test, 12)
    test.advance_watermark(16 * SECOND)
    push(test, 9, 1)
    test.close()

    [output] = test.read("out")
    assert (output.value["start"], output.value["end"], output.late) == (9_000, 17_000, False)
    assert test.late["w"] == 1


def test_a_late_record_reopens_a_session_within_the_lateness() -> None:
    test = windowed(Session(SECONDS_10), lateness=timedelta(seconds=20))
    push(test, 1)
    test.advance_watermark(15 * SECOND)
    push(test, 9)
    assert results(test) == [("on-time", 1, 11, 1)]
    test.advance_watermark(19 * SECOND)
    assert results(test) == [("on-time", 1, 19, 2)]
    push(test, 2)
    assert results(test) == [("late", 1, 19, 3)]
    test.advance_watermark(39 * SECOND)
    assert test.keys("w") == []


def test_windows_of_records_are_full_by_number() -> None:
    """In the order in which they come; the rest waits."""
    counted = CountWindows("w", 3, inputs=BY_KEY, output="out", combine=total(lambda v: v["n"]))
    test = StreamTest(Pipeline("p", counted))
    for n, at in enumerate((5, 2, 4, 7), start=1):
        push(test, at, n=n)
    test.close()

    [output] = test.read("out")
    assert output.value == {"key": "k", "start": 2_000, "end": 5_001, "records": 3, "value": 6}
    assert test.state("w", "k")["window"]["records"] == 1


def test_results_of_windows_are_counted_in_the_larger_window_around_them() -> None:
    """Through three stages; the last small window of a large one has its end in common with it."""
    by_all = {"small": lambda result: "all"}
    test = StreamTest(
        Pipeline(
            "p",
            Windowed("s", Tumbling(timedelta(seconds=1)), inputs=BY_KEY, output="small"),
            Windowed(
                "m",
                Enclosing(SECONDS_10),
                inputs=by_all,
                output="middle",
                combine=top(2, lambda result: result["key"], lambda result: result["value"]),
            ),
            Windowed("l", Enclosing(timedelta(seconds=30)), inputs={"middle": lambda _: "all"},
                     output="out", combine=collect()),
        )
    )  # fmt: skip
    for at, key in [(0, "c"), (1, "a"), (9.999, "a"), (9.999, "b"), (10, "a"), (29.999, "b")]:
        push(test, at, key=key)
    test.advance_watermark(30 * SECOND - 1)
    assert test.read("out") == []
    test.advance_watermark(30 * SECOND + 2)

    [(pane, start, end, values)] = results(test)
    assert (pane, start, end) == ("on-time", 0, 30)
    assert [value["value"] for value in values] == [[["a", 2], ["b", 1]], [["a", 1]], [["b", 1]]]
    assert not any(output.late for output in test.read("middle"))
    assert sum(test.late.values()) == 0


def test_windows_of_one_start_are_two_if_their_ends_differ() -> None:
    """`Enclosing()` is the same window: sessions of one start and other ends are not mixed."""
    sessions = Windowed("s", Session(SECONDS_10), inputs=BY_KEY, output="sessions")
    every = Windowed("w", Enclosing(), inputs={"sessions": lambda _: "all"}, output="out")
    test = StreamTest(Pipeline("p", sessions, every))
    push(test, 0, 5, key="long")
    push(test, 0, key="short")
    push(test, 0, key="brief")
    test.advance_watermark(10 * SECOND)
    push(test, 14, key="long")
    push(test, 20, key="short")
    test.close()

    assert results(test) == [
        ("on-time", 0, 10, 2),
        ("on-time", 0, 24, 1),
        ("on-time", 20, 30, 1),
    ]
    assert test.keys("w") == []


def test_a_result_that_repeats_others_is_not_added_up() -> None:
    small = Windowed(
        "s", Tumbling(SECONDS_10), inputs=BY_KEY, output="small", early=timedelta(seconds=1)
    )
    large = Windowed("l", Enclosing(), inputs={"small": lambda _: "all"}, output="out")
    test = StreamTest(Pipeline("p", small, large))
    push(test, 1)
    test.close()
    assert [value for *_, value in results(test)] == [1]

    test = StreamTest(Pipeline("p", small, large))
    push(test, 1)
    test.advance_watermark(2 * SECOND)
    test.close()
    assert [value for *_, value in results(test)] == [1]
    assert 'must be "on-time"' in test.dead[0][1].error


def test_a_window_of_results_waits_for_the_latest_of_them() -> None:
    """Results of the same bounds come one stage after the other: the window is due after each."""
    test = windowed(Enclosing())
    for at in (10_000, 10_003):
        test.push("in", {"key": "k", "start": 0, "end": 10_000, "pane": "on-time"}, timestamp_ms=at)
    test.advance_watermark(10_003)
    assert results(test) == []
    test.close()
    assert results(test) == [("on-time", 0, 10, 2)]


@pytest.mark.parametrize(
    "combine", [collect(limit=2), top(1, lambda value: str(value["n"]), names=2)]
)
def test_a_window_has_bounds_and_the_record_that_breaks_them_is_dead(combine: Combine) -> None:
    test = windowed(Tumbling(SECONDS_10), combine=combine)
    for n in range(3):
        push(test, n, n=n)
    test.close()

    assert len(test.dead) == 1
    assert [output.value["records"] for output in test.read("out")] == [2]


@pytest.mark.parametrize("name", [200, None, True, 1.5])
def test_a_name_that_is_no_text_is_a_dead_letter_and_not_a_sum_that_is_lost(name: Any) -> None:
    """JSON makes a text of the name, so the next bundle counted beside it, and one sum was lost."""
    test = windowed(Tumbling(SECONDS_10), combine=top(3, of=lambda value: value["n"]))
    for _ in range(3):
        push(test, 1, n=name)
    push(test, 1, n="text")  # type: ignore[arg-type]
    test.close()

    assert len(test.dead) == 3
    assert test.dead[0][1].error == f"BadRecordError: a name must be a text, got {name!r}"
    assert results(test) == [("on-time", 0, 10, [["text", 1]])]


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Tumbling(timedelta(0)),
        lambda: Sliding(timedelta(seconds=1), timedelta(seconds=2)),
        lambda: Sliding(timedelta(hours=1), timedelta(seconds=1)),
        lambda: Session(timedelta(seconds=-1)),
        lambda: Enclosing(timedelta(0)),
        lambda: windowed(Tumbling(SECONDS_10), lateness=timedelta(-1)),
        lambda: windowed(Tumbling(SECONDS_10), early=timedelta(0)),
        lambda: CountWindows("w", 0, inputs=BY_KEY, output="out"),
    ],
)
def test_windows_that_cannot_be_are_refused(declare: Any) -> None:
    with pytest.raises(TypeError):
        declare()


# Against a plain script

Event = tuple[str, int]
# Pushes of two keys, and rises of the watermark, in any order: with much disorder.
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "watermark"]), st.integers(0, 60)), max_size=40
)


def run(test: StreamTest, events: Iterable[Event]) -> tuple[list[tuple[str, int, int]], int]:
    """Run a pipeline; return the pushed (key, second, watermark) tuples and the last watermark."""
    watermark, pushed = 0, []
    for key, second in events:
        if key == "watermark":
            watermark = max(watermark, second)
            test.advance_watermark(watermark * SECOND)
        else:
            push(test, second, key=key)
            pushed.append((key, second, watermark))
    test.close()
    return pushed, watermark


def sliding_counts(pushed: Sequence[tuple[str, int, int]], size: int, every: int) -> Any:
    """Count the records of each open window, and the late ones, by a plain script."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    late = 0
    for key, second, watermark in pushed:
        starts = [start for start in range(-size, 61) if start % every == 0]
        around = [start for start in starts if start <= second < start + size]
        still = [start for start in around if start + size > watermark]
        late += not still
        for start in still:
            counts[key, start] += 1
    return counts, late


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVENTS, st.sampled_from([(10, 10), (10, 5), (9, 2)]))
def test_sliding_windows_count_as_a_script_does(
    events: Sequence[Event], shape: tuple[int, int]
) -> None:
    size, every = shape
    test = windowed(Sliding(timedelta(seconds=size), timedelta(seconds=every)))
    pushed, _ = run(test, events)
    counts, late = sliding_counts(pushed, size, every)

    values = [output.value for output in test.read("out")]
    assert {(v["key"], v["start"] // SECOND): v["value"] for v in values} == counts
    assert len(values) == len(counts)
    assert test.late["w"] == late
    assert test.keys("w") == []


def sessions(seconds: Iterable[int], gap: int) -> list[tuple[int, int, int]]:
    """Return start, end and number of records of each session, by a plain script."""
    merged: list[tuple[int, int, int]] = []
    for second in sorted(seconds):
        if merged and second < merged[-1][1]:
            start, _, records = merged.pop()
            merged.append((start, second + gap, records + 1))
        else:
            merged.append((second, second + gap, 1))
    return merged


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EVENTS)
def test_sessions_are_those_of_a_script_that_sorts_first(events: Sequence[Event]) -> None:
    """With all the lateness there can be, the last result of each session is the true one."""
    test = windowed(Session(timedelta(seconds=7)), lateness=timedelta(seconds=100))
    pushed, watermark = run(test, events)

    final: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for value in (output.value for output in test.read("out")):
        key, start, end = value["key"], value["start"] // SECOND, value["end"] // SECOND
        others = [(a, b, n) for a, b, n in final[key] if not (start <= a and b <= end)]
        final[key] = [*others, (start, end, value["records"])]
    for key in ("a", "b"):
        assert sorted(final[key]) == sessions([at for k, at, _ in pushed if k == key], 7)
    assert test.late["w"] == 0
    assert test.watermark("w") == FOREVER
    assert watermark <= 60


@settings(max_examples=40, deadline=None, derandomize=True)
@given(EVENTS)
def test_every_record_is_in_one_session_or_late(events: Sequence[Event]) -> None:
    test = windowed(Session(timedelta(seconds=7)), combine=count())
    pushed, _ = run(test, events)

    in_sessions = sum(output.value["records"] for output in test.read("out"))
    assert in_sessions + test.late["w"] == len(pushed)
    assert test.keys("w") == []
