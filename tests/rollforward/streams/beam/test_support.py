"""Refusals by name, which need no Beam: what it cannot run is said before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PullSource, Record, Timer
from rollforward.streams.beam.support import (
    UntranslatableError,
    check_translatable,
    has_clock_timers,
)
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.model.context import ContextBackend
from rollforward.streams.model.sources import Pulled
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Tumbling, Windowed
from tests.rollforward.streams.beam import pipelines
from tests.rollforward.streams.packed import PACKED

pytestmark = pytest.mark.fast


class Percentile(Computation):
    inputs: ClassVar = {"in": pipelines.by_key}
    percentile = 99


class OwnContext(Computation):
    inputs: ClassVar = {"in": pipelines.by_key}

    def context(self, backend: ContextBackend) -> Context:
        return Context(backend)


class Holds(Computation):
    inputs: ClassVar = {"in": pipelines.by_key}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.hold(record.timestamp_ms)


def _earliest() -> Windowed:
    windows = Tumbling(pipelines.MINUTE)
    inputs = {"in": pipelines.by_key}
    return Windowed("earliest", windows, inputs=inputs, output="out", stamp="earliest")


class Clocked(Computation):
    inputs: ClassVar = {"in": pipelines.by_key}
    outputs = ("ticks",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.set_timer("tick", ctx.now_ms + 1_000, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("ticks", ctx.key)


class Reader(Clocked):
    inputs: ClassVar = {"seen": pipelines.by_key}


def _read(clients: Any, position: Any, limit: int) -> Pulled:
    return Pulled([], position, is_over=True)


def _pulled(**options: Any) -> Pipeline:
    return Pipeline("judged", pipelines.OnTime, sources=[PullSource("in", _read, **options)])


def _mail(clients: Any, record: Any) -> None:
    """Send a mail."""


REFUSALS: list[tuple[Callable[[], Pipeline], dict[str, Any], str]] = [
    (lambda: Pipeline("judged", Percentile), {}, "percentile has a `percentile`"),
    (lambda: Pipeline("judged", OwnContext), {}, "own-context has a `context` of its own"),
    (lambda: Pipeline("judged", Holds), {}, "holds holds the watermark"),
    (lambda: Pipeline("judged", _earliest()), {}, "earliest holds the watermark"),
    (lambda: Pipeline("judged", pipelines.OnTime), {"inputs": []}, "'in' is pushed"),
    (_pulled, {"inputs": []}, "'in' is pulled: pass `clients`"),
    (lambda: _pulled(poll=timedelta(seconds=1)), {"inputs": [], "can_read": True}, "'in' polls"),
    (
        lambda: Pipeline("judged", pipelines.OnTime),
        {"inputs": ["in", "other"]},
        "'other' is no source",
    ),
    (
        lambda: Pipeline("judged", pipelines.OnTime),
        {"unbounded": ["in"]},
        "'in' never ends: pass its `lateness`",
    ),
    (
        lambda: Pipeline("judged", pipelines.OnTime, sinks=[EffectSink("seen", _mail)]),
        {},
        "the sink seen-sink acts by tasks",
    ),
    (
        lambda: Pipeline("judged", pipelines.OnTime, sinks=[pipelines.Rows("seen", name="late")]),
        {},
        "the sink late has the name of a stream",
    ),
    (
        lambda: Pipeline("judged", pipelines.OnTime, codecs={"in": PACKED}),
        {},
        "the stream 'in' has a codec",
    ),
]


@pytest.mark.parametrize(("declare", "options", "message"), REFUSALS)
def test_what_beam_cannot_run_is_refused_by_name(
    declare: Callable[[], Pipeline], options: dict[str, Any], message: str
) -> None:
    pipeline = declare()
    with pytest.raises(UntranslatableError) as refused:
        check_translatable(pipeline, options.pop("inputs", ["in"]), **options)
    assert str(refused.value).startswith("judged cannot be translated to Beam: ")
    assert message in str(refused.value)


def test_all_problems_are_named_at_once() -> None:
    pipeline = Pipeline("judged", Percentile, OwnContext)
    with pytest.raises(UntranslatableError, match=r"percentile has .*; own-context has "):
        check_translatable(pipeline, ["in"])


@pytest.mark.parametrize("name", pipelines.ALL)
def test_each_kind_of_pipeline_that_the_judge_runs_is_accepted(name: str) -> None:
    pipeline = pipelines.ALL[name]()
    check_translatable(pipeline, [*pipeline.sources])


def test_timers_of_the_clock_are_found_in_the_code() -> None:
    assert has_clock_timers(Clocked())
    assert has_clock_timers(Fused("fused", pipelines.OnTime, Reader))
    assert not has_clock_timers(pipelines.HitsPerMinute())
