"""Grades: students, and the bars of their grades."""

from __future__ import annotations

from flask import Flask

from handlers.grades import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(
        app,
        "grades",
        "/grades",
        "/demo/grades",
        "/tasks/grades/",
        "/tasks/materialized-views/grades/",
        "/tasks/fork-join/views-grades/",
        "/tasks/continuations/add-students",
        "/tasks/continuations/import-students",
        "/tasks/continuations/fill-school",
        "/tasks/continuations/views-grades-",
    )
