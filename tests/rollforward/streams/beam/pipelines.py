"""Pipelines that two engines run: one of each kind that users declare."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.operators.aggregates import top, total
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.hot_keys import fan_out
from rollforward.streams.operators.joins import AsOfJoin, IntervalJoin, WindowJoin
from rollforward.streams.operators.windows import Enclosing, Session, Sliding, Tumbling, Windowed

# Beam's local runners are slow, so `make beam` draws few of each kind; `make beam ALL=1` draws all.
IS_ALL = "BEAM_ALL" in os.environ
MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000


def seeds(count: int, least: int = 1) -> range:
    """Return so many seeds for `make beam ALL=1`, and a few of them else."""
    return range(count if IS_ALL else least)


def by_key(value: Any) -> str:
    return str(value["k"])


class HitsPerMinute(Computation):
    """A computation of a user's own, with late records of closed minutes dropped."""

    inputs: ClassVar = {"in": by_key}
    outputs = ("hits",)
    late_stream = "too-late"

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // MINUTE_MS * MINUTE_MS
        if start + MINUTE_MS <= ctx.watermark:
            ctx.drop_late()
            return
        ctx.state.map("windows").add(str(start))
        ctx.set_timer(str(start), start + MINUTE_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        hits = ctx.state.map("windows").pop(timer.tag)
        ctx.produce("hits", {"k": ctx.key, "minute": int(timer.tag), "hits": hits})


class OnTime(Computation):
    """Tells late records from others."""

    inputs: ClassVar = {"in": by_key}
    outputs = ("seen",)
    late = "drop"
    late_stream = "late"

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("seen", record.value)


class Even(Computation):
    weak = idempotent = True
    inputs: ClassVar = {"in": by_key}
    outputs = ("even",)

    def record(self, ctx: Context, record: Record) -> None:
        if record.value["n"] % 2 == 0:
            ctx.produce("even", record.value)


class Poison(Computation):
    """Fails for some records, which become dead letters."""

    inputs: ClassVar = {"in": by_key}
    outputs = ("sums",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("records").add(1)
        if record.value["size"] == 3:
            raise ValueError("poison")
        ctx.produce("sums", {"k": ctx.key, "n": record.value["n"]})


class Rows(Sink):
    """A sink whose values Beam's writers take."""

    def make(self, record: SinkRecord) -> Any:
        if record.value["size"] == 4:
            raise ValueError("no row")
        return {"row": record.value["n"]}


def _tumbling(stream: str = "in", **options: Any) -> Windowed:
    return Windowed("counts", Tumbling(MINUTE), inputs={stream: by_key}, output="out", **options)


def _one(code: Any) -> Callable[[], Pipeline]:
    return lambda: Pipeline("judged", code() if callable(code) else code)


def _sizes() -> Windowed:
    return Windowed(
        "sizes", Sliding(3 * MINUTE, MINUTE), inputs={"in": by_key}, output="out",
        combine=total(lambda value: value["size"]),
    )  # fmt: skip


def _sessions() -> Windowed:
    windows = Session(timedelta(seconds=20))
    return Windowed("sessions", windows, inputs={"in": by_key}, output="out")


def _two(join: Any, **options: Any) -> Any:
    return join("joined", inputs={"left": by_key, "right": by_key}, output="out", **options)


def _interval() -> IntervalJoin:
    joined: IntervalJoin = _two(IntervalJoin, lower=timedelta(0), upper=MINUTE)
    return joined


def _pages() -> Pipeline:
    """Two stages: the busiest keys of each three minutes."""
    busiest = Windowed(
        "busiest", Enclosing(3 * MINUTE), inputs={"out": lambda value: "all"}, output="tops",
        combine=top(2, of=lambda value: value["key"], amount=lambda value: value["value"]),
    )  # fmt: skip
    return Pipeline("judged", _tumbling(), busiest)


def _fused() -> Pipeline:
    return Pipeline("judged", Fused("fused", OnTime, _tumbling("seen")))


def _weak() -> Pipeline:
    return Pipeline("judged", Even, _tumbling("even"))


ALL: dict[str, Callable[[], Pipeline]] = {
    "own": _one(HitsPerMinute),
    "late": _one(OnTime),
    "tumbling": _one(_tumbling),
    "sliding": _one(_sizes),
    "sessions": _one(_sessions),
    "fan-out": lambda: Pipeline(
        "judged", *fan_out("hot", Tumbling(MINUTE), inputs={"in": by_key}, output="out", parts=3)
    ),
    "interval": lambda: Pipeline("judged", _interval()),
    "as-of": lambda: Pipeline("judged", _two(AsOfJoin)),
    "window-join": lambda: Pipeline(
        "judged", _two(WindowJoin, windows=Tumbling(MINUTE), outer=True)
    ),
    "stages": _pages,
    "fused": _fused,
    "weak": _weak,
    "poison": _one(Poison),
}
# Those whose late records this engine and Beam treat alike.
SINGLE = ("own", "late", "tumbling", "fused", "poison")
