"""Invitations: parties, their guests, and the mails to them."""

from __future__ import annotations

from flask import Flask

from handlers.invitations import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(
        app,
        "invitations",
        "/invitations",
        "/demo/invitations",
        "/tasks/continuations/tell-guests",
        "/tasks/continuations/import-guests",
    )
