"""The measured app: a task and a save, repeated with SDKs that are turned on and off.

mark   a task with one transaction of a read and a write
save   a save through the view layer, with one view of the source
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from benchmarks.materialized_views.app import GROUPS, source
from rollforward.datastore.transactions import transact
from rollforward.materialized_views import ViewMaintenance
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import task

COLLECTOR = "BENCH_COLLECTOR"


class BenchMark(ndb.Model):
    """A row that a task writes."""

    times = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Mark:
    """The row to write."""

    number: int


@task("/tasks/bench/mark", queue="bench")
def mark(clients: Clients, args: Mark) -> None:
    """Read a row and write it."""

    def body() -> None:
        row = BenchMark.get_by_id(args.number + 1) or BenchMark(id=args.number + 1)
        row.times += 1
        row.put()

    transact(body)


def serve() -> Flask:
    """Return the app; its SDK is off."""
    # The benchmark's own process has no SDK.
    from benchmarks.tracing.replays import Replays
    from benchmarks.tracing.switch import Sdk

    kind, views = GROUPS[1]
    app, clients = app_for(Registry(mark, ViewMaintenance(views)))
    numbers = itertools.count()
    replays = Replays(app.wsgi_app)
    app.wsgi_app = replays  # type: ignore[method-assign, assignment]

    def save() -> tuple[str, int]:
        views.save(clients, source(kind, next(numbers)))
        return "", 204

    def compare(seconds: int, path: str) -> dict[str, Any]:
        sdk = Sdk(os.environ[COLLECTOR])
        with ThreadPoolExecutor(1) as apart:  # Its thread has no context of a request.
            times = apart.submit(replays.compare, sdk, f"/{path}", seconds).result()
        return {"times": times, "spans": sdk.spans_of_a_request}

    app.add_url_rule("/bench/save", "save", save)
    app.add_url_rule("/bench/compare/<int:seconds>/<path:path>", "compare", compare)
    return app
