"""Sums: many small additions folded into few writes; pages, and an API for programs."""

from __future__ import annotations

from flask import Flask

from handlers.sums import api, routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    app.register_blueprint(api.bp)
    watch(
        app, "sums", "/sums", "/api/v1/sums", "/demo/sums", "/tasks/sums/", "/tasks/fork-join/sums/"
    )
