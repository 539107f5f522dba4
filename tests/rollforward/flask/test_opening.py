"""Declaring an app opens nothing; a worker's start or the first request does, once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from flask import Flask
from google.cloud import ndb
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

import rollforward as rf
from rollforward.flask import BadSettingsError, open_app
from rollforward.flask.endpoints import delivery_log
from rollforward.telemetry import logs
from tests.infra.documents import LOCAL_ENVIRONMENT

pytestmark = pytest.mark.fast


@rf.task
def greet(name: str) -> None:
    """Do nothing."""


@rf.task
def wave(name: str) -> None:
    """Do nothing; no app has it."""


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker sets up logging for its whole process, in which other tests run, too."""
    monkeypatch.setattr(delivery_log, "install", lambda: None)
    monkeypatch.setattr(logs, "install", lambda *args: None)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a laptop; nobody listens there."""
    for name, value in LOCAL_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOCAL_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def declared(*parts: object) -> Flask:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: str(sorted(rf.registry.Registry(*parts).tasks)))
    return rf.serve(app, *parts)


@pytest.mark.usefixtures("nowhere")
def test_an_import_opens_nothing_and_needs_no_settings() -> None:
    """A test or a script imports the module of an app as any other."""
    app = declared(greet)

    assert "wiring" not in app.extensions
    assert "/tasks/greet" in app.extensions["rollforward"].registry.tasks


@pytest.mark.usefixtures("local")
def test_the_first_request_opens_an_app_that_no_server_has_opened() -> None:
    """With its endpoints, guards and settings; routes may be added until then."""
    app = declared(greet)
    app.add_url_rule("/late", "late", view_func=lambda: rf.clients().new_id())
    client = app.test_client()

    assert client.get("/late").status_code == 200
    assert client.post("/tasks/greet", json={"name": "you"}).status_code == 403
    assert client.get("/health/live").status_code == 200
    assert client.get("/").headers["X-Content-Type-Options"] == "nosniff"


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "called": (lambda: greet("you"), r"greet is a task.* write \.enqueue\(\.\.\.\)"),
    "wrong type": (lambda: greet.enqueue(5), "name: Input should be a valid string, not int"),  # type: ignore[arg-type]
    "too many": (lambda: greet.enqueue("a", "b"), "/tasks/greet: too many positional arguments"),  # type: ignore[call-arg]
    "not registered": (lambda: wave.enqueue("you"), r"wave.* to rf\.serve\(app, \.\.\.\)"),
    "no transaction": (lambda: rf.enqueue(greet, greet.bind("you")), "NoTransactionError"),
    "own": (lambda: 1 // 0, "ZeroDivisionError: .*by zero"),
}


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_on_a_laptop_the_page_names_the_mistake_and_its_line(mistake: str) -> None:
    """A beginner sees it where it was made; a name that another site gave this machine does not."""
    make, said = MISTAKES[mistake]
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: str(make()))
    client = rf.serve(app, greet).test_client()
    shown = client.get("/", base_url="http://127.0.0.1:8080")
    elsewhere = client.get("/", base_url="http://rebound.example")

    assert (shown.status_code, elsewhere.status_code) == (500, 400)
    assert re.search(said, shown.text, re.DOTALL)
    assert re.search(r"test_opening\.py, line \d+: ", shown.text)
    assert not re.search(said, elsewhere.text, re.DOTALL)


@pytest.mark.usefixtures("local")
def test_many_first_requests_open_it_once() -> None:
    """Two sets of clients would each recover and report."""
    app = declared(greet)
    wirings = []
    start = threading.Barrier(4)

    def open_it() -> None:
        start.wait()
        wirings.append(open_app(app))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(wirings) == 4
    assert len({id(wiring) for wiring in wirings}) == 1


def test_an_app_that_cannot_be_opened_can_be_opened_later(
    nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt says what is missing, as the first one does."""
    app = declared(greet)
    for _ in range(2):
        with pytest.raises(BadSettingsError):
            open_app(app)
    for name, value in LOCAL_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    assert app.test_client().get("/health/live").status_code == 200


@pytest.mark.usefixtures("local")
def test_an_app_whose_worker_could_not_start_is_mounted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request says why, until it starts: no second mount is refused by Flask instead."""
    refusals = [RuntimeError("can't start new thread")] * 2

    def start(*args: object) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr("rollforward.flask.app.start", start)
    app = declared(greet)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            app.test_client().get("/health/live")

    assert app.test_client().get("/health/live").status_code == 200


@pytest.mark.usefixtures("local")
def test_middleware_around_the_app_stays_around_it() -> None:
    """Whether it is put there before `serve` or after."""
    order = []

    class Noting:
        def __init__(self, name: str, app: Any) -> None:
            self.name, self.app = name, app

        def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
            order.append(self.name)
            answer: Iterable[bytes] = self.app(environ, start_response)
            return answer

    app = Flask(__name__)
    app.wsgi_app = Noting("before", app.wsgi_app)  # type: ignore[method-assign]
    rf.serve(app, greet)
    app.wsgi_app = Noting("after", ProxyFix(app.wsgi_app))  # type: ignore[method-assign]
    for _ in range(2):
        app.test_client().get("/health/live")

    assert order == ["after", "before"] * 2


def test_parts_or_a_registry_of_them_are_the_same() -> None:
    """A larger app has its registry in a module of its own."""
    apart, together = declared(greet), Flask(__name__)
    rf.serve(together, rf.Registry(greet))

    registries = [app.extensions["rollforward"].registry for app in (apart, together)]
    assert registries[0].tasks.keys() == registries[1].tasks.keys()


@pytest.mark.parametrize("arguments", [(greet, Flask(__name__)), (Flask, greet), ("hello", greet)])
def test_a_first_argument_that_is_no_app_is_refused_with_what_to_write(arguments: Any) -> None:
    """The commonest mistake is the other order."""
    with pytest.raises(TypeError, match=r"serve = rf\.serve\(app, greet\)"):
        rf.serve(*arguments)


def test_a_function_that_is_no_task_is_refused_with_its_name() -> None:
    """The decorator was forgotten."""

    def forgotten(name: str) -> None: ...

    with pytest.raises(TypeError, match=r"forgotten.*@rf\.task"):
        declared(forgotten)


@pytest.mark.usefixtures("local")
def test_a_streamed_response_opens_a_context_of_its_own() -> None:
    """That of its request has ended; without one the error says what to do."""

    def names(context: Callable[[], Any]) -> Iterable[str]:
        with context():
            yield str(ndb.Key("Name", 1, namespace="").id())

    app = Flask(__name__)
    app.add_url_rule("/good", "good", lambda: names(rf.clients().context))
    app.add_url_rule("/bad", "bad", lambda: names(nullcontext))
    client = rf.serve(app, greet).test_client()

    assert client.get("/good").text == "1"
    with pytest.raises(ndb.exceptions.ContextError, match="context is open"):
        client.get("/bad")


@pytest.mark.usefixtures("local")
def test_an_app_that_is_mounted_inside_of_the_served_one_has_its_clients() -> None:
    """As the how-to mounts a second app of a process, which has one URL for its tasks."""
    app, inner = Flask("shop"), Flask("admin")
    inner.add_url_rule("/", view_func=lambda: str(sorted(rf.clients().task_paths or ())))
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/admin": inner})  # type: ignore[method-assign]
    client = rf.serve(app, greet).test_client()

    assert "/tasks/greet" in client.get("/admin/").text
    assert client.get("/health/live").status_code == 200
