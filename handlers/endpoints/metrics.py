"""A few numbers for whoever watches the app, in the text format of Prometheus.

The caller proves itself as the scheduler does. On App Engine that is cron alone; elsewhere
whoever asks with a token of the service account.
"""

from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response
from flask.typing import ResponseReturnValue

from handlers.endpoints.auth import cron_only
from handlers.endpoints.context import clients
from pipelines import outbox
from pipelines.outbox.depth import MAX_COUNTED
from pipelines.tasks import dead_tasks

bp = Blueprint("metrics", __name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Gauge:
    """A number as it stands now.

    >>> print(Gauge("tasks_open", "Tasks that wait.", 3).text)
    # HELP tasks_open Tasks that wait.
    # TYPE tasks_open gauge
    tasks_open 3
    """

    name: str
    help: str
    value: float

    @property
    def text(self) -> str:
        lines = (f"# HELP {self.name} {self.help}", f"# TYPE {self.name} gauge")
        return "\n".join((*lines, f"{self.name} {self.value:g}"))


@bp.get("/metrics", provide_automatic_options=False)
@cron_only
def metrics() -> ResponseReturnValue:
    """Say how much waits."""
    depth = outbox.depth(clients())
    gauges = (
        Gauge("outbox_waiting", f"Rows; at most {MAX_COUNTED} are counted.", depth.waiting),
        Gauge(
            "outbox_oldest_seconds",
            "Age of the oldest row whose task is not known to exist.",
            depth.oldest_s,
        ),
        Gauge(
            "outbox_oldest_unacked_seconds",
            "Age of the oldest row that is held until its task has done its work.",
            depth.oldest_unacked_s,
        ),
        Gauge(
            "outbox_relayed_per_second",
            "Tasks created from rows, over the last full minute; 0 without memcached.",
            depth.relayed_per_s,
        ),
        Gauge(
            "dead_tasks_open",
            f"Dead tasks that wait for somebody; at most {dead_tasks.MAX_LISTED} are counted.",
            dead_tasks.count_open(),
        ),
    )
    text = "".join(f"{gauge.text}\n" for gauge in gauges)
    return Response(text, content_type=CONTENT_TYPE)
