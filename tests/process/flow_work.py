"""Work of flows of killed processes and of two versions, and what became of it.

A commit step counts itself in a row of its flow. A call outside writes a line into a file when it
begins, with the version that makes it, its key, and its flow. No receipt guards either, so a step
that runs again shows.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask
from google.cloud import ndb

from rollforward import flask as endpoints
from rollforward.flask.context import clients
from rollforward.flows import Flow, wakes
from rollforward.flows.reading import FlowState
from rollforward.registry import Registry
from rollforward.tasks import Task

FILES = "FLOW_FILES"  # The folder of what happened.
WORK_S = 0.02
NAME = "test-versions"


class FlowStepCounts(ndb.Model):
    """How often each commit step of a flow was made."""

    counts = ndb.JsonProperty(default={})


def count(flow_id: str, name: str) -> int:
    """Count a step in the commit that it is part of."""
    row = FlowStepCounts.get_by_id(flow_id) or FlowStepCounts(id=flow_id)
    row.counts = {**row.counts, name: row.counts.get(name, 0) + 1}
    row.put()
    return int(row.counts[name])


def call(version: str, flow_id: str, name: str, key: str) -> str:
    """Work outside for a while; return the version that has done it."""
    note(version, flow_id, name, key)
    time.sleep(WORK_S)
    return version


def note(version: str, flow_id: str, name: str, key: str) -> None:
    """Write a line, by one call: it is there, or it is not."""
    line = json.dumps([version, flow_id, name, key])
    file = os.open(Path(os.environ[FILES]) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def serve(order: Flow[Any], *members: Task[Any]) -> Flask:
    """Return an app with a flow, and routes that start, signal and cancel some of its kind.

    Args:
        members: Of its batches.
    """
    wakes.GRACE /= 10  # A test waits for seconds, where people have half a minute.
    app = Flask(__name__)

    @app.get("/start/<int:number>")
    def start(number: int) -> str:
        order.start(clients(), str(number), number)
        return "started"

    @app.get("/signal/<int:number>/<payload>")
    def signal(number: int, payload: str) -> str:
        order.signal(clients(), str(number), "courier", payload, event_id=f"to {number}")
        return "sent"

    @app.get("/cancel/<int:number>")
    def cancel(number: int) -> str:
        return str(order.cancel(clients(), str(number)))

    @app.get("/retry/<int:number>/<request_id>")
    def retry(number: int, request_id: str) -> str:
        return str(order.retry(clients(), str(number), request_id=request_id, new_calls=True))

    return endpoints.serve(app, Registry(order, *members))


# What became of it


@dataclass(frozen=True)
class Begin:
    """A call outside that began."""

    version: str
    flow_id: str
    name: str
    key: str


def begins(folder: Path) -> Iterator[Begin]:
    for line in (folder / "log").read_text().splitlines():
        yield Begin(*json.loads(line))


def assert_done_once(state: FlowState, calls: list[Begin], counts: dict[str, int]) -> int:
    """Each step has had its effect once; return how many of its calls were in doubt.

    Args:
        calls: The calls outside that the flow has begun.
        counts: How often its commit steps were made.
    """
    of_kind: dict[str, dict[str, Any]] = {"commit": {}, "outside": {}}
    for name, record in state.steps.items():
        if record.kind in of_kind:
            assert record.has_ended, (state.flow_id, name, record)
            of_kind[record.kind][name] = record
    assert counts == dict.fromkeys(of_kind["commit"], 1), state
    begun = Counter(begin.name for begin in calls)
    assert begun.keys() == of_kind["outside"].keys(), state
    for name, record in of_kind["outside"].items():
        assert begun[name] <= 1 + record.doubts, (state.flow_id, name, record, begun)
        assert len({begin.key for begin in calls if begin.name == name}) == 1, (state, name)
    return sum(record.doubts for record in of_kind["outside"].values())
