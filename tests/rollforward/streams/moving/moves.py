"""A pipeline that moves in the simulator, and the ways in which its moves can be disturbed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from rollforward.app_code import ControlFlow
from rollforward.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.model.codecs import ValueCodec
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.moving.exporting import export_with
from rollforward.streams.moving.importing import import_with
from rollforward.streams.moving.stopping import stop_steps
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.storage.remote_calls import (
    Call,
    ChangedError,
    OutcomeUnknownError,
    UnworkableError,
)
from tests.rollforward.streams.simulator.driver import Came, Desk

MINUTE_MS = 60_000
KEYS = "abcdefgh"


class Large(Computation):
    """A key has more than a slab takes, and a timer of the clock."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("ticks",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("times").append(record.timestamp_ms)
        ctx.state.value("padding").set(ctx.key * 5_000)
        ctx.set_timer("tick", ctx.now_ms + 3_600_000, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("ticks", {"k": ctx.key})


class Totals(Computation):
    """All windows, as they were counted."""

    inputs: ClassVar = {"counts": lambda value: value["key"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append([record.timestamp_ms, record.value["value"], ctx.late])


def pipeline(*codecs: ValueCodec) -> Pipeline:
    """Return the pipeline; its records have the first codec."""
    counts = Windowed(
        "counting", Tumbling(timedelta(minutes=1)), inputs={"in": lambda value: value["k"]},
        output="counts",
    )  # fmt: skip
    source = PushSource("in", disorder=timedelta(seconds=5))
    by_stream = {"in": codecs, "counts": codecs} if codecs else None
    return Pipeline(
        "moving", counts, Totals, Large, sources=[source], intervals=2, codecs=by_stream
    )


def records(start: int, end: int) -> list[Came]:
    """Return one record for each number, of eight keys, a second apart."""
    return [Came(f"id{n}", KEYS[n * 5 % 8], 1_000 * n) for n in range(start, end)]


def totals(desk: Desk) -> dict[str, Any]:
    """Return what the last computations have stored, in order."""
    return {
        f"{name} {key}": {field: _in_order(value) for field, value in state.items()}
        for name in ("totals", "large")
        for key in KEYS
        if (state := desk.state(name, key))
    }


def _in_order(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def finish(desk: Desk, *came: Came) -> dict[str, Any]:
    """Push the last records, end the source, and return what was counted."""
    desk.push(*came, watermark=FOREVER)
    desk.run()
    return totals(desk)


@functools.cache
def run_whole(count: int = 200) -> dict[str, Any]:
    """Return what a pipeline counts that never moves."""
    desk = Desk(pipeline())
    desk.push(*records(0, count))
    desk.run()
    return finish(desk)


def first_half(*codecs: ValueCodec, waiting: int = 20) -> Desk:
    """Return a stopped pipeline that has got 100 records, the last ones unprocessed."""
    desk = Desk(pipeline(*codecs))
    desk.push(*records(0, 100 - waiting))
    desk.run()
    if waiting:
        desk.push(*records(100 - waiting, 100))
        desk.push(*records(100 - waiting, 100 - waiting // 2))  # Its answer was lost.
    desk.do(stop_steps(desk.environment))
    return desk


def go_on(desk: Desk, steps: int = 150) -> None:
    """Let tasks, sweeps and ticks go on for a while: they do not come to rest while it stands."""
    for _ in range(steps):
        desk.simulation._step()
    desk.simulation.processes.clear()


def run_of(desk: Desk) -> Callable[..., Any]:
    """Return what runs steps of a move in the simulator."""
    return lambda steps, *args: desk.do(steps(desk.environment, *args))


def exported(desk: Desk, path: Path) -> Path:
    export_with(run_of(desk), path)
    return path


def imported(path: Path, *codecs: ValueCodec) -> Desk:
    desk = Desk(pipeline(*codecs))
    import_with(run_of(desk), path)
    return desk


class Killed(ControlFlow):
    """The process has died."""


def killed_at(desk: Desk, number: int, *, after: bool) -> Callable[..., Any]:
    """Return what runs steps until a call, and dies before or after its effect."""
    left = number

    def run(steps_of: Any, *args: Any) -> Any:
        nonlocal left
        steps = steps_of(desk.environment, *args)
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                call: Call = steps.throw(error) if error else steps.send(answer)
            except StopIteration as stop:
                return stop.value
            if not left and not after:
                raise Killed
            answer, error = _answer(desk, call)
            if not left:
                raise Killed
            left -= 1

    return run


def _answer(desk: Desk, call: Call) -> tuple[Any, Exception | None]:
    def one() -> Any:
        return (yield call)

    try:
        return desk.do(one()), None
    except (ChangedError, OutcomeUnknownError, MissingCodeError, UnworkableError) as error:
        return None, error


def calls_of(run: Callable[[Callable[..., Any]], Any], desk: Desk) -> int:
    """Return how many calls a move takes."""
    for number in range(10_000):
        try:
            run(killed_at(desk, number, after=False))
        except Killed:
            continue
        return number
    raise AssertionError("it does not end")


def lines_of(path: Path) -> Iterable[bytes]:
    return path.read_bytes().splitlines(keepends=True)
