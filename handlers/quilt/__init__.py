"""Quilt: squares painted by the members of a batch."""

from __future__ import annotations

from flask import Flask

from handlers.quilt import routes


def register(app: Flask) -> None:
    """Mount the routes."""
    app.register_blueprint(routes.bp)
