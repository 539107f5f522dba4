"""Tenants: they share a queue, and one of them floods it."""

from __future__ import annotations

from flask import Flask

from handlers.tenants import routes


def register(app: Flask) -> None:
    """Mount the routes."""
    app.register_blueprint(routes.bp)
