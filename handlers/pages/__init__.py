"""The pages of the demos, one file a noun; handlers.endpoints mounts what any app has."""

from __future__ import annotations

from flask import Flask

from handlers.pages import (
    blog,
    blog_writing,
    counters,
    demo_runs,
    faults,
    formatting,
    grades,
    home,
    invitations,
    numbers,
    sums,
    sums_api,
    weblog,
)


def register(app: Flask) -> None:
    """Mount every blueprint."""
    app.register_blueprint(home.bp)
    app.register_blueprint(invitations.bp)
    app.register_blueprint(grades.bp)
    app.register_blueprint(sums.bp)
    app.register_blueprint(sums_api.bp)
    app.register_blueprint(numbers.bp)
    app.register_blueprint(counters.bp)
    app.register_blueprint(blog.bp)
    app.register_blueprint(blog_writing.bp)
    app.register_blueprint(weblog.bp)
    app.register_blueprint(faults.bp)
    demo_runs.register(app)
    formatting.register(app)
