"""Tasks in the console: told apart, acted on in bulk, and never in contradiction."""

import re
import shlex

import pytest

from rollforward.local.cloudtasks.delivery.outgoing import OutgoingRequest
from rollforward.local.cloudtasks.delivery.retries import RetryPolicy
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.console.pages import bulk
from rollforward.local.console.reading import work
from rollforward.local.console.reading.task_rows import MAX_ARGUMENTS_CHARS, as_curl, summary_of
from tests.rollforward.local.console.conftest import add_task, path_of

BODY = b'{"run_id": "spring", "chain": 5, "number": 12, "after": "book:7"}'
PATH = "/tasks/continuations/raise-prices"


def confirm(browser, verb, query=""):
    """Open the page that asks, and return its form's fields and the count that it names."""
    page = browser.get(f"/tasks/all/{verb}/confirm?{query}")
    assert page.status == 200
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    count = re.search(r"<h1>.*?(\d+) task", page.text)
    return fields, int(count[1])


def names(due):
    return {delivery.task_name for delivery in due}


def test_rows_are_told_apart(browser, engine):
    """Short name, arguments, run and duration; the hash is nowhere in the list's text."""
    name = add_task(engine, body=BODY, path=PATH)
    engine.end_attempt(engine.begin_attempt(name).id, status=204)

    page = browser.get("/tasks").text

    assert '<span class="group">continuations/</span>raise-prices</a>' in page
    assert "chain 5 · number 12 · after book:7" in page
    assert 'href="/runs/continuations/spring"' in page
    assert re.search(r'data-label="Duration" class="n">[\d.]+ ms<', page)


def test_the_list_names_the_fault_that_failed_an_attempt(browser, engine):
    """In words; without a fault the status, without the code of gRPC."""
    engine.faults.add(kind="error", max_count=1)
    struck, failed = add_task(engine, path="/tasks/hit"), add_task(engine, path="/tasks/weak")
    for name in (struck, failed):
        engine.end_attempt(engine.begin_attempt(name).id, status=500)

    page = browser.get("/tasks").text
    cells = re.findall(r'data-label="Last error" class="error why[^>]*>([^<]*)<', page)

    assert cells == ["HTTP status code 500", "Injected fault: Errors"]
    assert cells[::-1] == [
        re.search(r'class="error why[^>]*>([^<]*)<', browser.get(f"/tasks?q={path}").text)[1]
        for path in ("/tasks/hit", "/tasks/weak")
    ]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        (b"", ""),
        (b"[1, 2]", "[1, 2]"),
        (b"two\nlines", "two lines"),
        (b"\xff\x00", "2 B of binary data"),
        (b'{"run_id": 7, "to": ""}', "run_id 7"),
        ('{"name": "山田"}'.encode(), "name 山田"),
    ],
)
def test_any_body_has_its_line(body, arguments):
    """Whatever it is; and it is short."""
    assert summary_of("/tasks/work", body).arguments == arguments
    assert len(summary_of("/tasks/work", b"x" * 5000).arguments) == MAX_ARGUMENTS_CHARS


def test_a_task_that_should_have_begun_is_overdue(browser, engine):
    """In the list and on its page, with why: no “next attempt 3 min ago”."""
    name = add_task(engine)
    engine.end_attempt(engine.begin_attempt(name).id, status=500)
    assert "overdue" not in browser.get(path_of(name)).text
    engine.pause_queue(engine.place.queue_name("default"))
    engine.advance(200)

    for path in ("/tasks", path_of(name)):
        page = browser.get(path).text
        assert "overdue by" in page
    assert "its queue is paused" in page
    assert "next attempt" not in page


def test_a_copy_that_fails_does_not_contradict_a_task_that_is_done(browser, engine):
    """It is shown as a copy without effect, and its error is not the task's."""
    name = add_task(engine)
    engine.end_attempt(engine.begin_attempt(name).id, status=204)
    engine.tasks.retry(name)
    copy = engine.begin_attempt(name, "duplicate")
    engine.end_attempt(copy.id, status=429, body=b'{"detail": "leased"}')

    page = browser.get(path_of(name)).text

    assert "copy of 1" in page
    assert "No effect" in page
    assert ">Failed" not in page
    assert '1 <span class="quiet">and 1 copy</span>' in page
    assert "leased" not in browser.get("/tasks").text


def test_attempts_are_counted_from_one_copies_aside(browser, engine):
    """So that their numbers grow by one: 3, 2, 1."""
    name = add_task(engine)
    for _ in range(2):
        engine.end_attempt(engine.begin_attempt(name).id, status=500)
        engine.advance(4000)
    engine.begin_attempt(name)

    assert re.findall(r"<b>(\d+)</b>", browser.get(path_of(name)).text) == ["3", "2", "1"]


def test_all_tasks_of_a_filter_are_retried(browser, engine, monkeypatch):
    """After a page that names their number; the notice says how many it were."""
    # None becomes due by itself before the page asks, however slow the machine is.
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda policy, attempts: 3600.0)
    waiting = [add_task(engine, body=b"suzuki") for _ in range(3)]
    add_task(engine, body=b"sato")
    for name in waiting:
        engine.end_attempt(engine.begin_attempt(name).id, status=500)

    fields, count = confirm(browser, "retry", "q=suzuki")
    before = names(engine.due())
    answer = browser.post("/tasks/all/retry/confirm", fields)

    assert count == 3
    assert names(engine.due()) - before == {*waiting}
    assert answer.headers["location"] == "/tasks?q=suzuki&said=all-retry&count=3"
    assert "3 tasks due again at once." in browser.get(answer.headers["location"]).text


def test_what_comes_while_a_person_reads_is_not_meant(browser, engine):
    """A task created after the count was shown stays."""
    add_task(engine)
    fields, _ = confirm(browser, "delete", "state=queued&queue=default")
    late = add_task(engine)

    browser.post("/tasks/all/delete/confirm", fields)

    assert names(engine.due()) == {late}


def test_run_now_goes_past_a_paused_queue(browser, engine):
    """As the button of one task does; ended ones are passed over."""
    engine.pause_queue(engine.place.queue_name("default"))
    done, waiting = add_task(engine), add_task(engine)
    engine.end_attempt(engine.begin_attempt(done).id, status=204)

    fields, count = confirm(browser, "run")
    browser.post("/tasks/all/run/confirm", fields)

    assert count == 1
    assert [(due.task_name, due.kind) for due in engine.due()] == [(waiting, "forced")]


@pytest.mark.parametrize("verb", ["run", "delete"])
def test_a_live_task_below_many_that_have_ended_is_acted_on(browser, engine, monkeypatch, verb):
    """It is looked for among the live ones: those that have ended do not fill the list."""
    monkeypatch.setattr(bulk, "MAX_TASKS", 3)
    waiting = add_task(engine)
    for _ in range(4):
        engine.end_attempt(engine.begin_attempt(add_task(engine)).id, status=204)

    fields, count = confirm(browser, verb)
    browser.post(f"/tasks/all/{verb}/confirm", fields)

    assert count == 1
    left = [(due.task_name, due.kind) for due in engine.due()]
    assert left == ([(waiting, "forced")] if verb == "run" else [])


def test_a_list_that_was_cut_before_it_was_filtered_says_so(browser, engine, monkeypatch):
    """Three were looked at, one of them cannot be retried, and there is an older one."""
    monkeypatch.setattr(bulk, "MAX_TASKS", 3)
    deleted = [add_task(engine) for _ in range(4)][-1]
    assert "Only the newest 3 tasks" in browser.get("/tasks/all/retry/confirm").text
    engine.tasks.delete(deleted)

    page = browser.get("/tasks/all/retry/confirm").text

    assert "Retry the newest 2 tasks?" in page
    assert "Only the newest 3 tasks" in page
    assert "Only the newest" not in browser.get("/tasks/all/delete/confirm").text


def test_a_text_is_looked_for_further_by_the_link_to_older_tasks(browser, engine, monkeypatch):
    """The page says where it stopped, and goes on from there."""
    monkeypatch.setattr(work, "_SCAN_PAGE", 2)
    monkeypatch.setattr(work, "MAX_SEARCHED", 4)
    name = add_task(engine, body=b"suzuki")
    for _ in range(5):
        add_task(engine, body=b"sato")

    page = browser.get("/tasks?q=suzuki").text
    older = re.search(r'href="([^"]+)" rel="next"', page)[1].replace("&amp;", "&")

    assert "searched for in 4 tasks" in page
    assert "Only the newest" in browser.get("/tasks/all/delete/confirm?q=suzuki").text
    assert path_of(name) in browser.get(older).text


@pytest.mark.parametrize(
    "fields", [{}, {"before": "x"}, {"before": "9", "state": "odd"}, {"before": "0"}]
)
def test_a_bulk_action_without_its_count_does_nothing(browser, engine, fields):
    """A form of another page, or a made-up one."""
    add_task(engine)

    assert browser.post("/tasks/all/delete/confirm", fields).status == 400
    assert browser.post("/tasks/all/delete/confirm", fields, token="0" * 64).status == 403
    assert len(engine.due()) == 1


def test_nothing_to_act_on_offers_no_button(browser):
    """The page says so, with the way back."""
    page = browser.get("/tasks/all/delete/confirm?q=nothing").text

    assert "No task can be deleted here" in page
    assert "<form" not in page.partition("<main")[2].partition("</main>")[0]


def test_a_task_is_copied_as_a_command(browser, engine):
    """Whole: method, URL, headers with a token, body; a shell reads it back."""
    queue = engine.place.queue_name("default")
    task = messages.Task()
    task.http_request.url = "http://127.0.0.1:1/tasks/it's"
    task.http_request.body = "it's 山田".encode()
    task.http_request.oidc_token.service_account_email = "a@example.com"
    name = engine.tasks.create(queue, task).name

    assert "curl -X POST" in browser.get(path_of(name)).text
    words = shlex.split(as_curl(engine.attempts.request_of(name)).replace("\\\n", ""))

    assert words[:4] == ["curl", "-X", "POST", "http://127.0.0.1:1/tasks/it's"]
    assert words[-2:] == ["--data-binary", "it's 山田"]
    assert any(word.startswith("Authorization: Bearer ey") for word in words)


def test_a_binary_body_is_copied_byte_by_byte():
    """No shell could hold it in an argument."""
    command = as_curl(OutgoingRequest("POST", "http://x/", {}, b"\x00\xff@"))

    assert command.startswith(r"printf '\000\377\100' | curl -X POST http://x/")
    assert command.endswith("--data-binary @-")


def ids_of(page):
    """Return the ids of the listed tasks, in their order."""
    return re.findall(r'<th scope="row" class="task"><a href="/tasks/[^/]+/([^"]+)"', page)


def test_a_list_has_a_time_and_an_order_in_its_address(browser, engine):
    """Older ones are left out; the most attempts or the oldest come first."""
    old = add_task(engine)
    engine.clock.advance(400)
    new, stubborn = add_task(engine), add_task(engine)
    for _ in range(3):
        engine.end_attempt(engine.begin_attempt(stubborn).id, status=500)
    short = {name: name.rpartition("/")[2] for name in (old, new, stubborn)}

    recent = ids_of(browser.get("/tasks?age=5m").text)
    oldest = ids_of(browser.get("/tasks?sort=oldest").text)
    most = ids_of(browser.get("/tasks?sort=attempts&age=5m").text)

    assert recent == [short[stubborn], short[new]]
    assert oldest == [short[old], short[new], short[stubborn]]
    assert most == [short[stubborn], short[new]]
    assert ids_of(browser.get("/tasks?age=5m&q=tasks").text) == recent


def test_a_change_of_many_keeps_to_the_time_of_its_list(browser, engine):
    """What is older stays, also when the person reads for a while."""
    old = add_task(engine)
    engine.clock.advance(400)
    new = add_task(engine)
    link = re.search(
        r'href="/tasks/all/delete/confirm\?([^"]+)"', browser.get("/tasks?age=5m").text
    )

    fields, count = confirm(browser, "delete", link[1].replace("&amp;", "&"))
    engine.clock.advance(3600)
    browser.post("/tasks/all/delete/confirm", fields)

    assert count == 1
    assert engine.history.of_task(new)[0].state == "deleted"
    assert engine.history.of_task(old)[0].state == "live"


@pytest.mark.parametrize(
    "query", ["age=2h", "sort=name", "since=soon", "since=-1", "since=nan", "age=__class__"]
)
def test_an_unknown_time_or_order_is_refused_by_its_name(browser, query):
    """As a page that says which there are."""
    answer = browser.get(f"/tasks?{query}")

    assert answer.status == 400
    assert f"{query.partition('=')[0]}: " in answer.text
    assert browser.get(f"/tasks/all/delete/confirm?{query}").status == 400


def test_an_order_looks_at_a_bounded_number_of_tasks(browser, engine, monkeypatch):
    """And says so."""
    monkeypatch.setattr(work, "MAX_SORTED", 3)
    names = [add_task(engine) for _ in range(5)]

    page = browser.get("/tasks?sort=oldest").text

    assert ids_of(page) == [name.rpartition("/")[2] for name in names[2:]]
    assert "the newest 3 tasks that match" in page
