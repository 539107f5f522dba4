"""An app with weak stages and a weak sink that pushes to itself: its workers are killed by a test.

A record goes through a weak stage to the sink and to windows, and these through another stage.
What the sink does outside is a line in a file, with the name and the number of the record.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, ClassVar

from flask import Flask

from rollforward import flask as endpoints
from rollforward.flask.context import clients
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushedRecord,
    PushSource,
    Record,
)
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.model.sink import SinkRecord
from rollforward.streams.operators.windows import Tumbling, Windowed

EFFECTS = "WEAK_EFFECTS"  # The path of the file.
RECORDS = "WEAK_RECORDS"  # How many are pushed, and as many are pulled.
DISORDER = timedelta(seconds=2)
WINDOW = timedelta(seconds=10)
KEYS = 50
SPAN_MS = 100_000
START_MS = 1_760_000_000_000
PULLED = 50
# A dead worker's interval is taken over after this, so that a test need not wait for 15 s.
PACE = StreamConfig(lease_ms=3_000)


def record_of(source: str, number: int, of: int) -> tuple[dict[str, Any], int]:
    """Return the value and the time of a record, in the order in which they come: some are late."""
    ahead_ms = (number * 7_919) % int(DISORDER.total_seconds() * 1000)
    at = START_MS + number * SPAN_MS // of + ahead_ms
    return {
        "n": f"{source} {number}",
        "key": f"key {number * 31 % KEYS}",
        "drop": number % 7 == 0,
    }, at


class Tag(Computation):
    """Hands on what is not to be dropped."""

    weak = idempotent = True
    inputs: ClassVar = dict.fromkeys(("raw", "log"), lambda value: value["n"])
    outputs = ("tagged",)

    def record(self, ctx: Context, record: Record) -> None:
        if not record.value["drop"]:
            ctx.produce("tagged", {"n": record.value["n"], "key": record.value["key"]})


COUNTED = Windowed(
    "counted",
    Tumbling(WINDOW),
    inputs={"tagged": lambda value: value["key"]},
    output="windows",
)


class Label(Computation):
    """Hands each window on, twice."""

    weak = idempotent = True
    inputs: ClassVar = {"windows": lambda window: window["key"]}
    outputs = ("labelled",)

    def record(self, ctx: Context, record: Record) -> None:
        for side in ("left", "right"):
            ctx.produce("labelled", {**record.value, "key": f"{record.value['key']} {side}"})


class Collected(Computation):
    """All windows of a key, as they came."""

    inputs: ClassVar = {"labelled": lambda window: window["key"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append([record.value["start"], record.value["value"]])


def note(clients: Clients, record: SinkRecord) -> None:
    """Write a line, by one call: it is there, or it is not."""
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{record.id} {record.value['n']}\n".encode())
    finally:
        os.close(file)


def read(clients: Clients, position: Any, limit: int) -> Pulled:
    """Read some of the log, always the same from one position on."""
    first, of = position or 0, int(os.environ[RECORDS])
    end = min(first + PULLED, of)
    records = [record_of("pulled", number, of) for number in range(first, end)]
    return Pulled(records, end, is_over=end == of)


PIPELINE = Pipeline(
    "weak-killed", Tag, COUNTED, Label, Collected,
    sources=[PushSource("raw", disorder=DISORDER), PullSource("log", read, disorder=DISORDER)],
    sinks=[EffectSink("tagged", note, name="outside", weak=True)],
)  # fmt: skip


def push(first: int, end: int) -> str:
    """Push some records: as a part of this request, with which it dies."""
    of = int(os.environ[RECORDS])
    made = [(number, *record_of("pushed", number, of)) for number in range(first, end)]
    records = [PushedRecord(f"record {number}", value, at) for number, value, at in made]
    PIPELINE.push(clients(), "raw", records)
    return "let in"


def serve() -> Flask:
    app = Flask(__name__)
    app.add_url_rule("/push/<int:first>/<int:end>", view_func=push)
    served = endpoints.serve(app, Registry(PIPELINE))
    endpoints.open_app(served).clients.process_state.get_or_create("streams config", lambda: PACE)
    return served
