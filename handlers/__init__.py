"""Every route of the app: pages, tasks, cron, health, metrics."""

from __future__ import annotations

from flask import Flask

from handlers import (
    breakages,
    cron,
    deliveries,
    grades,
    health,
    home,
    invitations,
    metrics,
    sums,
    sums_api,
    words,
)


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
