"""Schedules in which three of four stages are fused: one that delays, one that counts, one that
collects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.operators.fused import Fused
from tests.rollforward.streams.scenarios.growing import Other
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.schedules import IDLE_MS, WINDOW, Collect, Rekey, Windows

DELAY = 7


class Delay(Computation):
    """Hands each record on by a timer, when the watermark has come some way behind it."""

    inputs: ClassVar = {"mid": lambda value: value["k"]}
    outputs = ("delayed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.map("waiting").set(record.value["id"], record.value)
        ctx.set_timer(record.value["id"], record.timestamp_ms + DELAY)

    def timer(self, ctx: Context, timer: Timer) -> None:
        last = ctx.state.value("fired", -1)
        if timer.at_ms < last.get() and not ctx.late:
            ctx.state.list("bad").append(f"timer {timer.at_ms} after {last.get()}")
        last.set(max(timer.at_ms, last.get()))
        ctx.produce("delayed", ctx.state.map("waiting").pop(timer.tag))


class Counted(Windows):
    name = "windows"
    inputs: ClassVar = {"delayed": lambda value: value["k"]}


PIPELINE = Pipeline(
    "sim", Rekey, Fused("fused", Delay, Counted, Collect), intervals=2,
    sources=[PushSource("in", processes=("a", "b"), idle=timedelta(milliseconds=IDLE_MS))],
)  # fmt: skip


class Fusing(Other):
    """A schedule of stages of which some are fused."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(PIPELINE, seed, chances)

    def window_of(self, record: dict[str, Any]) -> int:
        return int(record["at"] + DELAY) // WINDOW * WINDOW
