"""The measured app: tasks that do nothing, in one queue or in lanes.

plain     tasks of Cloud Tasks, without a lane
ordered   in a lane with an order: one task of a key at a time
shared    in a lane that only shares the queue: one task of a key at a time, in any order
four      in a lane with four tasks of a key at a time
"""

from __future__ import annotations

import time
from typing import Any

from flask import Flask, request
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.lanes import Lane
from rollforward.registry import Registry
from rollforward.tasks import task

FLOOD_TASK_S = 0.01


class LaneBegin(ndb.Model):
    """The time at which a task began."""

    at = ndb.FloatProperty(indexed=False)


@task("/tasks/bench/noop", queue="bench")
def noop(number: int) -> None: ...


@task("/tasks/bench/slow", queue="bench")
def slow(number: int) -> None:
    """Sleep for a moment, as long as a call of a service."""
    time.sleep(FLOOD_TASK_S)


@task("/tasks/bench/begin", queue="bench")
def begin(name: str) -> None:
    """Record the time."""
    LaneBegin(id=name, at=time.time()).put()


LANES = {
    "ordered": Lane("bench-ordered", queue="bench", order=True),
    "shared": Lane("bench-shared", queue="bench"),
    "four": Lane("bench-four", queue="bench", limit=4),
}


def serve() -> Flask:
    """Return the app."""
    app, clients = app_for(Registry(noop, slow, begin, *LANES.values()))

    @app.get("/bench/add/<design>/<work>/<key>")
    def add(design: str, work: str, key: str) -> Any:
        """Add tasks of a key, as many as the request's `count`."""
        declared = {"noop": noop, "slow": slow}[work]
        many = [declared.bind(number) for number in range(int(request.args["count"]))]
        lane = LANES[design](key) if design in LANES else None
        declared.enqueue_many(clients, many, lane=lane)
        return "", 204

    @app.get("/bench/begin/<design>/<key>")
    def note_begin(design: str, key: str) -> Any:
        """Add one task, which records the time of its start."""
        lane = LANES[design](key) if design in LANES else None
        begin.enqueue(clients, begin.bind(key), lane=lane)
        return "", 204

    return app
