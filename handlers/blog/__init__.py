"""Blog: posts, comments, a feed, and samples to fill it with."""

from __future__ import annotations

from flask import Flask

from handlers.blog import routes, writing
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    app.register_blueprint(writing.bp)
    watch(app, "blog", "/blog/samples", "/tasks/continuations/add-sample-")
