"""Numbers for monitoring, in the text format of Prometheus.

Gauges of every pattern, read from Datastore; histograms and counters of deliveries, counted by the
workers of the instance that answers. These are there also while Datastore is away, when the alerts
on them are needed. The caller is the scheduler, or an account of METRICS_ACCOUNTS
with a token, on every platform.
"""

from __future__ import annotations

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from rollforward.flask.context import clients, registry, wiring
from rollforward.flask.guards.auth import operators_only
from rollforward.tasks.pattern import Gauge, exposition

bp = Blueprint("rollforward_metrics", __name__)

UNREAD = "Patterns whose gauges could not be read: Datastore is away, or a row of theirs is bad."
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@bp.get("/metrics", provide_automatic_options=False)
@operators_only
def metrics() -> ResponseReturnValue:
    """Return how much waits, in every pattern, and how deliveries went."""
    gauges, unread = registry().read_gauges(clients())
    text = exposition([*gauges, Gauge("patterns_unread", UNREAD, len(unread))])
    text += "".join(f"{line}\n" for line in wiring().task_metrics.lines())
    return Response(text, content_type=CONTENT_TYPE)
