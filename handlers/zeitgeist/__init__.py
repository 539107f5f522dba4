"""Zeitgeist: spikes and dips of search queries."""

from __future__ import annotations

from flask import Flask

from handlers.zeitgeist import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(
        app,
        "zeitgeist",
        "/zeitgeist",
        "/demo/zeitgeist",
        "/tasks/zeitgeist/",
        "/tasks/streams/zeitgeist/",
    )
