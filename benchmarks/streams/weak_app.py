"""The pipelines of the measured weak productions: a stage, weak or strong, and one before a reader.

weak          a weak stage, and a weak sink that notes when it is called
strong        one strong stage, with ids: its result can be read when its commit has returned
behind-weak   a strong reader behind a weak stage
behind-strong the same behind a strong stage
"""

from __future__ import annotations

import os
import time
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TextIO

from flask import Flask

from benchmarks.streams import app as streams
from benchmarks.streams.app import NOTES, Noted, Pass, by_key, pushed
from benchmarks.streams.workload import KEYS
from rollforward.flask.context import clients
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.model.sink import SinkRecord


class WeakPass(Computation):
    """Hands each record on."""

    name = "weak-pass"
    weak = idempotent = True
    inputs: ClassVar = {"in": by_key}
    outputs = ("passed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("passed", record.value)


class NotedBehind(Noted):
    """The same behind another stage."""

    inputs: ClassVar = {"passed": by_key}


class Handed:
    """Notes when it was called for each record: in the process that pushes, or by a task."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}

    def __call__(self, _: Clients, record: SinkRecord) -> None:
        number, at = record.value["number"], time.time()
        self.seen.setdefault(number, at)
        if "BENCH_COSTS" in os.environ:  # This is the app.
            self._notes.write(f"{number} {at}\n")

    @cached_property
    def _notes(self) -> TextIO:
        path = Path(os.environ["BENCH_COSTS"]) / f"{os.getpid()}-handed.{NOTES}"
        return path.open("a", buffering=1)


PUSH = "/api/v1/bench/push"
HANDED = Handed()
WEAK = Pipeline(
    "weak",
    WeakPass(),
    sources=[PushSource("in")],
    sinks=[EffectSink("passed", HANDED, name="handed", weak=True)],
    intervals=1,
)
STRONG = pushed("strong", Noted())
BEHIND_WEAK = pushed("behind-weak", WeakPass(), NotedBehind())
BEHIND_STRONG = pushed("behind-strong", Pass(1, "in", "passed"), NotedBehind())
PIPELINES = (WEAK, STRONG, BEHIND_WEAK, BEHIND_STRONG)


def serve() -> Flask:
    """Return the app, with these pipelines and those of the other measurements of streams."""
    app = streams.serve(*PIPELINES)
    app.add_url_rule(f"{PUSH}/<name>/<int:first>/<int:size>", view_func=_push, methods=["POST"])
    return app


def records(first: int, size: int) -> list[PushedRecord]:
    """Return records of this moment, with numbers of their own."""
    now_ms = int(time.time() * 1000)
    return [
        PushedRecord(f"{n}", {"key": f"k{n * 7919 % KEYS}", "number": n}, now_ms)
        for n in range(first, first + size)
    ]


def _push(name: str, first: int, size: int) -> str:
    """Push to a pipeline in the app; return when that began."""
    began = time.time()
    [pipeline] = [each for each in PIPELINES if each.name == name]
    pipeline.push(clients(), "in", records(first, size))
    return str(began)
