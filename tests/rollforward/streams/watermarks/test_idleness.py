"""Idle processes: the watermark of a source when some or all of them are idle."""

from __future__ import annotations

from datetime import timedelta
from operator import itemgetter
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushSource,
    Record,
)
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.model.limits import Limits
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.storage.schema import SourceRow
from rollforward.streams.sweep import sweep
from rollforward.streams.watermarks.percentiles import of_source
from tests.rollforward.streams.simulator.driver import Came, Desk

S = 1_000


class Count(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("late" if ctx.late else "in time").add(1)


def desk_of(*processes: str, idle_s: int = 60) -> Desk:
    idle = timedelta(seconds=idle_s)
    source = PushSource("in", processes=processes, idle=idle, disorder=timedelta(0))
    desk = Desk(Pipeline("p", Count, sources=[source], intervals=1))
    desk.simulation.sweeps = False
    return desk


def push(desk: Desk, process: str, at: int) -> int:
    """Push a record of a process; return how many are late."""
    late = desk.push(Came(f"{process}{at}", "k", at), process=process, watermark=at).late
    desk.run()
    return late


def idle(desk: Desk) -> tuple[str, ...]:
    return desk.status().sources["in"].idle


def test_what_processes_have_kept_while_the_app_was_away_is_in_time() -> None:
    """G3: a pause of the whole stream makes no process idle, however long it is."""
    desk = desk_of("a", "b", "c")
    for process in "abc":
        push(desk, process, 0)

    desk.wait(90)
    late = 0
    for process in "abc":
        for second in range(1, 90):
            late += push(desk, process, second * S)
        desk.wait(1)

    assert (late, idle(desk)) == (0, ())
    assert desk.state("count", "k") == {"in time": 270}


def test_a_process_that_does_not_come_back_after_a_pause_is_left_out() -> None:
    """G3: it has as much time as ever from the end of the pause on."""
    desk = desk_of("a", "b", "c")
    for process in "abc":
        push(desk, process, 0)

    desk.wait(90)
    push(desk, "a", 90 * S)
    desk.wait(30)
    push(desk, "b", 120 * S)
    assert idle(desk) == ()
    desk.wait(31)
    desk.do(sweep(desk.environment))

    assert idle(desk) == ("a", "c")


def test_a_process_that_was_silent_before_a_pause_has_no_further_time() -> None:
    """G3: a process that writes rarely does not keep a missing one from being idle."""
    desk = desk_of("a", "b")
    for process in "ab":
        push(desk, process, 0)

    for second in (70, 140):
        desk.wait(70)
        push(desk, "a", second * S)

    assert idle(desk) == ("b",)
    assert desk.head.sources["in"] == 140 * S


@pytest.mark.parametrize("closes_first", [True, False])
def test_a_process_that_closes_ends_no_stream_that_another_one_may_come_back_to(
    closes_first: bool,
) -> None:
    """G3: the watermark stays, whether the other one becomes idle before or after that."""
    desk = desk_of("eu", "us")
    for process in ("eu", "us"):
        push(desk, process, 100 * S)

    for second in (35, 70):
        if closes_first and second == 35:
            desk.push(process="eu", watermark=FOREVER)
        desk.wait(35)
        if not closes_first:
            desk.push(process="eu", watermark=100 * S)
        desk.do(sweep(desk.environment))
    desk.push(process="eu", watermark=FOREVER)
    desk.run()

    assert idle(desk) == (() if closes_first else ("us",))
    assert desk.head.sources["in"] == 100 * S
    assert push(desk, "us", 101 * S) == 0
    desk.push(process="us", watermark=FOREVER)
    desk.run()
    assert desk.head.sources["in"] == FOREVER


def test_a_percentile_of_a_stream_does_not_end_before_it() -> None:
    """G12: a process that has closed says nothing of how far the others are."""
    closed = SourceRow(watermark=FOREVER, latest=100, records=999)
    slow = SourceRow(watermark=50, latest=60, records=1)
    assert of_source([closed, slow], 50, 90) == 50
    assert of_source([closed], 50, 90) == 50


class Join(Count):
    inputs: ClassVar = {"in": lambda value: value["k"], "other": lambda value: value["k"]}


def test_a_stream_that_has_fallen_silent_holds_no_other_back() -> None:
    """G11: also the last process of a stream, which the watermark still waits for."""
    limits = Limits(max_drift=timedelta(minutes=1))
    desk = Desk(Pipeline("p", Join, intervals=1, limits=limits))
    desk.simulation.sweeps = False
    desk.push(Came("b", "k", 1_000), stream="other", watermark=1_000)
    desk.push(Came("a", "k", 1_000 * S), watermark=1_000 * S)
    desk.run()
    with pytest.raises(BackpressureError, match="ahead of other"):
        desk.push(Came("a2", "k", 1_001 * S))

    desk.wait(61)
    desk.do(sweep(desk.environment))

    assert desk.push(Came("a2", "k", 1_001 * S)).records == 1
    assert desk.head.inputs["join"] == 1_000
    desk.push(Came("b2", "k", 2_000), stream="other", watermark=2_000)
    desk.run()
    assert list(desk.head.paused) == ["in:"]


def hits(*streams: str) -> Windowed:
    inputs = dict.fromkeys(streams, itemgetter("k"))
    return Windowed("hits", Tumbling(timedelta(seconds=10)), inputs=inputs, output="out")


def minutes_of(desk: Desk, count: int) -> None:
    """Let minutes pass, each with its sweep."""
    for _ in range(count):
        desk.wait(60)
        desk.do(sweep(desk.environment))
        desk.run()


@pytest.mark.parametrize("advances", [True, False])
def test_windows_of_a_stream_that_falls_silent_close_if_it_says_so(advances: bool) -> None:
    """G3: with `advance_when_idle` the watermark follows the clock; else it stays."""
    distance = timedelta(seconds=30) if advances else None
    source = PushSource("in", processes=("a", "b"), advance_when_idle=distance)
    desk = Desk(Pipeline("p", hits("in"), sources=[source], intervals=1))
    desk.simulation.sweeps = False
    now_ms = desk.simulation.now_ms
    push(desk, "a", now_ms)
    push(desk, "b", now_ms)

    desk.wait(50)
    desk.do(sweep(desk.environment))
    assert (desk.head.sources["in"], idle(desk)) == (now_ms, ())
    minutes_of(desk, 2)

    assert desk.status().computations["hits"].timers == int(advances)
    assert idle(desk) == (("a", "b") if advances else ())
    reached = desk.head.sources["in"]
    assert (reached > now_ms) == advances
    assert push(desk, "a", reached - 1) == 1  # It is late below the watermark, also one of its own.
    assert push(desk, "b", desk.simulation.now_ms) == 0
    minutes_of(desk, 1)
    assert desk.head.sources["in"] >= reached


def test_a_stream_that_is_silent_from_the_start_holds_no_window_of_another_one() -> None:
    """G3: two streams are joined, and only one of them brings something."""
    quiet = PushSource("right", advance_when_idle=timedelta(minutes=1))
    desk = Desk(Pipeline("p", hits("in", "right"), sources=[quiet], intervals=1))
    desk.simulation.sweeps = False
    for number in range(8):
        desk.push(Came(f"l{number}", "k", desk.simulation.now_ms))
        minutes_of(desk, 1)

    assert desk.status().computations["hits"].timers >= 5


def test_a_pulled_stream_advances_when_its_reader_finds_nothing() -> None:
    """G3: by the commit of the reader, at the distance that the source says."""
    times: list[int] = []

    def read(clients: Any, position: Any, limit: int) -> Pulled:
        return Pulled([({"k": "a"}, times[0])] if position is None else [], 1)

    source = PullSource(
        "in", read, poll=timedelta(seconds=20), advance_when_idle=timedelta(seconds=30)
    )
    desk = Desk(Pipeline("p", hits("in"), sources=[source], intervals=1))
    times.append(desk.simulation.now_ms)
    desk.do(pull(desk.environment, "in"))
    desk.do(desk.worker("hits"))

    for _ in range(4):
        desk.wait(20)
        desk.do(pull(desk.environment, "in"))
        desk.do(tick(desk.environment))
    desk.do(desk.worker("hits"))

    assert desk.status().computations["hits"].timers == 1
    assert desk.head.sources["in"] == desk.simulation.now_ms - 30 * S
    with pytest.raises(TypeError, match="requires a poll"):
        PullSource("in", read, advance_when_idle=timedelta(0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"poll": timedelta(0)},
        {"poll": -timedelta(seconds=1)},
        {"disorder": -timedelta(seconds=1)},
        {"poll": timedelta(seconds=1), "advance_when_idle": -timedelta(seconds=1)},
    ],
)
def test_a_pull_source_whose_times_make_no_sense_is_refused(wrong: dict[str, timedelta]) -> None:
    """G3: a reader that pauses for no time would occupy a worker for ever."""
    with pytest.raises(TypeError, match=r"in: .* must"):
        PullSource("in", lambda clients, position, limit: Pulled([], position), **wrong)
