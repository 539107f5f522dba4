"""Orders: flows of steps, from the shelf to the door or back."""

from __future__ import annotations

from flask import Flask

from handlers.orders import routes


def register(app: Flask) -> None:
    """Mount the routes."""
    app.register_blueprint(routes.bp)
