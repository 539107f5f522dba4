"""Results of windows with the time of their earliest record, at which they hold the watermark."""

from __future__ import annotations

import json
import operator
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.streams import Pipeline, StreamTest
from rollforward.streams.execution.bundle_runner import run_bundle
from rollforward.streams.model.bundle import DEAD_TIMERS, KeyedRecord
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.operators.aggregates import Combine, total
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.hot_keys import fan_out
from rollforward.streams.operators.windows import (
    CountWindows,
    Enclosing,
    Session,
    Tumbling,
    Windowed,
    Windows,
)

SECOND = 1_000
GAP = timedelta(seconds=10)
MINUTE = timedelta(minutes=1)


def by_key(value: Any) -> str:
    return str(value["key"])


def stamped(windows: Windows, **options: Any) -> Windowed:
    return Windowed(
        "w", windows, inputs={"in": by_key}, output="out", stamp="earliest", **options
    )  # fmt: skip


# Counts sessions by the minute in which they began.
PER_MINUTE = Windowed("minutes", Tumbling(MINUTE), inputs={"out": by_key}, output="per-minute")


def push(test: StreamTest, *seconds: float, key: str = "k") -> None:
    for second in seconds:
        test.push("in", {"key": key}, timestamp_ms=round(second * SECOND))


def results(test: StreamTest, stream: str = "out") -> list[tuple[str, float, float, float, bool]]:
    """Return the results since the last call: pane, start and end, its own time, whether late."""
    return [
        (
            output.value["pane"],
            output.value["start"] / SECOND,
            output.value["end"] / SECOND,
            output.timestamp_ms / SECOND,
            output.late,
        )
        for output in test.read(stream)
    ]


def test_a_session_has_the_time_of_its_earliest_record_and_is_not_late() -> None:
    """The minute in which it began waits for its end."""
    test = StreamTest(Pipeline("p", stamped(Session(GAP)), PER_MINUTE))
    push(test, 58, 55, 64, 70)
    test.advance_watermark(79 * SECOND)
    before = results(test), results(test, "per-minute")
    test.advance_watermark(80 * SECOND)

    assert before == ([], [])
    assert results(test) == [("on-time", 55, 80, 55, False)]
    assert results(test, "per-minute") == [("on-time", 0, 60, 60, False)]
    assert test.late.total() == 0


def test_each_window_of_a_key_holds_until_its_result() -> None:
    """The earliest of those that are open; then nothing is held any more."""
    test = StreamTest(Pipeline("p", stamped(Session(GAP)), PER_MINUTE))
    push(test, 1, 65)
    test.advance_watermark(70 * SECOND)
    first = results(test), results(test, "per-minute")
    test.advance_watermark(130 * SECOND)

    assert first == ([("on-time", 1, 11, 1, False)], [("on-time", 0, 60, 60, False)])
    assert results(test, "per-minute") == [("on-time", 60, 120, 120, False)]
    assert test.keys("w") == []


def test_sessions_that_merge_hold_at_the_earlier_one() -> None:
    test = StreamTest(Pipeline("p", stamped(Session(GAP)), PER_MINUTE))
    push(test, 50, 66, 58)
    test.advance_watermark(90 * SECOND)

    assert results(test) == [("on-time", 50, 76, 50, False)]


def test_late_records_hold_nothing_and_late_panes_have_the_time_of_the_end() -> None:
    """A window of late records alone is late, at its end; one that has others keeps their time."""
    test = StreamTest(Pipeline("p", stamped(Tumbling(GAP), lateness=GAP)))
    test.advance_watermark(5 * SECOND)
    push(test, 1, 6, 2)
    test.advance_watermark(10 * SECOND)
    push(test, 3)
    test.advance_watermark(25 * SECOND)
    push(test, 21)
    test.advance_watermark(30 * SECOND)

    assert results(test) == [
        ("on-time", 0, 10, 6, False),
        ("late", 0, 10, 10, True),
        ("on-time", 20, 30, 30, True),
    ]


def test_an_early_pane_has_the_time_of_the_earliest_record_too() -> None:
    test = StreamTest(Pipeline("p", stamped(Tumbling(MINUTE), early=GAP)))
    push(test, 5, 7)
    test.advance_watermark(10 * SECOND)
    push(test, 15)
    test.advance_watermark(20 * SECOND)
    test.advance_watermark(60 * SECOND)

    times = [(pane, at, late) for pane, _, _, at, late in results(test)]
    assert times == [("early", 5, False), ("early", 5, False), ("on-time", 5, False)]


def test_windows_enclose_results_that_come_with_an_earlier_time() -> None:
    hours = Windowed("hours", Enclosing(MINUTE), inputs={"out": by_key}, output="enclosed")
    test = StreamTest(Pipeline("p", stamped(Tumbling(GAP)), hours))
    push(test, 5, 15, 55)
    test.advance_watermark(59 * SECOND)
    before = results(test, "enclosed")
    test.advance_watermark(60 * SECOND)

    [enclosed] = test.read("enclosed")
    assert before == []
    assert (enclosed.value["start"], enclosed.value["records"], enclosed.late) == (0, 3, False)


def test_a_version_without_a_stamp_releases_what_the_one_before_it_held() -> None:
    """The next record or result of the key does so."""
    before = stamped(Session(GAP))
    test = StreamTest(Pipeline("p", before, PER_MINUTE))
    push(test, 55)
    before.is_held = False  # As another version of the code has it.
    test.advance_watermark(130 * SECOND)

    assert results(test) == [("on-time", 55, 65, 55, False)]
    assert results(test, "per-minute") == [("on-time", 0, 60, 60, False)]
    assert test.keys("w") == []


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=12))
def test_every_session_is_in_the_minute_of_its_earliest_record(
    events: list[tuple[int, int]],
) -> None:
    """G18: whatever the order of records and watermarks, no on-time session comes late."""
    test, pushed = StreamTest(Pipeline("p", stamped(Session(GAP)), PER_MINUTE)), 0
    watermark = 0
    for at, progress in events:
        pushed += at >= watermark
        push(test, at)
        watermark += progress
        test.advance_watermark(watermark * SECOND)
    test.close()

    sessions = test.read("out")
    by_minute = Counter(o.timestamp_ms // 60_000 * 60_000 for o in sessions if not o.late)
    counted = {o.value["start"]: o.value["records"] for o in test.read("per-minute") if not o.late}
    late = sum(o.late for o in sessions)
    assert test.late["minutes"] <= late
    assert all(counted.get(start, 0) >= count for start, count in by_minute.items())
    assert sum(o.value["records"] for o in sessions) + test.late["w"] == len(events)


def refuse_many(total: int) -> int:
    if total > 2:
        raise ValueError("too many records")
    return total


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_dead_window_takes_no_other_window_of_its_key_with_it(is_fused: bool) -> None:
    """The next windows of the key are written, on time, and hold the watermark for themselves.

    The one that was open when the other died has lost its hold, so it has the time of its end.
    """
    many = Combine(int, lambda total, record: total + 1, operator.add, refuse_many)
    code: Any = stamped(Tumbling(GAP), combine=many)
    if is_fused:
        code = Fused("f", Windowed("other", Tumbling(GAP), inputs={"in": by_key}, output="o"), code)
    test = StreamTest(Pipeline("p", code))
    push(test, 1, 2, 3, 12)
    test.advance_watermark(10 * SECOND)
    push(test, 13, 21, 32)
    test.advance_watermark(25 * SECOND)
    push(test, 33)
    test.close()

    assert [failure.error for _, failure in test.dead] == ["ValueError: too many records"]
    results = [
        (out.timestamp_ms / SECOND, out.late, out.value["value"]) for out in test.read("out")
    ]
    assert results == [(20, False, 2), (21, False, 1), (32, False, 2)]


def test_a_dead_window_can_be_replayed_without_its_hold() -> None:
    """Its result has the time of its end then, and nothing of it stays behind."""
    window = {"start": 0, "end": 10_000, "due": 10_000, "records": 3, "total": 3, "earliest": 1_000}
    state = KeyState(json.dumps({"windows": {"0": window}}))
    replayed = KeyedRecord("k", ["end:0", 10_000, False], 10_000, DEAD_TIMERS, late_at=20_000)
    effects = run_bundle(
        stamped(Tumbling(GAP)), {"k": state}, [replayed], watermark=20_000, now_ms=0
    )

    assert effects.failures == []
    [result] = effects.productions
    assert (result.timestamp_ms, json.loads(result.text)["value"]) == (10_000, 3)
    assert effects.keys["k"].is_empty


def test_a_dead_window_holds_nothing_any_more() -> None:
    """Windows downstream do not wait for a window whose timer became a dead letter."""
    many = Combine(int, lambda total, record: total + 1, operator.add, refuse_many)
    code = stamped(Tumbling(GAP), combine=many)
    test = StreamTest(Pipeline("p", code, PER_MINUTE))
    push(test, 1, 2, 3, 12)
    test.advance_watermark(60 * SECOND)

    assert test.watermark("minutes") == 60 * SECOND
    assert [out.value["value"] for out in test.read("per-minute")] == [1]


def test_a_stamp_that_cannot_be_is_refused() -> None:
    with pytest.raises(TypeError, match='`stamp` must be "end" or "earliest"'):
        Windowed("w", Tumbling(GAP), inputs={"in": by_key}, output="out", stamp="start")  # type: ignore[arg-type]
    fused = Fused("fused", stamped(Session(GAP)), PER_MINUTE)
    with pytest.raises(TypeError, match="w cannot be fused: it holds the watermark"):
        fused.check()


@pytest.mark.parametrize("combine", [sum, total])
def test_an_aggregate_that_is_none_is_refused(combine: Any) -> None:
    """Each record would become a dead letter: `total` itself is none, only `total(of)`."""
    options: Any = {"inputs": {"in": by_key}, "output": "out", "combine": combine}
    for declare in (
        lambda: Windowed("w", Tumbling(GAP), **options),
        lambda: CountWindows("w", 2, **options),
        lambda: fan_out("w", Tumbling(GAP), parts=2, **options),
    ):
        with pytest.raises(TypeError, match=r"w: `combine` must be a Combine, as total\(of\), got"):
            declare()


def test_windows_of_half_a_record_are_refused() -> None:
    """None of them would ever end."""
    with pytest.raises(TypeError, match=r"must be a whole number, at least 1, got 2\.5"):
        CountWindows("w", 2.5, inputs={"in": by_key}, output="out")  # type: ignore[arg-type]
