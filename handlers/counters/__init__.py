"""Counters: one count kept in four ways, and a load of clicks."""

from __future__ import annotations

from flask import Flask

from handlers.counters import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(
        app,
        "counters",
        "/counters",
        "/demo/counters",
        "/tasks/counters-demo/",
        "/tasks/counters/",
        "/tasks/fork-join/counters-",
    )
