"""Every page: it changes nothing when it is read, and takes no form that is not ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollforward.flask.guards.security import CONTENT_SECURITY_POLICY
from rollforward.tasks.cloud_tasks import UrlTarget
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import PARTY, Browser, app_with, on_app_engine, on_cloud_run
from tests.handlers.invitations.party import ID, PAGE
from tests.infra.world import Services, World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


GETS = [
    "/",
    "/invitations",
    PAGE,
    f"{PAGE}?after=" + "0" * 24,
    f"{PAGE}/live",
    "/health/live",
    "/health/ready",
    "/_ah/warmup",
    "/static/app.css",
    "/quilt",
    "/nothing",
    f"/invitations/{'c' * 32}",
    f"{PAGE}/send",
    "/break-it/errors/on",
]


def test_what_is_read_changes_nothing(
    world: World, browser: Browser, party: str, snapshot: Callable[[], Any]
) -> None:
    """S19: GET, HEAD and OPTIONS on every address leave the store as it was."""
    stored = snapshot()

    for path in GETS:
        for method in ("GET", "HEAD", "OPTIONS"):
            response = browser.client.open(path, method=method, buffered=True)
            assert response.status_code < 500

    assert snapshot() == stored


def test_every_answer_is_dressed(browser: Browser, party: str) -> None:
    """S18: pages, errors and files alike carry the headers that keep a page to itself."""
    for path in GETS:
        headers = browser.get(path).headers

        assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY, path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["Referrer-Policy"] == "same-origin", path
        assert "no-store" in headers["Cache-Control"] or path.startswith("/static"), path


def test_the_policy_allows_nothing_but_files_of_ours(services: Services) -> None:
    """S18: no inline script or style, no frame around us, no form that leads elsewhere."""
    parts = CONTENT_SECURITY_POLICY.split("; ")

    assert {"default-src 'none'", "frame-ancestors 'none'", "form-action 'self'"} <= set(parts)
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "script-src 'self'" in parts


def test_a_page_holds_no_script_and_no_style_of_its_own(browser: Browser, party: str) -> None:
    """S18: the policy allows files of ours alone, so a page that needs more would be broken."""
    for path in GETS[:5]:
        text = browser.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text), path


@pytest.mark.parametrize("deployed", [on_app_engine, on_cloud_run])
def test_a_deployed_app_says_nothing_of_where_it_runs(
    world: World, party: str, deployed: Callable[[World], Any]
) -> None:
    """S30: neither its project nor its platform, on no page and in no error."""
    browser = Browser(app_with(world, settings=deployed(world)))

    for path in [*GETS, "/blog", "/blog/feed.atom", "/numbers"]:
        text = browser.get(path).text.lower()
        assert "real-project" not in text, path
        assert not re.search(r"\b(appengine|cloudrun)\b", text), path


def test_two_apps_of_a_laptop_leave_each_other_their_forms(world: World) -> None:
    """S19: a browser sends all ports the same cookies, and each app replaced the other's."""
    visitors = []
    for port in (8080, 9000):
        target = UrlTarget(f"http://127.0.0.1:{port}", ACCOUNT, BASE_URL)
        settings = replace(world.settings, target=target, secret_keys=(f"of-{port}" * 8,))
        visitors.append(Browser(app_with(world, settings=settings)))
    one, other = visitors
    other.client._cookies = one.client._cookies  # Of one browser.
    assert one.token() != other.token()

    assert one.post("/invitations", {"id": ID, **PARTY}).status_code == 303
    assert other.post("/invitations", {"id": "d" * 32, **PARTY}).status_code == 303


@pytest.mark.parametrize("deployed", [on_app_engine, on_cloud_run])
def test_a_deployed_app_keeps_its_cookie_to_itself(
    world: World, deployed: Callable[[World], Any]
) -> None:
    """S21: Secure, HttpOnly, SameSite, and a name that no other host can set; https for good."""
    browser = Browser(app_with(world, settings=deployed(world)))

    response = browser.get("/invitations", base_url="https://rollforward.example")

    cookie = response.headers["Set-Cookie"]
    assert cookie.startswith("__Host-session=")
    for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    assert response.headers["Strict-Transport-Security"].startswith("max-age=")


TIME = re.compile(r'<time datetime="([^"]+)">([^<]+)</time>')


def test_each_time_of_the_app_says_that_it_is_utc(browser: Browser, party: str) -> None:
    """A visitor elsewhere took it for their own; a party's is of the place where it is."""
    sale = {"orders": "2", "stock": "2", "patience": "15", "courier": "you", "pace": "fast"}
    rush = {"flood": "2", "behind": "1", "tasks": "1", "chosen": "B", "rule": "none", "dead": "0"}
    assert browser.post("/orders", {"id": "e" * 32, **sale}).status_code == 303
    assert browser.post("/tenants", {"id": "e" * 32, "way": "line", "pace": "fast", **rush})
    assert browser.post("/numbers", {"id": "e" * 32}).status_code == 303

    for path in ("/", "/invitations", PAGE, "/orders", "/tenants", "/numbers"):
        times = TIME.findall(browser.get(path).text)
        assert times, path
        for machine, shown in times:
            is_of_the_party = machine.startswith(PARTY["when"])
            assert machine.endswith("Z") != is_of_the_party, path
            assert shown.endswith(" UTC") != is_of_the_party, path


FORMS = {
    "/invitations": {"id": "d" * 32, **PARTY},
    f"{PAGE}/details": {**PARTY, "title": "Forged"},
    f"{PAGE}/guests": {"id": "d" * 32, "pasted": "Eve,eve@example.com"},
    f"{PAGE}/sample-guests": {"id": "d" * 32, "count": "10"},
    f"{PAGE}/send": {},
    f"{PAGE}/sends/{'0' * 40}/cancel": {},
    "/break-it/errors/on": {},
    "/break-it/worker/kill": {},
    "/nothing": {},
}


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_our_token_does_nothing(
    world: World, browser: Browser, bare_party: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19: no token, a wrong one, another session's, one of another key, or one from elsewhere."""
    stored = snapshot()
    ours = browser.token()
    strangers = Browser(world.app).token()
    other_key = replace(world.settings, secret_keys=("other-0123456789abcdef-0123456789",))
    forged = Browser(app_with(world, settings=other_key)).token()
    elsewhere = {"Sec-Fetch-Site": "cross-site"}

    responses = [
        browser.client.post(path, data=FORMS[path]),
        browser.client.post(path, json={"csrf_token": ours, **FORMS[path]}),
        *[browser.post(path, FORMS[path], token=token) for token in ("x", strangers, forged)],
        browser.post(path, FORMS[path], headers=elsewhere),
        browser.post(path, FORMS[path], headers={"Sec-Fetch-Site": "same-site"}),
        Browser(world.app).post(path, FORMS[path], token=ours),
    ]

    assert [response.status_code for response in responses] == [403] * 8
    assert snapshot() == stored


def test_an_old_token_is_refused(
    world: World, browser: Browser, bare_party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S19: a token lives for a day."""
    token = browser.token()
    world.app.config["WTF_CSRF_TIME_LIMIT"] = -1

    assert browser.post(f"{PAGE}/send", token=token).status_code == 403
    refused = browser.post(f"{PAGE}/send", token=token).text
    assert "expired" in refused
    assert "Go back and send it again" in refused


def test_a_session_survives_a_change_of_keys(world: World, browser: Browser) -> None:
    """S22: with the old key in second place, no visitor loses the content of the cookie."""
    browser.create_party(ID)
    browser.post(f"{PAGE}/send")
    cookie = browser.client.get_cookie("session")
    assert cookie is not None
    new = ("brand-new-0123456789-abcdefghij-KLM", *world.settings.secret_keys)
    for keys, is_kept in ((new, True), (new[:1], False)):
        app = app_with(world, settings=replace(world.settings, secret_keys=keys))
        rotated = Browser(app)
        rotated.client.set_cookie("session", cookie.value)

        assert ("add guests first" in rotated.get(PAGE).text) == is_kept
