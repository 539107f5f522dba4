"""A few numbers for monitoring, in the text format of Prometheus.

The caller proves itself as the scheduler does. On App Engine that is cron alone; elsewhere
a caller with a token of the service account.
"""

from __future__ import annotations

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from rollforward.flask.context import clients, registry
from rollforward.flask.guards.auth import cron_only
from rollforward.tasks.pattern import exposition

bp = Blueprint("rollforward_metrics", __name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@bp.get("/metrics", provide_automatic_options=False)
@cron_only
def metrics() -> ResponseReturnValue:
    """Return how much waits, in every pattern."""
    return Response(exposition(registry().gauges(clients())), content_type=CONTENT_TYPE)
