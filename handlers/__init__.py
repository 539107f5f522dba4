"""Every route of the app: pages, tasks, cron, health, metrics."""

from __future__ import annotations

from flask import Flask

from handlers.endpoints import cron, health, metrics
from handlers.endpoints import tasks as deliveries
from handlers.pages import faults as breakages
from handlers.pages import formatting as words
from handlers.pages import grades, home, invitations, sums, sums_api


def register(app: Flask) -> None:
    """Mount every blueprint."""
    app.register_blueprint(home.bp)
    app.register_blueprint(invitations.bp)
    app.register_blueprint(grades.bp)
    app.register_blueprint(sums.bp)
    app.register_blueprint(sums_api.bp)
    app.register_blueprint(breakages.bp)
    app.register_blueprint(deliveries.bp)
    app.register_blueprint(cron.bp)
    app.register_blueprint(health.bp)
    app.register_blueprint(metrics.bp)
    words.register(app)
