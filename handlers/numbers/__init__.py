"""Numbers: operations of this stack, measured."""

from __future__ import annotations

from flask import Flask

from handlers.numbers import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(
        app,
        "numbers",
        "/numbers",
        "/demo/numbers",
        "/tasks/numbers/",
        "/tasks/continuations/measure-numbers",
    )
