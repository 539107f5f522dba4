"""A weather station, version 2. What has changed since version 1, in one deployment:

the records         one more field, from the source and between the computations
Region              one more list in its state, which version 1 leaves alone
send-notice         one more argument, with a default
ALERTS              new schedules of users, of a new task
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from flask import Flask

from rollforward.schedules import UserSchedules
from rollforward.streams import Computation, Context, Pipeline, Record
from rollforward.streams.model.computation import KeyOf
from rollforward.tasks import task
from tests.process.versions.station.first_station import SOURCE, app_of, note


class Rain(Computation):
    """The measurements of a town; it hands them on by the town's initial."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"rain": lambda rain: rain["town"]}
    outputs = ("regional",)

    def record(self, ctx: Context, record: Record) -> None:
        number, millimetres = record.value["number"], record.value.get("mm", 0)
        ctx.state.list("numbers").append(number)
        ctx.produce("regional", {"region": ctx.key[0], "number": number, "mm": millimetres})


class Region(Computation):
    """The measurements of a region."""

    inputs: ClassVar[Mapping[str, KeyOf]] = {"regional": lambda rain: rain["region"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("numbers").append(record.value["number"])
        if record.value.get("mm"):
            ctx.state.list("measured").append(record.value["number"])


@task("/tasks/station/notice", queue="default")
def send_notice(user: str, greeting: str = "Hello") -> None:
    """Send a notice to a user."""
    note(user)


@task("/tasks/station/alert", queue="default")
def send_alert(user: str) -> None:
    """Send an alert to a user."""
    note(user)


STATION = Pipeline("station", Rain, Region, sources=[SOURCE])
NOTICES = UserSchedules("notices", send_notice)
ALERTS = UserSchedules("alerts", send_alert)


def serve() -> Flask:
    return app_of(STATION, NOTICES, ALERTS, mm=3)
