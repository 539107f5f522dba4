"""Every route of the app: pages, tasks, cron, health, metrics."""

from __future__ import annotations

from flask import Flask

from handlers.endpoints import cron, health, metrics, tasks
from handlers.pages import faults, formatting, grades, home, invitations, sums, sums_api


def register(app: Flask) -> None:
    """Mount every blueprint."""
    app.register_blueprint(home.bp)
    app.register_blueprint(invitations.bp)
    app.register_blueprint(grades.bp)
    app.register_blueprint(sums.bp)
    app.register_blueprint(sums_api.bp)
    app.register_blueprint(faults.bp)
    app.register_blueprint(tasks.bp)
    app.register_blueprint(cron.bp)
    app.register_blueprint(health.bp)
    app.register_blueprint(metrics.bp)
    formatting.register(app)
