"""What a worker does when it starts: its queues are checked before it serves."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, session
from flask.testing import FlaskClient
from google.api_core import exceptions as rpc_errors
from werkzeug.datastructures import WWWAuthenticate

from rollforward import flask as endpoints
from rollforward.flask import app as apps
from rollforward.flask.guards import csrf
from rollforward.flask.settings import CLOUD_RUN
from rollforward.registry import Registry
from rollforward.runtime.process.processes import LockedFiles, NoProcesses
from rollforward.tasks import Task
from rollforward.tasks.errors import UnknownQueueError
from tests.infra.stack import until
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@dataclass(frozen=True)
class Nothing:
    """No arguments."""


LOST = Registry(Task("/tasks/lost", "nosuch", Nothing, print))


@pytest.fixture(autouse=True)
def no_recovery(monkeypatch: pytest.MonkeyPatch) -> list[Registry]:
    """What would have been looked for, and is not."""
    started: list[Registry] = []
    monkeypatch.setattr(apps.delivery_log, "install", lambda: None)
    monkeypatch.setattr(apps.recovery, "start", lambda clients, registry: started.append(registry))
    return started


def test_a_queue_that_does_not_exist_ends_the_start_on_a_laptop(world: World) -> None:
    """A sentence at `make run`, and no task that is never delivered."""
    with pytest.raises(UnknownQueueError, match=r"/tasks/lost goes to the queue 'nosuch'.*default"):
        endpoints.start(world.settings, world.clients, LOST)


def test_a_deployed_app_logs_it_and_serves(
    world: World, no_recovery: list[Registry], caplog: pytest.LogCaptureFixture
) -> None:
    """A queue may be deployed a moment later than the app."""
    deployed = dataclasses.replace(world.settings, platform=CLOUD_RUN)
    with caplog.at_level(logging.ERROR):
        endpoints.start(deployed, world.clients, LOST)
        until(lambda: "goes to the queue 'nosuch'" in caplog.text, 10)

    assert no_recovery == [LOST]


def test_an_app_starts_when_its_queues_cannot_be_listed(
    world: World, no_recovery: list[Registry]
) -> None:
    """Cloud Tasks does not answer: visitors are served, and the outbox keeps their tasks."""

    class Silent:
        def queues(self) -> Any:
            raise rpc_errors.ServiceUnavailable("away")

    clients = replace(world.clients, tasks=Silent())  # type: ignore[arg-type]
    endpoints.start(world.settings, clients, LOST)

    assert no_recovery == [LOST]


def test_the_demos_have_all_their_queues(world: World, no_recovery: list[Registry]) -> None:
    """Those that `make run` takes from queue.yaml."""
    endpoints.start(world.settings, world.clients, world.registry)

    assert no_recovery == [world.registry]


# Mounted on an app of one's own


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/buy", "/api/buy", "/tasks/new", "/cron/new", "/metrics-of-mine", "/metrics/mine"]
)
def test_forms_of_an_own_app_need_a_token_wherever_they_are(
    world: World, path: str, method: str
) -> None:
    """S19: only our own endpoints, which prove their caller, go without; no method does."""
    bought: list[str] = []

    def buy() -> str:
        bought.append(path)
        return "bought"

    app = Flask("shop")
    app.add_url_rule(path, view_func=buy, methods=[method])
    endpoints.mount(app, world.settings, world.clients, Registry())

    answer = app.test_client().open(path, method=method, base_url="http://localhost")

    assert (answer.status_code, bought) == (403, [])


def test_a_browser_keeps_the_cookie_of_an_app_that_is_mounted_under_a_prefix(world: World) -> None:
    """S21: `__Host-` cookies have the path / and no domain, or else no form's token is right."""
    app = Flask("shop")
    app.config.update(APPLICATION_ROOT="/shop", SESSION_COOKIE_DOMAIN="example.com")
    app.add_url_rule("/", "visit", lambda: session.update(visits=1) or "")
    deployed = dataclasses.replace(world.settings, platform=CLOUD_RUN)
    endpoints.mount(app, deployed, world.clients, Registry())

    cookie = app.test_client().get("/", base_url="https://example.com/shop").headers["Set-Cookie"]

    assert cookie.startswith("__Host-session=")
    assert "Path=/" in cookie.split("; ")
    assert "Domain" not in cookie


def test_an_error_of_an_own_app_keeps_its_headers(world: World) -> None:
    """A browser asks for a password by the one, and a program waits by the other."""
    app, until_utc = Flask("shop"), datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
    basic = WWWAuthenticate("basic", {"realm": "shop"})
    app.add_url_rule("/private", "private", lambda: abort(401, www_authenticate=basic))
    app.add_url_rule("/closed", "closed", lambda: abort(503, retry_after=until_utc))
    app.add_url_rule("/busy", "busy", lambda: abort(429, retry_after=7))
    app.add_url_rule("/send", "send", lambda: "", methods=["POST"])
    endpoints.mount(app, world.settings, world.clients, Registry())
    visitor = app.test_client()

    private, closed, busy = (
        visitor.get(path, base_url="http://localhost").headers
        for path in ("/private", "/closed", "/busy")
    )

    assert private["WWW-Authenticate"] == "Basic realm=shop"
    assert closed["Retry-After"] == "Wed, 01 May 2030 12:00:00 GMT"
    assert busy["Retry-After"] == "7"
    read = visitor.get("/send", base_url="http://localhost")
    assert {*read.headers["Allow"].split(", ")} == {"OPTIONS", "POST"}
    assert private["Content-Type"].startswith("text/plain")


def test_clients_know_the_processes_of_the_instance(world: World, tmp_path: Path) -> None:
    """By which a worker learns who has died; under a server without the folder there are none."""
    alone = dataclasses.replace(world.settings, processes_folder=None)
    together = dataclasses.replace(world.settings, processes_folder=str(tmp_path))

    clients = [endpoints.open_clients(settings, {}) for settings in (alone, together)]

    kinds = [type(opened.processes) for opened in clients]
    assert kinds == [NoProcesses, LockedFiles]


@pytest.mark.parametrize("is_local", [True, False])
def test_an_error_page_names_the_line_of_the_app_on_a_laptop_alone(
    world: World, is_local: bool
) -> None:
    """The innermost line that is no library's."""
    app = Flask("shop")

    def price() -> str:
        return str(int("no price"))

    app.get("/")(lambda: price())
    platform = world.settings.platform if is_local else CLOUD_RUN
    endpoints.mount(app, replace(world.settings, platform=platform), world.clients, Registry())

    page = app.test_client().get("/", base_url="https://localhost").text

    assert ("test_app.py, line" in page) is is_local
    assert (': return str(int("no price"))' in page) is is_local
    assert ("ValueError" in page) is is_local


def test_an_api_that_an_app_names_goes_without_a_token(world: World) -> None:
    """It takes JSON, no cookies; its errors are problem details."""
    app = Flask("shop")
    app.post("/v1/buy")(lambda: "bought")
    endpoints.mount(app, world.settings, world.clients, Registry(), api_prefix="/v1/")
    visitor = app.test_client()

    assert visitor.post("/v1/buy", base_url="http://localhost").text == "bought"
    missing = visitor.get("/v1/nothing", base_url="http://localhost")
    assert (missing.status_code, missing.mimetype) == (404, "application/problem+json")


def test_a_session_outlives_a_change_of_keys(world: World) -> None:
    """S22: as long as the key that has signed it is one of those behind the first."""
    cookie = ""
    for keys, known in ((("old",), ""), (("new", "old"), "ada"), (("newer", "new"), None)):
        app = Flask("shop")
        app.get("/enter", endpoint="in")(lambda: session.setdefault("name", "ada"))
        app.get("/", endpoint="home")(lambda: session.get("name", "nobody"))
        settings = replace(world.settings, secret_keys=keys)
        endpoints.mount(app, settings, world.clients, Registry())
        client = app.test_client(use_cookies=False)
        if known == "":
            cookie = client.get("/enter").headers["Set-Cookie"].partition(";")[0]
            continue
        answer = client.get("/", headers={"Cookie": cookie})
        assert answer.text == (known or "nobody")


@pytest.mark.parametrize(
    ("keys", "status"), [(("new", "old"), 200), (("newer", "new", "old"), 200), (("new",), 403)]
)
def test_a_form_that_is_open_outlives_a_change_of_keys(
    world: World, keys: tuple[str, ...], status: int
) -> None:
    """S19, S22: its token is accepted as long as the key that has signed it is known."""

    def visitor(secret_keys: tuple[str, ...]) -> FlaskClient:
        app = Flask("shop")
        app.add_url_rule("/", "home", csrf.token, methods=["GET", "POST"])
        settings = replace(world.settings, secret_keys=secret_keys)
        endpoints.mount(app, settings, world.clients, Registry())
        return app.test_client(use_cookies=False)

    page = visitor(("old",)).get("/", base_url="http://localhost")
    cookie = {"Cookie": page.headers["Set-Cookie"].partition(";")[0]}
    sent = visitor(keys).post(
        "/", data={"csrf_token": page.text}, headers=cookie, base_url="http://localhost"
    )
    assert sent.status_code == status

    forged = visitor(keys).post(
        "/", data={"csrf_token": page.text[:-1] + "~"}, headers=cookie, base_url="http://localhost"
    )
    assert forged.status_code == 403
