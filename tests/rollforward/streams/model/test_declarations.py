"""Declarations that nothing could run: refused where they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.model.sink import Sink
from rollforward.streams.operators.fused import Fused


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
