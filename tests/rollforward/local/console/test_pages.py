"""What the console shows."""

import json
import re

import pytest

from rollforward.local.cloudtasks.delivery.faults import KINDS
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console.fault_words import FAULTS
from tests.rollforward.local.console.conftest import CONSOLE, EVIL, PAGES, add_task, path_of


@pytest.mark.parametrize("path", PAGES)
def test_every_page_works_without_javascript(browser, path):
    """Each page is whole HTML with a heading, a skip link and its place in the menu."""
    page = browser.get(path)

    assert page.status == 200
    assert "<h1" in page.text
    assert 'href="#main"' in page.text
    assert page.text.count('aria-current="page"') == 1


def test_output_is_escaped_everywhere(browser, engine, platform):
    """Whatever a task, a mail or a service contains is shown as text."""
    name = add_task(engine, path=f"/tasks/{EVIL}", body=EVIL.encode())
    raw = f"Subject: {EVIL}\r\n\r\n{EVIL}".encode()
    platform.mail.store.add(EVIL, [EVIL], raw)

    for path in ("/", "/tasks", path_of(name), "/mail", "/mail/1", f"/tasks?q={EVIL}"):
        page = browser.get(path.replace("<", "%3C").replace(">", "%3E"))
        assert EVIL not in page.text, path
        assert "&lt;script&gt;" in page.text, path


def test_a_task_shows_its_decoded_body_and_every_attempt(browser, engine):
    """Japanese is readable; each attempt has status, headers, answer and next retry."""
    name = add_task(engine)
    attempt = engine.begin_attempt(name)
    engine.end_attempt(attempt.id, status=500, headers={"X-Why": "because"}, body="だめ".encode())

    page = browser.get(path_of(name)).text

    for part in ("山田", "500", "X-Why: because", "だめ", "X-CloudTasks-TaskRetryCount: 0"):
        assert part in page
    assert "Retrying" in page
    assert "Next attempt" in page


def test_why_an_attempt_failed_is_read_in_the_list_and_at_the_attempt(browser, engine):
    """What the app says of itself: a sentence, the stack, and what it logged; escaped."""
    name = add_task(engine)
    said = {"detail": "KeyError: '<b>'", "traceback": "File x, line 7", "log": ["INFO a: one"]}
    attempt = engine.begin_attempt(name)
    engine.end_attempt(attempt.id, status=500, body=json.dumps(said).encode())

    for page in (browser.get(path_of(name)).text, browser.get("/tasks").text):
        assert "KeyError: &#39;&lt;b&gt;&#39;" in page
    shown = browser.get(path_of(name)).text
    assert "File x, line 7" in shown
    assert "INFO a: one" in shown


def test_a_task_whose_last_attempt_went_well_has_no_error(browser, engine):
    """What its attempts before it said stays with them."""
    name = add_task(engine)
    first = engine.begin_attempt(name)
    engine.end_attempt(first.id, status=500, body=b'{"detail": "KeyError: 7"}')
    second = engine.begin_attempt(name)
    engine.end_attempt(second.id, status=200, body=b'{"log": ["done"]}')

    assert "KeyError" not in browser.get("/tasks").text
    assert "KeyError" in browser.get(path_of(name)).text


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"\xff\x00binary", "00000000  ff 00 62"),
        (b"plain text", "plain text"),
        (b"", "Body: empty"),
    ],
)
def test_a_body_is_shown_in_the_form_it_has(browser, engine, body, shown):
    """Bytes that are no text are shown as hex."""
    assert shown in browser.get(path_of(add_task(engine, body=body))).text


def test_tasks_are_filtered_by_the_address(browser, engine):
    """Queue, state and text narrow the list; the newest is on top."""
    add_task(engine, "default", b"suzuki", "/tasks/first")
    add_task(engine, "mails", b"sato", "/tasks/second")
    done = add_task(engine, "mails", b"x", "/tasks/third")
    engine.end_attempt(engine.begin_attempt(done).id, status=204)

    def listed(query):
        return re.findall(r">(first|second|third)<", browser.get(f"/tasks?{query}").text)

    assert listed("") == ["third", "second", "first"]
    assert listed("queue=mails") == ["third", "second"]
    assert listed("state=done") == ["third"]
    assert listed("q=SUZUKI") == ["first"]
    assert listed("queue=mails&state=queued&q=sato") == ["second"]
    assert listed("q=nobody") == []


@pytest.mark.parametrize("text", ["", "q=work&"])
def test_pages_of_tasks_show_each_task_once(browser, engine, text):
    """Following the Older link meets every task, none twice."""
    names = {add_task(engine).rpartition("/")[2] for _ in range(120)}
    seen, path = [], f"/tasks?{text}"
    while path:
        page = browser.get(path).text
        seen += re.findall(r'data-key="(\d+)"', page)
        older = re.search(r'<a href="([^"]+)" rel="next"', page)
        path = older[1].replace("&amp;", "&") if older else ""

    assert sorted(seen) == sorted(names)


@pytest.mark.parametrize(
    "path", ["/tasks?state=odd", "/tasks?before=x", "/mail?before=x", "/mail/9"]
)
def test_a_bad_address_is_never_a_server_error(browser, path):
    """What cannot be understood is passed over or refused."""
    assert browser.get(path).status in {200, 400, 404}


def test_the_overview_says_what_needs_attention(browser, engine, platform):
    """A stopped service, a failed task, a paused queue and faults are all pointed out."""
    failed = add_task(engine)
    message = messages.Queue()
    message.CopyFrom(engine.queues.get(engine.place.queue_name("default")))
    message.retry_config.max_attempts = 1
    engine.queues.update(message, ["retry_config.max_attempts"])
    engine.end_attempt(engine.begin_attempt(failed).id, status=500)
    add_task(engine, "mails")
    engine.pause_queue(engine.place.queue_name("mails"))
    platform.mail.set_faults(latency_ms=5)

    page = browser.get("/").text

    for part in (
        "App has stopped",
        "default: 1 task out of retries",
        "mails is paused, 1 wait",
        "Faults are switched on",
    ):
        assert part in page


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/tasks/all/explode/confirm", 404),
        ("GET", "/mail/99", 404),
    ],
)
def test_an_error_is_a_page_of_the_console(browser, method, path, status):
    """With a title, its menu, and a way back."""
    page = browser.get(path)

    assert page.status == status
    for part in (
        "<title>404 Not Found",
        '<html lang="en">',
        'aria-label="Console"',
        'role="alert"',
    ):
        assert part in page.text


def test_a_form_of_an_earlier_console_gets_a_page_too(browser):
    """And changes nothing: see the guards."""
    answer = browser.post("/queues/default/pause", token="0" * 64)

    assert answer.status == 403
    assert "earlier run of the console" in answer.text
    assert 'aria-label="Console"' in answer.text


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/static/nothing.css"])
def test_programs_get_no_page(browser, path):
    """A line is all that they want."""
    answer = browser.get(path)

    assert answer.status == 404
    assert "<html" not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_without_javascript_there_is_a_link_to_refresh(browser, path):
    """And the switch of the theme waits for its script, which is the app's own."""
    page = browser.get(path).text

    assert '<noscript><a class="button small" href="">Refresh</a></noscript>' in page
    assert "data-theme-toggle hidden" in page
    assert "data-theme-toggle" in browser.get("/static/theme.js").text


@pytest.mark.parametrize("path", ["/tasks", "/queues"])
def test_a_page_on_which_only_time_passes_is_not_sent_again(browser, engine, path):
    """Its relative times are written by the script."""
    add_task(engine)
    engine.pause_queue(engine.place.queue_name("default"))
    first = browser.get(path).headers["etag"]

    assert browser.get(path, **{"If-None-Match": first}).status == 304
    add_task(engine, "mails")
    assert browser.get(path, **{"If-None-Match": first}).status == 200


def test_a_fault_has_one_name_everywhere():
    """Every kind of the API has its name, and the words of the docs are those."""
    readme = (CONSOLE.parents[2] / "README.md").read_text()

    assert set(FAULTS) == set(KINDS)
    for word in re.findall(r"\*(Errors|Lost [a-z]+|Duplicates|Overlaps)\*", readme):
        assert word in {words.name for words in FAULTS.values()}


def test_the_overview_without_alerts_claims_no_more_than_it_checks(
    browser, engine, platform, monkeypatch
):
    """Tasks may wait for less than a minute beyond their time, however many."""
    monkeypatch.setattr(platform, "services", list)
    for _ in range(100):
        add_task(engine)

    page = browser.get("/").text

    assert "No alerts: no queue is late" in page
    assert "backlog" not in page
