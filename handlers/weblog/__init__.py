"""Web log: windows over the lines of an access log."""

from __future__ import annotations

from flask import Flask

from handlers.weblog import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(app, "weblog", "/streams/weblog", "/demo/weblog", "/tasks/streams/weblog/")
