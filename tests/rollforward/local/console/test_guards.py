"""Whom the console refuses, and what its answers carry."""

import re
from urllib.parse import urlencode

import pytest

from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console import guards
from tests.rollforward.local.conftest import ask
from tests.rollforward.local.console.conftest import CONSOLE, PAGES, add_task


@pytest.mark.parametrize("path", ["/", "/api/v1/queues", "/api/v1/mail", "/static/console.css"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
def test_a_foreign_host_name_is_refused(console, path, host):
    """A name of somebody else's that points at this machine opens nothing."""
    assert ask(console.address, "GET", path, headers={"Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machines_names_are_answered(console, host):
    """All names of the loopback interface work."""
    answer = ask(console.address, "GET", "/", headers={"Host": f"{host}:{console.port}"})

    assert answer.status == 200


def test_a_form_without_its_token_is_refused(browser, engine):
    """A form that no page of ours made changes nothing."""
    for token in ("wrong", "0" * 64):
        assert browser.post("/queues/default/pause", token=token).status == 403

    assert engine.queues.get(engine.place.queue_name("default")).state == messages.RUNNING


def test_a_token_without_its_cookie_is_refused(console, browser):
    """A token is good in the browser that got it, nowhere else."""
    body = urlencode({"csrf_token": browser.token})
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    without = ask(console.address, "POST", "/mail/clear", body=body, headers=form)
    other = ask(
        console.address,
        "POST",
        "/mail/clear",
        body=body,
        headers={**form, "Cookie": f"{guards.COOKIE}={'x' * 43}"},
    )

    assert (without.status, other.status) == (403, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_sites_page_can_send_nothing(console, browser, platform, headers):
    """Even with a stolen token, and even from another port of this machine."""
    form = browser.post("/faults/kill-worker", **headers)
    json_headers = {"Content-Type": "application/json", **headers}
    api = ask(console.address, "POST", "/api/v1/workers/kill", headers=json_headers)

    assert (form.status, api.status) == (403, 403)
    assert platform.killed == []


FAULTS = ("POST", "/api/v1/faults")
ODD = {
    "an origin that is none": ("GET", "/queues", {"Origin": "http://["}, None),
    "an origin that is none, sent with a change": (*FAULTS, {"Origin": "http://["}, "{}"),
    "a charset that is none": (*FAULTS, {"Content-Type": "application/json; charset=x"}, "{}"),
    "bytes of another charset": (*FAULTS, {"Content-Type": "application/json"}, "{\xff"),
    "JSON that is deep": (*FAULTS, {"Content-Type": "application/json"}, "[" * 100_000),
    "a field of ours": (*FAULTS, {"Content-Type": "application/json"}, '{"self": 1}'),
    "deep mail faults": (
        *("POST", "/api/v1/mail/faults"),
        {"Content-Type": "application/json"},
        "[" * 100_000,
    ),
    "a form without parts": ("POST", "/faults", {"Content-Type": "multipart/form-data"}, ""),
    "a form of a charset that is none": (
        *("POST", "/faults"),
        {"Content-Type": "application/x-www-form-urlencoded; charset=x"},
        "a=b",
    ),
    "a mail beyond 64 bits": ("GET", "/mail/99999999999999999999", {}, None),
    "a mail of the API beyond 64 bits": ("GET", "/api/v1/mail/99999999999999999999", {}, None),
    "mails before it": ("GET", "/api/v1/mail?before=99999999999999999999", {}, None),
    "tasks after it": ("GET", "/api/v1/tasks?after=99999999999999999999", {}, None),
}


@pytest.mark.parametrize(("method", "path", "headers", "body"), ODD.values(), ids=ODD)
def test_what_nobody_foresaw_is_refused(console, method, path, headers, body):
    """A request that is odd in one thing is the caller's error, with the headers of every page."""
    answer = ask(console.address, method, path, headers=headers, body=body)

    assert 400 <= answer.status < 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_an_error_of_the_console_carries_the_security_headers(console, platform, monkeypatch):
    """Nothing is told of what went wrong, but that the log knows."""

    def broken():
        raise KeyError("<script>")

    monkeypatch.setattr(platform.cron, "jobs", property(broken))
    answer = ask(console.address, "GET", "/cron")

    assert answer.status == 500
    assert "script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_half_a_character_is_shown_and_breaks_no_page(browser, platform, engine):
    """A mail or a body may hold what no text in UTF-8 can."""
    name = add_task(engine, body=b'{"x": "\\ud800"}').rpartition("/")[2]
    mail = b"Subject: odd\r\nContent-Type: text/plain; charset=utf-7\r\n\r\n+2AA-\r\n"
    platform.mail.store.add("a@example.org", ["b@example.org"], mail)
    [kept] = platform.mail.messages()

    assert browser.get(f"/tasks/default/{name}").status == 200
    assert browser.get(f"/mail/{kept.id}").status == 200
    assert browser.get(f"/api/v1/mail/{kept.id}").status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/workers/kill",
        "/api/v1/mail/clear",
        "/api/v1/cron/run",
        "/api/v1/cron/pause",
        "/api/v1/reset",
    ],
)
def test_the_api_takes_json_only(console, path, kind):
    """What a plain form could send from anywhere is refused."""
    answer = ask(console.address, "POST", path, body="{}", headers={"Content-Type": kind})

    assert answer.status == 403


@pytest.mark.parametrize("path", [*PAGES, "/nothing-here", "/tasks/default/none"])
def test_every_answer_carries_the_security_headers(browser, path):
    """Also errors: no inline script, no frames, no sniffing, no referrer."""
    headers = browser.get(path).headers

    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_the_cookie_is_for_the_console_alone(console):
    """Scripts cannot read it, and other sites' requests do not carry it."""
    cookie = ask(console.address, "GET", "/").headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_way_back_leads_to_the_console_only(browser):
    """A form cannot be made to redirect elsewhere."""
    for back in (
        *("//evil.example", "https://evil.example", "/\\evil.example"),
        # A browser leaves these out, and the next slash begins another site's name.
        *("/\t/evil.example", "/\n/evil.example", "/\r\n/evil.example", "/\x00/evil.example"),
        *("/ /evil.example", "/\x7f/evil.example", "/\u2028/evil.example"),
    ):
        answer = browser.post("/queues/default/pause", {"back": back})

        assert answer.headers["location"] == "/queues?said=paused"


@pytest.mark.parametrize("template", sorted((CONSOLE / "templates").glob("*.html")), ids=str)
def test_no_template_needs_what_the_policy_forbids(template):
    """Inline styles, handlers and scripts would silently not work."""
    source = template.read_text()

    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! src=)|\|\s*safe", source)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/marks", r'{"kind": "kill", "text": "\ud800"}'),
        ("/api/v1/marks", r'{"kind": "kill", "\udfff": 1}'),
        ("/api/v1/mail/faults", r'{"refused": ["\ud800@x"]}'),
        ("/api/v1/cron/run", r'{"name": "\ud800"}'),
        ("/api/v1/cron/run", "[]"),
        ("/api/v1/marks", "[]"),
    ],
)
def test_half_a_character_is_refused(console, path, body):
    """It has no place in UTF-8, so each page that shows it would fail until a restart."""
    headers = {"Content-Type": "application/json"}

    assert ask(console.address, "POST", path, body=body, headers=headers).status == 400
    since = ask(console.address, "GET", "/api/v1/incidents?since=0")
    assert since.status in (200, 400)
    assert "ud800" not in since.text
