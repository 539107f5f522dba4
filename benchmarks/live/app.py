"""The measured app: a part of a page, updates of its topic, and ordinary requests."""

from __future__ import annotations

from typing import Any

from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.flask.live import updates
from rollforward.registry import Registry


class BenchPart(ndb.Model):
    """The content of a page."""


def serve() -> Flask:
    """Return the app."""
    app, clients = app_for(Registry())

    @app.get("/bench/ordinary/<number>")
    def ordinary(number: str) -> Any:
        """Write a row and publish the change, as a form does."""
        BenchPart(id="part").put()
        clients.publish("bench")
        return "", 204

    @app.get("/bench/part")
    def part() -> Any:
        BenchPart.get_by_id("part")
        return "", 204

    @app.get("/bench/updates")
    def address() -> Any:
        return str(updates("bench"))

    return app
