"""The HTTP of the demo app: one folder a demo, and in `shared` what several of them need.

Cloud Tasks calls /tasks/, the scheduler of cron.yaml /cron/, a load balancer /health/; operators
call /control/ and /metrics. The library answers all of these. The other routes are the demos'.
"""

from __future__ import annotations

from flask import Flask, render_template
from flask.typing import ResponseReturnValue

from handlers import (
    blog,
    counters,
    grades,
    home,
    invitations,
    limits,
    numbers,
    orders,
    quilt,
    sums,
    tenants,
    weblog,
    zeitgeist,
)
from handlers.settings import DemoSettings
from handlers.shared import faults, formatting
from rollforward import flask as endpoints
from rollforward.console import Console, local
from rollforward.flask import live
from rollforward.flask.api import pull_queues, streams
from rollforward.flask.endpoints import cron, health, metrics, runs, tasks
from rollforward.registry import Registry
from rollforward.runtime import Clients

# Takes nothing but JSON, and no cookies: handlers/sums/api.py says why.
API_PREFIX = "/api/"
DEMOS = (
    *(home, invitations, grades, sums, numbers, counters, blog, quilt, orders, tenants),
    *(weblog, zeitgeist),
)


def mount(app: Flask, settings: DemoSettings, clients: Clients, registry: Registry) -> None:
    """Mount the endpoints of the library and the pages of the demos, on clients that are open."""
    limits.register(app, settings.requests_per_minute, settings.platform)
    endpoints.configure(
        app, settings, clients, registry, error_page=_error_page, api_prefix=API_PREFIX
    )
    _mount_library(app)
    for demo in DEMOS:
        demo.register(app)
    app.register_blueprint(faults.bp)
    live.watch(app, "stages", "/break-it/")
    Console(access=local).register(app)  # /rollforward/: operators; deployed, nobody yet.
    formatting.register(app)


def _mount_library(app: Flask) -> None:
    """Mount the endpoints that `rollforward.flask.mount` mounts for an app, one by one."""
    app.register_blueprint(tasks.bp)  # /tasks/<path>: Cloud Tasks delivers tasks.
    app.register_blueprint(cron.bp)  # /cron/[<pattern>/]sweep: the scheduler, by cron.yaml.
    health.register(app)  # /health/live, /health/ready, /_ah/warmup: load balancer, App Engine.
    app.register_blueprint(metrics.bp)  # /metrics: monitoring scrapes gauges.
    app.register_blueprint(runs.bp)  # /control/runs: operators, by the CLI or the console.
    pull_queues.register(app)  # /api/v1/pull: workers lease items.
    streams.register(app)  # /api/v1/streams: programs push records.
    live.register(app)  # /updates/<token>: a page waits for its next version.


def _error_page(status: int, message: str) -> ResponseReturnValue:
    return render_template("error.html", status=status, message=message), status
