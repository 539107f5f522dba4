"""An app of three computations that count in windows: its workers are killed by a test."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import ClassVar

from flask import Flask

from rollforward import flask as endpoints
from rollforward.registry import Registry
from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.model.computation import KeyOf
from rollforward.streams.operators.fused import Fused
from rollforward.streams.operators.windows import Tumbling, Windowed

WINDOW = timedelta(seconds=10)
DISORDER = timedelta(seconds=2)


class Sorted(Computation):
    """Hands records on under the key that they are counted by."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"raw": lambda raw: f"sender {raw['sender']}"}
    outputs = ("sorted",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("sorted", {"key": record.value["key"]})


COUNTED = Windowed(
    "counted",
    Tumbling(WINDOW),
    inputs={"sorted": lambda value: value["key"]},
    output="windows",
)


class Collected(Computation):
    """All windows of a key, as they came."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"windows": lambda window: window["key"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append([record.value["start"], record.value["value"]])


SOURCE = PushSource("raw", disorder=DISORDER)
APART = Pipeline("killed", Sorted, COUNTED, Collected, sources=[SOURCE])
FUSED = Pipeline("fused", Sorted, Fused("counted", COUNTED, Collected), sources=[SOURCE])


def serve() -> Flask:
    return endpoints.serve(Flask(__name__), Registry(APART, FUSED))
