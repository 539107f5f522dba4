"""Front page: the demos as they run just now, one press to run each of them, and the tour."""

from __future__ import annotations

from flask import Flask

from handlers.home import demo_runs, routes, tour


def register(app: Flask) -> None:
    """Mount the routes, and tell templates the step of the tour."""
    app.register_blueprint(routes.bp)
    app.register_blueprint(demo_runs.bp)
    app.register_blueprint(tour.bp)
    app.context_processor(tour.tour)
