"""The pipelines for weak productions: a weak or strong stage, alone and before a strong reader.

weak          a weak stage, and a weak sink that notes the time of its call
strong        one strong stage, with ids, whose result can be read when its commit has returned
behind-weak   a strong reader after a weak stage
behind-strong a strong reader after a strong stage
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
    """Passes each record on."""

    name = "weak-pass"
    weak = idempotent = True
    inputs: ClassVar = {"in": by_key}
    outputs = ("passed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("passed", record.value)


class NotedBehind(Noted):
    """The noting computation after another stage."""

    inputs: ClassVar = {"passed": by_key}


class Handed:
    """Notes the time of its call for each record, in the pushing process or in a task."""

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
    """Return the app, with these pipelines and the ones of the other benchmarks of streams."""
    app = streams.serve(*PIPELINES)
    app.add_url_rule(f"{PUSH}/<name>/<int:start>/<int:size>", view_func=_push, methods=["POST"])
    return app


def records(start: int, size: int) -> list[PushedRecord]:
    """Return records with the current time and consecutive numbers."""
    now_ms = int(time.time() * 1000)
    return [
        PushedRecord(f"{n}", {"key": f"k{n * 7919 % KEYS}", "number": n}, now_ms)
        for n in range(start, start + size)
    ]


def _push(name: str, start: int, size: int) -> str:
    """Push to a pipeline in the app; return the start time."""
    began = time.time()
    [pipeline] = [declared for declared in PIPELINES if declared.name == name]
    pipeline.push(clients(), "in", records(start, size))
    return str(began)
