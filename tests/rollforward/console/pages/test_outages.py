"""Pages and API while a service fails: they say which error it gave."""

from __future__ import annotations

import re

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.console.api import queries
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.testing.injection import ERROR
from tests.rollforward.console.conftest import API, Desk
from tests.rollforward.console.test_pages import Browser


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.ResourceExhausted("Quota exceeded for reads"),
        rpc_errors.ServiceUnavailable("connection refused"),
        rpc_errors.InternalServerError("sick"),
    ],
)
def test_a_page_says_why_a_service_does_not_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: rpc_errors.GoogleAPICallError
) -> None:
    """A quota that is used up is no outage, and is not over in a moment: it was not named."""

    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(DeadTask, "query", fail)

    page, listed = Browser(desk).open("/dead"), desk.ask(f"{API}/dead-tasks")

    assert (page.status_code, listed.status_code) == (503, 503)
    assert error.message in page.text
    assert 'href="/rollforward/audit"' in page.text
    assert error.message in listed.json["detail"]


def test_an_outage_names_the_service(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that a service does not answer, and operators were left to guess which one."""
    states = {"datastore": False, "tasks": True, "memcached": True}
    monkeypatch.setattr(queries, "service_states", lambda: states)

    def fail(*args: object, **options: object) -> None:
        raise rpc_errors.DeadlineExceeded("Deadline Exceeded")

    monkeypatch.setattr(DeadTask, "query", fail)

    page, listed = Browser(desk).open("/dead"), desk.ask(f"{API}/dead-tasks")

    for text in (page.text, listed.json["detail"]):
        assert "Datastore does not answer." in text
        assert "Deadline Exceeded" in text


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_a_datastore_that_refuses_writes_alone_is_named(desk: Desk) -> None:
    """Reads succeed, so it was well for `/health/ready`, and pings named no service."""
    desk.world.plan.break_next("Commit", ERROR, times=1_000)
    ping = desk.change("/pings")
    desk.world.plan.pending.clear()

    assert ping.status_code == 503
    for text in (ping.json["detail"], Browser(desk).read("/")):
        assert "Datastore answers, but" in text
        assert re.search(r"\d+ Commit calls of this process failed within a minute: UNAV", text)


@pytest.mark.parametrize(("count", "is_shown"), [(2, False), (3, True)])
def test_a_call_that_fails_now_and_then_needs_no_attention(
    desk: Desk, count: int, is_shown: bool
) -> None:
    """It is repeated."""
    failures = desk.world.clients.meter.failures
    for _ in range(count):
        failures.note("google.cloud.tasks.v2.CloudTasks", "CreateTask", "INTERNAL")

    text = Browser(desk).read("/")

    assert ("Cloud Tasks answers, but 3 CreateTask calls of this process" in text) == is_shown
