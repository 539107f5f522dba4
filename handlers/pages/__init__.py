"""The pages of the demos, one file a noun; rollforward.flask mounts what any app has."""

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
    quilt,
    sums,
    sums_api,
    weblog,
    zeitgeist,
)
from rollforward.flask.live import watch


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
    app.register_blueprint(quilt.bp)
    app.register_blueprint(weblog.bp)
    app.register_blueprint(zeitgeist.bp)
    app.register_blueprint(faults.bp)
    demo_runs.register(app)
    _watch(app)
    formatting.register(app)


def _watch(app: Flask) -> None:
    """Say which requests and tasks change what pages show. Some publish by themselves, too."""
    watch(app, "stages", "/break-it/")
    watch(
        app,
        "invitations",
        "/invitations",
        "/demo/invitations",
        "/tasks/continuations/tell-guests",
        "/tasks/continuations/import-guests",
    )
    watch(
        app,
        "grades",
        "/grades",
        "/demo/grades",
        "/tasks/grades/",
        "/tasks/materialized-views/grades/",
        "/tasks/fork-join/views-grades/",
        *(f"/tasks/continuations/{job}" for job in ("add-students", "import-students")),
        *(f"/tasks/continuations/{job}" for job in ("fill-school", "views-grades-")),
    )
    watch(app, "sums", "/sums", "/api/v1/sums", "/demo/sums")
    watch(app, "sums", "/tasks/sums/", "/tasks/fork-join/sums/")
    watch(app, "counters", "/counters", "/demo/counters", "/tasks/counters-demo/")
    watch(app, "counters", "/tasks/counters/", "/tasks/fork-join/counters-")
    watch(app, "numbers", "/numbers", "/demo/numbers")
    watch(app, "numbers", "/tasks/numbers/", "/tasks/continuations/measure-numbers")
    watch(app, "blog", "/blog/samples", "/tasks/continuations/add-sample-")
    watch(app, "weblog", "/streams/weblog", "/demo/weblog", "/tasks/streams/weblog/")
    watch(app, "zeitgeist", "/zeitgeist", "/demo/zeitgeist")
    watch(app, "zeitgeist", "/tasks/zeitgeist/", "/tasks/streams/zeitgeist/")
