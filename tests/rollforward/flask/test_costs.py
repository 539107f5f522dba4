"""What each request costs, booked to its route or task."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from google.cloud import ndb

from rollforward.flask import costs
from rollforward.flask.costs import NO_ROUTE
from rollforward.runtime import Clients, Cost
from rollforward.runtime.process.cost_report import CostReport
from rollforward.tasks.declaration import Task
from tests.handlers.conftest import Queue, app_with
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, one_emulator


class Thing(ndb.Model):
    """Something that a task puts and deletes."""


def put_and_delete(clients: Clients, args: Act) -> None:
    keys = ndb.put_multi([Thing(id="a"), Thing(id="b")])
    keys[0].delete()


@pytest.fixture
def report(world: World, tmp_path: Path) -> CostReport:
    return CostReport(tmp_path, world.clients.meter)


@pytest.fixture
def app(world: World, report: CostReport, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    """An app that `make run` has started, whose report is written when the test says so."""
    monkeypatch.setattr(costs, "open_report", lambda folder, meter: report)
    settings = dataclasses.replace(world.settings, reports_folder=str(report.folder))
    return app_with(world, Task(PATH, "default", Act, put_and_delete), settings=settings)


@one_emulator
def test_a_delivery_is_booked_to_its_task(world: World, app: Flask, report: CostReport) -> None:
    """Its own work, and the delivery, which the queue charges."""
    queue = Queue(world, app)
    for _ in range(2):
        assert queue.deliver(PATH).status_code < 300

    assert report.calls["task", PATH] == 2
    cost = report.costs["task", PATH]
    assert (cost.writes, cost.deletes, cost.task_operations) == (6, 2, 2)


@one_emulator
def test_a_page_is_booked_to_its_rule_and_method(app: Flask, report: CostReport) -> None:
    """Whatever the path: a caller that makes up a thousand paths makes no row more."""
    visitor = app.test_client()
    for number in range(20):
        visitor.get(f"/invitations/{number:032x}")
        visitor.get(f"/nothing-here/{number}")
        visitor.post(f"/tasks/made-up/{number}")

    assert dict(report.calls) == {
        ("route", "GET /invitations/<party_id>"): 20,
        ("route", NO_ROUTE): 20,
        ("route", "POST /tasks/<path:rest>"): 20,
    }
    assert report.costs["route", "GET /invitations/<party_id>"].reads == 20
    assert report.costs["route", NO_ROUTE] == Cost()


@one_emulator
def test_what_no_call_asked_for_stays_apart(world: World, app: Flask, report: CostReport) -> None:
    """All that the process has spent is in the report, once."""
    with world.clients.context():
        ndb.put_multi([Thing(id="c"), Thing(id="d"), Thing(id="e")])
    Queue(world, app).deliver(PATH)

    report.write()
    [path] = report.folder.glob("*.costs")
    rows = {row["kind"]: Cost.of(row["cost"]) for row in json.loads(path.read_text())}
    assert rows["task"].writes == 3
    assert rows["rest"].writes == 3
    assert rows["task"] + rows["rest"] == world.clients.meter.total()


@one_emulator
def test_a_report_is_written_by_itself(world: World, app: Flask, tmp_path: Path) -> None:
    """No request waits for it."""
    report = CostReport(tmp_path / "own", world.clients.meter)
    report.folder.mkdir()
    report.start()
    report.add("route", "GET /", Cost(reads=1))

    ends_at = time.monotonic() + 30
    while not (found := list(report.folder.glob("*.costs"))):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    assert json.loads(found[0].read_text())[0]["name"] == "GET /"


@one_emulator
def test_a_deployed_app_books_nothing(world: World) -> None:
    """Only `make run` names a folder."""
    app = app_with(world)

    assert not any(
        function.__module__ == costs.__name__ for function in app.before_request_funcs[None]
    )
