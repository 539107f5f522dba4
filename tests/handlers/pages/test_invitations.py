"""Pages: what they answer to anybody, and what they never do. S14 to S20, S23, S28 and S30."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from markupsafe import escape

import main
from handlers.endpoints import health
from handlers.security import CONTENT_SECURITY_POLICY
from models.demos.invitations import Party, party_key
from pipelines.continuations.progress import progress
from pipelines.runtime import NoCache, open_cloud_tasks, open_datastore
from pipelines.tasks import CloudTaskQueue
from tests.handlers.conftest import PARTY, Browser, app_with, on_app_engine, on_cloud_run
from tests.world import LOCATION, PROJECT, Services, World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

ID = "a" * 32
PAGE = f"/invitations/{ID}"
GUESTS = "name,email\nAnn,ann@example.com\nbad\nBob,bob@example.com\n"


def upload(content: bytes | str, name: str = "guests.csv", form_id: str = "b" * 32) -> Any:
    data = content.encode() if isinstance(content, str) else content
    return {"id": form_id, "file": (io.BytesIO(data), name)}


def invite(browser: Browser, world: World, content: str = GUESTS) -> None:
    answer = browser.post(f"{PAGE}/guests", upload(content))
    assert answer.status_code == 303, answer.text
    world.settle()


@pytest.fixture
def party(browser: Browser, world: World) -> str:
    """A party with two guests who have been told, and the place of its page."""
    browser.create_party(ID)
    invite(browser, world)
    assert browser.post(f"{PAGE}/send").status_code == 303
    world.settle()
    return PAGE


@pytest.fixture
def bare_party(browser: Browser) -> str:
    """A party without guests, and the place of its page."""
    return browser.create_party(ID)


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
    "/nothing",
    f"/invitations/{'c' * 32}",
    f"{PAGE}/send",
    "/break-it/errors/on",
]


# What every page does


def test_what_is_read_changes_nothing(
    world: World, browser: Browser, party: str, snapshot: Callable[[], Any]
) -> None:
    """S19: GET, HEAD and OPTIONS on every address leave the store as it was."""
    before = snapshot()

    for path in GETS:
        for method in ("GET", "HEAD", "OPTIONS"):
            answer = browser.client.open(path, method=method, buffered=True)
            assert answer.status_code < 500

    assert snapshot() == before


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
def test_a_deployed_app_keeps_its_cookie_to_itself(
    world: World, deployed: Callable[[World], Any]
) -> None:
    """S21: Secure, HttpOnly, SameSite, and a name that no other host can set; https for good."""
    browser = Browser(app_with(world, settings=deployed(world)))

    answer = browser.get("/invitations", base_url="https://rollforward.example")

    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-session=")
    for part in ("Secure", "HttpOnly", "SameSite=Lax", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")


# Forms that are not ours

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
    before = snapshot()
    ours = browser.token()
    strangers = Browser(world.app).token()
    other_key = replace(world.settings, secret_keys=("other-0123456789abcdef-0123456789",))
    forged = Browser(app_with(world, settings=other_key)).token()
    elsewhere = {"Sec-Fetch-Site": "cross-site"}

    answers = [
        browser.client.post(path, data=FORMS[path]),
        browser.client.post(path, json={"csrf_token": ours, **FORMS[path]}),
        *[browser.post(path, FORMS[path], token=token) for token in ("x", strangers, forged)],
        browser.post(path, FORMS[path], headers=elsewhere),
        browser.post(path, FORMS[path], headers={"Sec-Fetch-Site": "same-site"}),
        Browser(world.app).post(path, FORMS[path], token=ours),
    ]

    assert [answer.status_code for answer in answers] == [403] * 8
    assert snapshot() == before


def test_an_old_token_is_refused(
    world: World, browser: Browser, bare_party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S19: a token lives for a day."""
    token = browser.token()
    world.app.config["WTF_CSRF_TIME_LIMIT"] = -1

    assert browser.post(f"{PAGE}/send", token=token).status_code == 403
    assert "expired" in browser.post(f"{PAGE}/send", token=token).text


def test_a_session_survives_a_change_of_keys(world: World, browser: Browser) -> None:
    """S22: with the old key in second place nobody loses what the cookie held."""
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


# What people type


class Tags(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, name) for name, _ in attrs] or [(tag, "")]


def tags(text: str) -> list[tuple[str, str]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


XSS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><svg/onload=alert(1)>",
    "</textarea><script>1</script>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include 'x' %}",
    "<!--",
    "&lt;b&gt;",
]


@pytest.mark.parametrize("text", XSS)
def test_what_people_type_is_shown_as_text(world: World, browser: Browser, text: str) -> None:
    """S16: in a title, a place, a host, a note, a name, a file's name or a reason: text alone."""

    def pages(word: str, party_id: str) -> list[list[tuple[str, str]]]:
        details = dict.fromkeys(("title", "host", "place", "note"), word)
        page = browser.create_party(party_id, **details)
        cell = word.replace('"', '""')
        content = f'name,email\n"{cell}",a@example.com\nb,"{cell}"\n'
        file_name = word.replace('"', "%22") + ".csv"  # As browsers send it.
        form = upload(content, file_name, party_id[::-1][:31] + "0")
        assert browser.post(f"{page}/guests", form).status_code == 303
        world.settle()
        browser.post(f"{page}/send")
        world.settle()
        browser.post(f"{page}/details", {**PARTY, **details, "when": "never"})
        shown = [browser.get(path).text for path in ("/", "/invitations", page, f"{page}/live")]
        wrong = browser.post(f"{page}/details", {**PARTY, **details, "when": word}).text
        assert all(str(escape(word)) in page for page in shown[:3])
        return [tags(page) for page in (*shown, wrong)]

    plain = pages("harmless", "1" * 32)
    world.services.mail.clear()
    with world.context():
        party_key("1" * 32).delete()
    nasty = pages(text, "1" * 31 + "2")

    assert [sorted(set(page)) for page in nasty] == [sorted(set(page)) for page in plain]


BAD_DETAILS = [
    ("title", ""),
    ("title", "   "),
    ("title", "x" * 121),
    ("title", "a\nb"),
    ("title", "a\x00b"),
    ("title", "a\u2028b"),
    ("host", ""),
    ("host", "x" * 121),
    ("place", ""),
    ("place", "x" * 201),
    ("note", "x" * 2001),
    ("note", "a\x1bb"),
    ("note", "a\rb"),
    ("when", ""),
    ("when", "tomorrow"),
    ("when", "2030-02-30T19:30"),
    ("when", "2030-05-01T25:00"),
    ("when", "2030-05-01T19:30Z"),
    ("when", "2030-05-01T19:30+09:00"),
    ("when", "0001-01-01T00:00"),
    ("when", "9999-12-31T23:59"),
    ("when", "19:30"),
    ("when", "٢٠٣٠-05-01T19:30"),
]


@pytest.mark.parametrize(("name", "value"), BAD_DETAILS)
def test_details_that_make_no_party_are_sent_back(
    browser: Browser, snapshot: Callable[[], Any], name: str, value: str
) -> None:
    """S15: 400 with a sentence, what was typed still there, and nothing stored or changed."""
    browser.create_party(ID)
    before = snapshot()
    form = {**PARTY, "title": "Kept words", name: value}

    created = browser.post("/invitations", {"id": "d" * 32, **form})
    changed = browser.post(f"{PAGE}/details", form)

    for answer in (created, changed):
        assert answer.status_code == 400
        assert f'id="{name}-error"' in answer.text
        assert "Kept words" in answer.text or name == "title"
    assert snapshot() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("title", "庭の　パーティー"),
        ("title", "👩‍👩‍👧 party"),
        ("title", "x" * 120),
        ("place", "a b"),
        ("note", "two\r\nlines"),
        ("when", "2030-05-01 19:30"),
    ],
)
def test_details_in_any_script_make_a_party(browser: Browser, name: str, value: str) -> None:
    """Wide blanks, joined emoji and line breaks in a note are what people write."""
    page = browser.create_party(ID, **{name: value})

    assert browser.get(page).status_code == 200


def test_saving_what_is_shown_changes_nothing(world: World, browser: Browser) -> None:
    """A form sent back as it came is no news, whatever seconds the date came with."""
    browser.create_party(ID, when="2030-05-01T19:30:45.5")

    browser.post(f"{PAGE}/details", PARTY)

    with world.context():
        assert party_key(ID).get().change == 1


def test_a_party_is_created_once_for_each_form(world: World, browser: Browser) -> None:
    """Reloading the answer of a form, or pressing twice, makes no second party."""
    browser.create_party(ID)
    browser.create_party(ID, title="Another")

    with world.context():
        assert [party.title for party in Party.query()] == ["Garden party"]


# Addresses that people make up

ODD_IDS = ["x", "A" * 32, "a" * 31, "a" * 33, "é" * 32, "a" * 31 + "%0a", "..%2f..", "a" * 5000]


@pytest.mark.parametrize("party_id", [*ODD_IDS, "c" * 32], ids=lambda text: text[:12])
def test_a_party_that_is_not_there_is_404(
    browser: Browser, snapshot: Callable[[], Any], party_id: str
) -> None:
    """S28: a wrong id and a missing party look the same, whatever is asked of it."""
    before = snapshot()

    found = [browser.get(f"/invitations/{party_id}"), browser.get(f"/invitations/{party_id}/live")]
    for verb in ("details", "guests", "sample-guests", "send", "sends/x/cancel", "sends/x/retry"):
        found.append(browser.post(f"/invitations/{party_id}/{verb}", {"id": "d" * 32, **PARTY}))

    assert {answer.status_code for answer in found} == {404}
    assert snapshot() == before


@pytest.mark.parametrize("form_id", ["", "x", *ODD_IDS[1:4], "a" * 31 + "\n", "../../etc"])
def test_a_form_needs_an_id_of_ours(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], form_id: str
) -> None:
    """S25: an id that no page of ours made is refused, and never becomes a key."""
    before = snapshot()

    answers = [
        browser.post("/invitations", {**PARTY, "id": form_id}),
        browser.post(f"{PAGE}/guests", {"id": form_id, "pasted": GUESTS}),
        browser.post(f"{PAGE}/sample-guests", {"id": form_id, "count": "10"}),
    ]

    assert [answer.status_code for answer in answers] == [400] * 3
    assert snapshot() == before


@pytest.mark.parametrize(
    "after", ["x", "0" * 23, "0" * 25, "G" * 24, "0" * 24 + "%0a", "' or 1", "0" * 100_000]
)
def test_a_page_of_guests_that_is_no_place_is_400(
    browser: Browser, bare_party: str, after: str
) -> None:
    """S14: a place that is not a hash of this party's list runs no query."""
    assert browser.get(f"{PAGE}?after={after}").status_code == 400


def test_every_guest_is_on_one_page_of_the_list(browser: Browser, world: World) -> None:
    """I2: paging shows each guest once, and ends."""
    browser.create_party(ID)
    browser.post(f"{PAGE}/sample-guests", {"id": "b" * 32, "count": "100"})
    world.settle()

    seen: list[str] = []
    path = PAGE
    for _ in range(20):
        text = browser.get(path).text
        seen += re.findall(r"guest\d+@example\.com", text)
        following = re.search(r"\?after=[0-9a-f]{24}", text)
        if following is None:
            break
        path = PAGE + following[0]

    assert len(seen) == len(set(seen)) == 100


@pytest.mark.parametrize("verb", ["cancel", "resume", "retry"])
def test_only_the_sends_of_this_party_are_controlled(
    browser: Browser, party: str, snapshot: Callable[[], Any], verb: str
) -> None:
    """S28: another run, the party's own import included, is not there for these buttons."""
    before = snapshot()

    for run_id in ("0" * 40, "b" * 32, "x", "é"):
        assert browser.post(f"{PAGE}/sends/{run_id}/{verb}").status_code == 404
    assert snapshot() == before


def test_a_foreign_partys_send_is_not_controlled(
    world: World, browser: Browser, party: str
) -> None:
    """S28: a run's id opens it in its own party alone."""
    browser.create_party("c" * 32)
    with world.context():
        run_id = party_key(ID).get().sends[0]["run_id"]

    assert browser.post(f"/invitations/{'c' * 32}/sends/{run_id}/cancel").status_code == 404
    assert browser.post(f"{PAGE}/sends/{run_id}/cancel").status_code == 303


# Files that people upload

JUNK = {
    "nothing": (b"", "empty"),
    "a zip": (b"PK\x03\x04" + bytes(range(256)) * 50, "UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 50, "UTF-8"),
    "UTF-16": ("name,email\nAnn,ann@example.com".encode("utf-16"), "UTF-8"),
    "noise": (bytes(range(1, 256)) * 50, "no column for mail addresses"),
    "a letter": (b"Dear all, please come.", "no column for mail addresses"),
    "too large": (b"Ann,ann@example.com\n" * (10 * 2**20 // 20 + 1), "larger than 10 MiB"),
}


@pytest.mark.parametrize(("content", "words"), JUNK.values(), ids=JUNK)
def test_a_file_that_is_no_list_is_refused_with_a_sentence(
    browser: Browser, snapshot: Callable[[], Any], content: bytes, words: str
) -> None:
    """S23: 400, what is wrong with it, and nothing stored."""
    browser.create_party(ID)
    before = snapshot()

    answer = browser.post(f"{PAGE}/guests", upload(content))

    assert answer.status_code == 400
    assert words.casefold() in answer.text.casefold()
    assert snapshot() == before


def test_rows_can_be_pasted(world: World, browser: Browser) -> None:
    """The same import reads a file and what was typed."""
    browser.create_party(ID)

    answer = browser.post(f"{PAGE}/guests", {"id": "b" * 32, "pasted": "花子, h@example.com\r\n"})
    world.settle()

    assert answer.status_code == 303
    assert "h@example.com" in browser.get(PAGE).text


def test_a_second_file_at_a_time_is_told_to_wait(browser: Browser, bare_party: str) -> None:
    """409: nothing is lost, the next press works when the first file has been read."""
    assert browser.post(f"{PAGE}/guests", upload(GUESTS, form_id="1" * 32)).status_code == 303

    again = browser.post(f"{PAGE}/guests", upload(GUESTS, form_id="2" * 32))
    sample = browser.post(f"{PAGE}/sample-guests", {"id": "3" * 32, "count": "10"})

    assert (again.status_code, sample.status_code) == (409, 409)
    assert "still being read" in again.text


def test_a_form_of_another_party_is_refused(browser: Browser, party: str) -> None:
    """S28: an import's id belongs to one party."""
    browser.create_party("c" * 32)

    answer = browser.post(f"/invitations/{'c' * 32}/guests", upload("Eve,eve@example.com"))

    assert answer.status_code == 400


@pytest.mark.parametrize("count", ["", "0", "-1", "11", "1e9", "NaN", "10 or 1", "9" * 5000])
def test_a_number_of_guests_that_is_not_offered_is_400(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], count: str
) -> None:
    """S15: one of four numbers, or nothing at all."""
    before = snapshot()

    answer = browser.post(f"{PAGE}/sample-guests", {"id": "3" * 32, "count": count})

    assert answer.status_code == 400
    assert snapshot() == before


# Requests too large to be read

TOO_LARGE = {
    "12 MiB": {"id": "d" * 32, "file": (12 * 2**20, "x.csv")},
    "a field of 1 MiB": {"id": "d" * 32, "pasted": "x" * 2**20},
    "60 parts": {**{f"x{i}": "y" for i in range(60)}, "file": (1, "x.csv")},
}


@pytest.mark.parametrize("form", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_form_that_is_too_large_is_413(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], form: dict[str, Any]
) -> None:
    """S23: refused before it is read to its end."""
    before = snapshot()
    files = {
        name: (io.BytesIO(b"x" * value[0]), value[1]) if isinstance(value, tuple) else value
        for name, value in form.items()
    }

    answer = browser.post(f"{PAGE}/guests", files)

    assert answer.status_code == 413
    assert "too large" in answer.text
    assert snapshot() == before


def test_a_million_fields_are_refused_unread(browser: Browser, bare_party: str) -> None:
    """S23, M14: what costs seconds to take apart is not taken apart."""
    body = b"a=1&" * 1_000_000
    kind = "application/x-www-form-urlencoded"

    assert browser.client.post(f"{PAGE}/send", data=body, content_type=kind).status_code == 413


# Steering


def test_the_page_says_what_became_of_every_row_and_mail(
    world: World, browser: Browser, party: str
) -> None:
    """Bad rows by line, refused mails by address, and a button that tries them again."""
    assert "line 3:" in browser.get(PAGE).text
    world.services.mail.set_faults(refused=("bob@example.com",))
    browser.post(f"{PAGE}/details", {**PARTY, "place": "Cellar"})
    browser.post(f"{PAGE}/send")
    world.settle()
    text = browser.get(PAGE).text
    assert "bob@example.com: 550" in text
    world.services.mail.set_faults(refused=())

    retry = re.search(rf"{PAGE}/sends/[0-9a-f]+/retry", text)
    assert retry is not None
    for _ in range(2):
        assert browser.post(retry[0]).status_code == 303
    world.settle()

    mails = [mail.recipients[0] for mail in world.services.mail.messages()]
    assert sorted(mails) == ["ann@example.com"] * 2 + ["bob@example.com"] * 2
    assert "550 " not in browser.get(PAGE).text


def test_a_send_is_cancelled_and_resumed_by_buttons(world: World, browser: Browser) -> None:
    """Cancel before the first mail, resume, and all are told once; retry has to wait."""
    browser.create_party(ID)
    invite(browser, world)
    browser.post(f"{PAGE}/send")
    with world.context():
        run_id = party_key(ID).get().sends[0]["run_id"]
    early = browser.post(f"{PAGE}/sends/{run_id}/retry", follow_redirects=True)
    assert "has not finished" in early.text

    browser.post(f"{PAGE}/sends/{run_id}/cancel")
    world.settle()
    assert world.services.mail.count() == 0
    browser.post(f"{PAGE}/sends/{run_id}/resume")
    world.heal(lambda: progress(run_id).state == "finished")

    assert world.services.mail.count() == 2


def test_pressing_send_says_what_it_did(world: World, browser: Browser, party: str) -> None:
    """The second press says that nobody is told twice; a press for nobody says why."""
    again = browser.post(f"{PAGE}/send", follow_redirects=True)
    empty = browser.create_party("c" * 32)
    nobody = browser.post(f"{empty}/send", follow_redirects=True)

    assert "0 new mails" in again.text
    assert "add guests first" in nobody.text
    assert world.services.mail.count() == 2


# Breaking it


@pytest.mark.parametrize(
    "path", ["/break-it/errors/on", "/break-it/lost/off", "/break-it/worker/kill"]
)
@pytest.mark.parametrize("deployed", [on_app_engine, on_cloud_run])
def test_nothing_is_broken_in_a_deployed_app(
    world: World, path: str, deployed: Callable[[World], Any]
) -> None:
    """These routes are 404 there, even with a platform to ask set by mistake."""
    settings = replace(deployed(world), devserver_url=world.services.cloud_tasks.control_url)
    browser = Browser(app_with(world, settings=settings))
    secure = {"base_url": "https://x.example"}
    page = browser.get("/invitations", **secure).text
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    referred = {"Referer": "https://x.example/"}

    answer = browser.post(path, token=found[1], headers=referred, **secure)

    assert answer.status_code == 404
    assert world.engine.faults.all() == []


@pytest.fixture
def breaker(world: World) -> Browser:
    """A browser of an app that has a local platform to ask."""
    url = world.services.cloud_tasks.control_url
    return Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))


BACKS = {
    "": "/",
    PAGE: PAGE,
    "//evil.example": "/",
    "//evil.example/invitations/x": "/",
    "/\\evil.example": "/",
    "\\\\evil.example": "/",
    "https://evil.example/invitations/" + ID: "/",
    "https:evil.example": "/",
    "javascript:alert(1)": "/",
    "http://[": "/",
    "//[/invitations/": "/",
    "/\t/evil.example": "/",
    " //evil.example": "/",
    "/invitations//evil.example": "/",
    "/invitations/../..//evil.example": "/",
    f"{PAGE}\n//evil.example": "/",
    f"{PAGE}\r\nX: y": "/",
    f"{PAGE}?x=//evil.example": "/",
    f"{PAGE}/": "/",
    "\x00//evil.example": "/",
    "/" * 10_000: "/",
}


@pytest.mark.parametrize("back", BACKS, ids=lambda text: repr(text[:24]))
def test_a_switch_leads_back_to_a_page_of_ours(breaker: Browser, back: str) -> None:
    """S20: whatever `back` says, the answer leads to a party's page or to the front page."""
    answer = breaker.post("/break-it/errors/off", {"back": back})

    assert answer.status_code == 303
    assert answer.headers["Location"] == BACKS[back]


def test_a_switch_is_on_once_and_off_again(breaker: Browser, party_page: str) -> None:
    """Switching on twice is on; the page says so; off is off."""
    for _ in range(2):
        assert breaker.post("/break-it/lost/on", {"back": party_page}).status_code == 303
    assert "lost responses on" in breaker.get(party_page).text

    for _ in range(2):
        assert breaker.post("/break-it/lost/off").status_code == 303
    assert "lost responses on" not in breaker.get(party_page).text
    assert breaker.post("/break-it/nothing/on").status_code == 404


@pytest.fixture
def party_page(breaker: Browser) -> str:
    return breaker.create_party(ID)


# Health, and services that are away


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health that waits for a busy machine."""
    monkeypatch.setattr(health, "PING_TIMEOUT_S", 30.0)


@pytest.mark.usefixtures("patient")
def test_a_healthy_app_says_so(browser: Browser) -> None:
    """All that the app needs answers, and nobody is told to do anything."""
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
    """503 with the names of what is away; the process itself is alive."""
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
    answer = alone.get(path)

    assert answer.status_code == 503
    assert "does not answer" in answer.text
    assert not re.search(r"Traceback|/[a-z]+\.py|127\.0\.0\.1|grpc|google", answer.text)


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

    monkeypatch.setattr("handlers.pages.invitations.newest_parties", fail)

    answer = browser.get("/invitations")

    assert answer.status_code == status
    assert "secret detail" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
