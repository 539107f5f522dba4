"""Grades: students, and the bars of their grades."""

from __future__ import annotations

from flask import Flask

from handlers.grades import routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount the routes, and publish the requests and tasks that change the pages."""
    app.register_blueprint(routes.bp)
    watch(app, "grades", "/grades", "/demo/grades", "/tasks/grades/")
    watch(app, "grades", "/tasks/materialized-views/grades/", "/tasks/fork-join/views-grades/")
    jobs = ("add-students", "import-students", "fill-school", "views-grades-")
    watch(app, "grades", *(f"/tasks/continuations/{job}" for job in jobs))
