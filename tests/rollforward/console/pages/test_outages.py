"""Pages and API while a service fails: they say which error it gave."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.console.api import queries
from rollforward.tasks.dead_task_entities import DeadTask
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
