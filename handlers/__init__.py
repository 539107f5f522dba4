"""The HTTP of the demo app: one folder a demo, and in `shared` what several of them need."""

from __future__ import annotations

from flask import Flask

from handlers.blog import routes as blog_routes
from handlers.blog import writing as blog_writing
from handlers.counters import routes as counters_routes
from handlers.grades import routes as grades_routes
from handlers.home import demo_runs
from handlers.home import routes as home_routes
from handlers.invitations import routes as invitations_routes
from handlers.numbers import routes as numbers_routes
from handlers.quilt import routes as quilt_routes
from handlers.shared import faults, formatting
from handlers.sums import api as sums_api
from handlers.sums import routes as sums_routes
from handlers.weblog import routes as weblog_routes
from handlers.zeitgeist import routes as zeitgeist_routes
from rollforward.flask.live import watch


def register(app: Flask) -> None:
    """Mount every blueprint."""
    app.register_blueprint(home_routes.bp)
    app.register_blueprint(invitations_routes.bp)
    app.register_blueprint(grades_routes.bp)
    app.register_blueprint(sums_routes.bp)
    app.register_blueprint(sums_api.bp)
    app.register_blueprint(numbers_routes.bp)
    app.register_blueprint(counters_routes.bp)
    app.register_blueprint(blog_routes.bp)
    app.register_blueprint(blog_writing.bp)
    app.register_blueprint(quilt_routes.bp)
    app.register_blueprint(weblog_routes.bp)
    app.register_blueprint(zeitgeist_routes.bp)
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
