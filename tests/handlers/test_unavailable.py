"""Services that do not answer: what health and pages say of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from google.api_core import exceptions as rpc_errors

import main
from rollforward.flask.endpoints import health
from rollforward.flask.guards.security import CONTENT_SECURITY_POLICY
from rollforward.runtime import NoCache, open_cloud_tasks, open_datastore
from rollforward.tasks import CloudTaskQueue
from rollforward.testing.services import LOCATION, PROJECT
from rollforward.testing.world import in_threads
from tests.handlers.conftest import Browser
from tests.handlers.invitations.party import PAGE
from tests.infra.world import World

SERVICES = ("datastore", "tasks", "memcached")

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health that waits for a busy machine."""
    monkeypatch.setattr(health, "PING_TIMEOUT_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_a_healthy_app_says_so(browser: Browser) -> None:
    """All services that the app needs answer, and the response asks for no action."""
    assert browser.get("/health/live").json == {"live": True}
    ready = browser.get("/health/ready")
    assert (ready.status_code, ready.json and ready.json["ready"]) == (200, True)
    assert "advice" not in (ready.json or {})


@pytest.mark.usefixtures("patient")
def test_an_app_without_memcached_is_ready_and_slower(world: World) -> None:
    """memcached is a hint: without it everything works."""
    browser = Browser(main.create_app(world.settings, replace(world.clients, cache=NoCache())))

    ready = browser.get("/health/ready")

    assert ready.status_code == 200
    assert ready.json is not None
    assert ready.json["memcached"] is False


def test_services_are_asked_once_a_second_whoever_asks(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S24: any caller may ask for readiness, without a limit."""
    at_s, asked = [0.0], list[float]()
    states = dict.fromkeys(SERVICES, True)
    monkeypatch.setattr(health, "_check", lambda: asked.append(at_s[0]) or states)
    browser.app.extensions["health"].elapsed_s = lambda: at_s[0]

    for at_s[0] in (100.0, 100.5, 100.9, 101.0, 101.5, 103.0):
        assert browser.get("/health/ready").json == {"ready": True, **states}

    assert asked == [100.0, 101.0, 103.0]


def test_nobody_waits_in_line_for_services_that_are_slow(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S24: concurrent callers get the last answer."""
    browser.app.extensions["health"].elapsed_s = iter(range(0, 100, 10)).__next__
    asked, answers = list[int](), list[int]()

    def ask() -> dict[str, bool]:
        asked.append(1)
        if len(asked) == 2:
            in_threads(
                lambda: answers.append(Browser(browser.app).get("/health/ready").status_code)
            )
        return dict.fromkeys(SERVICES, len(asked) == 1)

    monkeypatch.setattr(health, "_check", ask)

    statuses = [browser.get("/health/ready").status_code for _ in range(2)]

    assert (statuses, answers) == ([200, 503], [200])


@pytest.fixture
def alone(world: World, monkeypatch: pytest.MonkeyPatch) -> Browser:
    """A browser of an app whose Datastore and Cloud Tasks are away."""
    monkeypatch.setattr(health, "PING_TIMEOUT_S", 0.5)
    tasks = open_cloud_tasks(emulator="127.0.0.1:9")
    clients = replace(
        world.clients,
        datastore=open_datastore(PROJECT, emulator="127.0.0.1:9"),
        tasks=CloudTaskQueue(tasks, PROJECT, LOCATION, world.settings.target),
    )
    return Browser(main.create_app(world.settings, clients))


def test_an_app_without_its_services_says_which(alone: Browser) -> None:
    """503 with the names of the missing services; the process itself is alive."""
    ready = alone.get("/health/ready")

    assert ready.status_code == 503
    assert ready.json is not None
    assert {name for name, is_there in ready.json.items() if not is_there} >= {
        "ready",
        "datastore",
        "tasks",
    }
    assert alone.get("/health/live").status_code == 200


def test_an_app_without_its_services_says_what_to_do(alone: Browser) -> None:
    """On a laptop: stop and start."""
    ready = alone.get("/health/ready")

    assert ready.json is not None
    assert "Datastore and Cloud Tasks do not answer" in ready.json["advice"]
    assert "make run" in ready.json["advice"]


@pytest.mark.parametrize("path", ["/", "/invitations", PAGE])
def test_a_page_without_its_services_says_so_and_no_more(alone: Browser, path: str) -> None:
    """S30: 503 with a sentence; no stack, no file, no address of ours."""
    response = alone.get(path)

    assert response.status_code == 503
    assert "does not answer" in response.text
    assert not re.search(r"Traceback|/[a-z]+\.py|127\.0\.0\.1|grpc|google", response.text)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (rpc_errors.Aborted("race"), 409),
        (rpc_errors.ServiceUnavailable("x"), 503),
        (rpc_errors.DeadlineExceeded("x"), 503),
        (rpc_errors.RetryError("x", cause=ValueError()), 503),
        (KeyError("secret detail"), 500),
        (rpc_errors.InvalidArgument("secret detail"), 500),
    ],
)
def test_an_error_is_answered_in_words(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """S30: a status that fits, a sentence, and nothing of what went wrong inside."""

    def fail() -> None:
        raise error

    monkeypatch.setattr("handlers.invitations.routes.newest_parties", fail)

    response = browser.get("/invitations")

    assert response.status_code == status
    assert "secret detail" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
