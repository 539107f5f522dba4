"""Declarations that nothing could run: refused where they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, cast

import pytest

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.model.sink import Sink
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.hot_keys import fan_out
from rollforward.streams.operators.windows import Tumbling, Windowed


class Plain(Computation):
    inputs: ClassVar = {"out": str}


class Yielding(Computation):
    inputs: ClassVar = {"in": str}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> Iterator[None]:  # type: ignore[override]
        yield ctx.produce("out", record.value)


class Awaiting(Computation):
    inputs: ClassVar = {"in": str}

    async def timer(self, ctx: Context, timer: Timer) -> None:  # type: ignore[override]
        ctx.state["fired"] = timer.tag


class YieldingSink(Sink):
    def write(  # type: ignore[override]
        self, clients: Clients, values: Sequence[Any]
    ) -> Iterator[Any]:
        yield from values


async def alert(clients: Clients, record: Any) -> None:
    """Call somebody."""


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Pipeline("p", Yielding),
        lambda: Pipeline("p", Awaiting),
        lambda: Pipeline("p", Plain, standby=[Yielding]),
        lambda: Pipeline("p", Fused("fused", Yielding, Plain)),
        lambda: Pipeline("p", sinks=[YieldingSink("in")]),
        lambda: EffectSink("in", alert),
    ],
)
def test_a_hook_that_a_call_would_not_run_is_refused(declare: Any) -> None:
    """G1: its records were taken out of the inbox, and nothing was done with them."""
    with pytest.raises(TypeError, match="must be a plain function: called, it would not run"):
        declare()


class Listing(Computation):
    inputs: ClassVar = ["in"]


@pytest.mark.parametrize(
    ("declare", "error"),
    [
        (lambda: Pipeline("p", PAIR), "each argument must be one computation, got"),
        (lambda: Pipeline("p", [Plain]), "each argument must be one computation, got"),
        (lambda: Pipeline("p", Listing), "`inputs` must map at least one stream to"),
        (lambda: Pipeline("p", Plain, intervals=2.0), "`intervals` must be a whole number"),
        (lambda: PushSource("in", dedup=cast(Any, None)), "in: a span must be a timedelta"),
        (lambda: PushSource("in", disorder=cast(Any, 2)), "in: a span must be a timedelta"),
        (lambda: windowed(timedelta(minutes=1)), "`windows` must be as Tumbling"),
        (lambda: windowed(Tumbling), "`windows` must be as Tumbling"),
    ],
)
def test_what_a_user_easily_writes_instead_is_refused_as_that(declare: Any, error: str) -> None:
    """Intervals of another number failed each push, and windows that are none each record."""
    with pytest.raises(TypeError, match=error):
        declare()


def windowed(windows: Any) -> Windowed:
    return Windowed("hits", windows, inputs={"in": str}, output="hits")


PAIR: Any = fan_out("hits", Tumbling(timedelta(minutes=1)), inputs={"in": str}, output="hits")
