"""Numbers for monitoring, in the text format of Prometheus.

Gauges of every pattern, read from Datastore; histograms and counters of deliveries, counted by the
workers of the instance that answers. These are there also while Datastore is away, when the alerts
on them are needed. The caller is the scheduler, or an account of METRICS_ACCOUNTS
with a token, on every platform.
"""

from __future__ import annotations

from functools import partial

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from rollforward.flask.context import clients, registry, wiring
from rollforward.flask.guards.auth import operators_only
from rollforward.runtime.run_all import run_all
from rollforward.tasks.pattern import Gauge, exposition

bp = Blueprint("rollforward_metrics", __name__)

UNREAD = "Patterns whose gauges could not be read: Datastore is away, or a row of theirs is bad."
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@bp.get("/metrics", provide_automatic_options=False)
@operators_only
def metrics() -> ResponseReturnValue:
    """Return how much waits, in every pattern, and how deliveries went."""
    text = exposition(_gauges())
    text += "".join(f"{line}\n" for line in wiring().task_metrics.lines())
    return Response(text, content_type=CONTENT_TYPE)


def _gauges() -> list[Gauge]:
    """Read the gauges of each pattern; a service that is away is asked once."""
    gauges: list[Gauge] = []
    patterns = registry().patterns

    def read(name: str) -> None:
        gauges.extend(list(patterns[name].gauges(clients(), registry().parts(name))))

    reads = ((f"the gauges of {name} cannot be read", partial(read, name)) for name in patterns)
    unread = len(patterns) - len(run_all(reads, max_unavailable=1).returned)
    return [*gauges, Gauge("patterns_unread", UNREAD, unread)]
