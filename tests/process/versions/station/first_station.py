"""A weather station, version 1: rain by town and by region as a stream, and notices of users."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from flask import Flask
from google.cloud import ndb

from rollforward import flask as endpoints
from rollforward.flask.context import clients
from rollforward.registry import Registry
from rollforward.schedules import UserSchedules
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.model.computation import KeyOf
from rollforward.tasks import task
from rollforward.tasks.attempts import current_task

START_MS = 1_760_000_000_000
TOWNS = ("Ulm", "Graz", "Bern", "Lyon", "Brno", "Pisa", "Gent")
SOURCE = PushSource("rain", disorder=timedelta(seconds=2))


class StationNotice(ndb.Model):
    """That a notice was sent: a row for each task, however often it is delivered."""

    user = ndb.TextProperty()


def note(user: str) -> None:
    StationNotice(id=current_task(), user=user).put()


def town_of(number: int) -> str:
    return TOWNS[number % len(TOWNS)]


class Rain(Computation):
    """The measurements of a town; it hands them on by the town's initial."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"rain": lambda rain: rain["town"]}
    outputs = ("regional",)

    def record(self, ctx: Context, record: Record) -> None:
        number = record.value["number"]
        ctx.state.list("numbers").append(number)
        ctx.produce("regional", {"region": ctx.key[0], "number": number})


class Region(Computation):
    """The measurements of a region."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"regional": lambda rain: rain["region"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("numbers").append(record.value["number"])


@task("/tasks/station/notice", queue="default")
def send_notice(user: str) -> None:
    """Send a notice to a user."""
    note(user)


STATION = Pipeline("station", Rain, Region, sources=[SOURCE])
NOTICES = UserSchedules("notices", send_notice)


def app_of(pipeline: Pipeline, *parts: Any, **fields: Any) -> Flask:
    """Return an app with a route that pushes measurements, with fields of its version."""
    app = Flask(__name__)

    @app.get("/push/<int:first>/<int:end>")
    def push(first: int, end: int) -> str:
        records = [
            PushedRecord(
                f"m{number}",
                {"town": town_of(number), "number": number, **fields},
                START_MS + 100 * number,
            )
            for number in range(first, end)
        ]
        pipeline.push(clients(), "rain", records)
        return "pushed"

    return endpoints.serve(app, Registry(pipeline, *parts))


def serve() -> Flask:
    return app_of(STATION, NOTICES)
