"""An app that exists already, with pages, checks and settings of its own, takes the library in."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask, abort, request, session
from flask_wtf import CSRFProtect

import rollforward as rf
from rollforward.console import Role
from rollforward.flask import app as apps
from rollforward.flask.endpoints import delivery_log
from rollforward.flask.guards import csrf, fields
from rollforward.flask.own_routes import check_routes
from rollforward.runtime.process.current import current_clients
from rollforward.tasks.cloud_tasks import AppEngineTarget, UrlTarget
from rollforward.telemetry import logs
from tests.infra.documents import LOCAL_ENVIRONMENT

pytestmark = pytest.mark.fast


@rf.task
def ship(order: str) -> None:
    """Do nothing."""


@rf.task
def remind(order: str) -> None:
    """Do nothing, either."""


@rf.task(path="/tasks/7")
def seventh(order: str) -> None:
    """Do nothing, under a number."""


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of one, where nobody listens; logging stays as it was."""
    monkeypatch.setattr(delivery_log, "install", lambda: None)
    monkeypatch.setattr(logs, "install", lambda *args: None)
    for name, value in LOCAL_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def old_app() -> Flask:
    """A shop with a form, an error page, a cookie's name and a key of its own."""
    app = Flask("old_shop")
    app.config.update(SECRET_KEY="its own", SESSION_COOKIE_NAME="shop", MAX_CONTENT_LENGTH=123_456)

    @app.get("/")
    def home() -> str:
        return "the shop"

    @app.post("/buy")
    def buy() -> str:
        return str(len(request.form["note"]))

    @app.post("/tasks/mail")
    def mail() -> str:
        return "an old handler of a queue"

    @app.get("/broken")
    def broken() -> str:
        raise KeyError("broken")

    app.register_error_handler(Exception, lambda error: ("the shop's own page", 500))
    return app


def test_the_pages_of_an_app_that_guards_them_itself_stay_as_they_are() -> None:
    """No header, form, error page, cookie or limit of the app changes; our endpoints are guarded.

    With our guards its scripts, long texts, webhooks and old task handlers would be refused.
    """
    app = rf.serve(old_app(), ship, guards_pages=False)
    visitor = app.test_client()

    home = visitor.get("/", base_url="http://shop.test")
    assert (home.status_code, "Content-Security-Policy" in home.headers) == (200, False)
    assert "Cache-Control" not in home.headers
    assert visitor.post("/buy", data={"note": "x" * (fields.MAX_CHARS + 1)}).text == "201"
    assert visitor.post("/tasks/mail", json={}).status_code == 200
    assert visitor.get("/broken").text == "the shop's own page"
    kept = {name: app.config[name] for name in ("SECRET_KEY", "SESSION_COOKIE_NAME")}
    assert kept == {"SECRET_KEY": "its own", "SESSION_COOKIE_NAME": "shop"}
    assert app.config["MAX_CONTENT_LENGTH"] == 123_456


def test_the_endpoints_of_the_library_are_guarded_in_such_an_app() -> None:
    """S1, S2, S19: strangers are refused, a form of the console needs a token, errors are ours."""
    visitor = rf.serve(old_app(), ship, guards_pages=False).test_client()

    refused = visitor.post("/tasks/ship", json={"order": "o1"})
    assert (refused.status_code, refused.text) == (403, "")
    assert "Content-Security-Policy" in refused.headers
    assert visitor.get("/cron/sweep").status_code == 403
    form = visitor.post("/rollforward/dead/change", data={"target": "1:delete"})
    assert (form.status_code, "CSRF" in form.text) == (403, True)
    elsewhere = {"Origin": "https://elsewhere.test"}
    assert "another site" in visitor.post("/rollforward/dead/change", headers=elsewhere).text
    assert visitor.get("/rollforward/", base_url="http://shop.test").status_code == 400
    long = visitor.get("/rollforward/runs?" + "&".join(["a=1"] * (fields.MAX_FIELDS + 1)))
    assert (long.status_code, "at most 50 fields" in long.text) == (413, True)


def test_an_app_that_is_served_twice_is_told_so_at_its_start() -> None:
    """Not by each request, as a blueprint that is registered already."""
    app = rf.serve(old_app(), ship)

    with pytest.raises(TypeError, match="'old_shop' before: list all its parts in one call"):
        rf.serve(app, remind)


def test_an_app_without_a_key_signs_with_that_of_the_settings() -> None:
    """The console's forms need one, whoever guards the pages."""
    app = rf.serve(Flask("old_shop"), ship, guards_pages=False)
    app.test_client().get("/health/live")

    assert app.config["SECRET_KEY"] == LOCAL_ENVIRONMENT["SECRET_KEY"]


@pytest.mark.parametrize("guards_pages", [True, False])
def test_a_session_outlives_a_change_of_keys_whoever_guards_the_pages(
    monkeypatch: pytest.MonkeyPatch, guards_pages: bool
) -> None:
    """S22: an app without a key takes all keys of the settings, not the first alone."""
    old, new = LOCAL_ENVIRONMENT["SECRET_KEY"], "9f31c07ab5d24e6870d9b2f1ac3e5846"
    cookie = ""
    for keys in (old, f"{new},{old}"):
        monkeypatch.setenv("SECRET_KEY", keys)
        app = Flask("shop")
        app.get("/enter", endpoint="in")(lambda: session.setdefault("name", "ada"))
        app.get("/", endpoint="home")(lambda: session.get("name", "a stranger"))
        client = rf.serve(app, ship, guards_pages=guards_pages).test_client(use_cookies=False)
        if not cookie:
            cookie = client.get("/enter").headers["Set-Cookie"].partition(";")[0]

    assert client.get("/", headers={"Cookie": cookie}).text == "ada"


@pytest.mark.parametrize("guards_pages", [True, False])
def test_an_own_csrf_check_lets_the_queue_pass_and_decides_about_pages(guards_pages: bool) -> None:
    """S19: the app's CSRFProtect checks its forms; before, it refused each delivery with 400.

    A stranger's delivery comes as far as our check of callers, which answers 403.
    """
    app = old_app()
    own = CSRFProtect(app)

    @app.post("/webhooks/pay")
    @own.exempt
    def pay() -> Any:
        return request.get_json()

    visitor = rf.serve(app, ship, guards_pages=guards_pages).test_client()

    assert visitor.post("/webhooks/pay", json={"paid": 1}).json == {"paid": 1}
    assert visitor.post("/buy", data={"note": "x"}).status_code in (400, 500)
    for path in ("/tasks/ship", "/control/runs/batches/books/b1/retry"):
        refused = visitor.post(path, json={})
        assert (refused.status_code, refused.text) == (403, "")


def test_a_second_context_of_ndb_says_what_to_remove() -> None:
    """An app that opens one around each request, as ndb's manual shows, fails at every page."""
    app = Flask("old_shop")
    app.get("/")(lambda: "the shop")
    inner = app.wsgi_app

    def in_own_context(environ: Any, start_response: Any) -> Any:
        with current_clients().context():
            return inner(environ, start_response)

    app.wsgi_app = in_own_context  # type: ignore[method-assign]
    rf.serve(app, ship)

    with pytest.raises(RuntimeError) as raised:
        app.test_client().get("/")

    assert "remove the app's own" in raised.value.__notes__[0]


@pytest.mark.parametrize("route", ["/tasks/<name>", "/tasks/<name>/", "/tasks/ship"])
def test_a_route_that_would_take_a_task_is_refused_at_the_start(route: str) -> None:
    """Its answer would end the task, whose work nobody has done. Each attempt says so."""
    app = old_app()
    app.add_url_rule(route, "any", lambda **names: "done", methods=["POST"])
    rf.serve(app, ship)
    for _ in range(2):
        with pytest.raises(TypeError, match="/tasks/ship would not arrive: old_shop has a route"):
            app.test_client().get("/")


def test_a_route_whose_converter_refuses_a_task_is_named() -> None:
    """The app ended at its start with an error 404, which said nothing of routes."""
    app = old_app()
    app.add_url_rule("/tasks/<int(max=5):number>", "any", lambda number: "", methods=["POST"])
    rf.serve(app, seventh)

    with pytest.raises(TypeError, match="/tasks/7 would not arrive: old_shop has a route"):
        app.test_client().get("/")


def test_a_route_with_two_slashes_takes_a_task_where_they_are_not_merged() -> None:
    """Then Flask gives it the deliveries of a path of two slashes, and they ended in silence."""

    @rf.task(path="/tasks/a//b")
    def doubled(order: str) -> None:
        """Do nothing, behind two slashes."""

    app = old_app()
    app.url_map.merge_slashes = False
    app.add_url_rule("/tasks/a//b", "any", lambda: "done", methods=["POST"])
    rf.serve(app, doubled)

    with pytest.raises(TypeError, match="/tasks/a//b would not arrive"):
        app.test_client().get("/")


@pytest.mark.parametrize("route", ["/tasks/mail/<name>", "/<path:page>", "/tasks", "/tasks/"])
def test_routes_beside_those_of_tasks_stay(route: str) -> None:
    """As a list of tasks, or the old handler of a queue."""
    app = old_app()
    app.add_url_rule(route, "any", lambda **names: "own", methods=["GET", "POST"])
    client = rf.serve(app, ship).test_client()

    assert client.post("/tasks/ship", json={}).status_code == 403
    assert client.get(route.replace("<name>", "x").replace("<path:page>", "a/b")).text == "own"


def test_a_route_that_is_only_read_takes_no_task() -> None:
    app = old_app()
    app.add_url_rule("/tasks/<name>", "look", lambda name: f"look at {name}")
    client = rf.serve(app, ship).test_client()

    assert client.get("/tasks/ship").text == "look at ship"
    assert client.post("/tasks/ship", json={}).status_code == 403


def test_an_app_whose_routes_need_hosts_is_refused() -> None:
    """All of ours would answer 404, those of tasks and sweeps without a word."""
    app = Flask("hosts", host_matching=True, static_host="shop.test")
    app.add_url_rule("/", "home", lambda: "home", host="shop.test")
    rf.serve(app, ship)

    with pytest.raises(TypeError, match="hosts has host_matching"):
        app.test_client().get("/", base_url="http://shop.test")


def test_an_app_whose_subdomains_leave_tasks_out_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks, sweeps and probes go to another host: each would be answered 404."""

    def opened(server_name: str | None) -> int:
        app = Flask("tenants", subdomain_matching=True)
        app.config["SERVER_NAME"] = server_name
        rf.serve(app, ship).extensions["rollforward"].open()
        host = LOCAL_ENVIRONMENT["TASKS_URL"]
        return app.test_client().post("/tasks/ship", base_url=host).status_code

    monkeypatch.setattr(apps, "start", lambda *args: None)
    with pytest.raises(TypeError, match=r"tenants has subdomain_matching.* go to 127\.0\.0\.1:1:"):
        opened("shop.test")
    assert [opened("127.0.0.1:1"), opened(None)] == [403, 403]


@pytest.mark.parametrize(
    ("hosts", "target", "is_reached"),
    [
        (["shop.test"], UrlTarget("https://shop.run.app", "", ""), False),
        (["shop.test", ".run.app"], UrlTarget("https://shop.run.app", "", ""), True),
        (["127.0.0.1"], UrlTarget("http://127.0.0.1:8080", "", ""), True),
        (["shop.test"], AppEngineTarget(), False),
        (["shop.test", ".shop.uc.r.appspot.com"], AppEngineTarget(), True),
        (None, AppEngineTarget(), True),
    ],
)
def test_an_app_that_does_not_trust_the_host_of_tasks_is_refused(
    hosts: list[str] | None, target: AppEngineTarget | UrlTarget, is_reached: bool
) -> None:
    """Flask answers 400 to each request under another name, and no line says so."""
    app = Flask("old_shop")
    app.config["TRUSTED_HOSTS"] = hosts
    refused = pytest.raises(TypeError, match="old_shop has TRUSTED_HOSTS without")

    with nullcontext() if is_reached else refused:
        check_routes(app, [], target)


@pytest.mark.parametrize("has_own_check", [True, False])
@pytest.mark.parametrize("guards_pages", [True, False])
def test_the_console_s_forms_work_whatever_the_app_calls_its_token(
    guards_pages: bool, has_own_check: bool
) -> None:
    """S19: with another WTF_CSRF_FIELD_NAME each button of the console was refused with 403."""
    app = old_app()
    if has_own_check:
        CSRFProtect(app)
    app.config["WTF_CSRF_FIELD_NAME"] = "_csrf"
    operator = rf.serve(app, ship, guards_pages=guards_pages).test_client()
    page = operator.get("/rollforward/enqueue/task?path=/tasks/ship").text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None

    def press(**fields: str) -> str:
        return operator.post("/rollforward/dead/selected", data=fields).text

    assert "Select at least one dead task." in press(csrf_token=token[1])
    assert "CSRF" in press(csrf_token="x")
    assert "CSRF" in press()


@pytest.mark.parametrize("guards_pages", [True, False])
def test_errors_of_the_console_are_its_own_where_the_app_has_a_page_for_their_status(
    guards_pages: bool,
) -> None:
    """An operator whose page was open for a day read that the rights are missing."""
    app = old_app()
    app.register_error_handler(403, lambda error: ("the shop's own page", 403))
    app.add_url_rule("/secret", "secret", lambda: abort(403))
    console = rf.Console(access=lambda request: Role.READ)
    operator = rf.serve(app, ship, console=console, guards_pages=guards_pages).test_client()

    assert operator.get("/secret").text == "the shop's own page"
    old_form = operator.post("/rollforward/dead/selected", data={"csrf_token": "x"})
    assert csrf.ADVICE in old_form.text
    change = operator.post("/rollforward/api/v1/dead-tasks:delete", json={"filter": {}})
    assert change.json == {**change.json, "status": 403, "detail": "Your role can only read."}


@pytest.mark.parametrize(("hours", "status"), [(23, 200), (25, 403)])
def test_the_token_of_a_form_is_good_for_a_day(
    monkeypatch: pytest.MonkeyPatch, hours: int, status: int
) -> None:
    """S19: a page that stays open for hours can be sent; an old token is asked for anew."""
    app = Flask("shop")
    app.add_url_rule("/", "home", csrf.token, methods=["GET", "POST"])
    visitor = rf.serve(app, ship).test_client()
    earlier_s = time.time() - hours * 3600
    with monkeypatch.context() as earlier:
        earlier.setattr("itsdangerous.timed.time", SimpleNamespace(time=lambda: earlier_s))
        token = visitor.get("/").text

    assert visitor.post("/", data={"csrf_token": token}).status_code == status
