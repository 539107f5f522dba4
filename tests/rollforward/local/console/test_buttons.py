"""What the buttons of the console do, and its API."""

import json
import re

import pytest

from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.service_table import ServiceState
from tests.rollforward.local.conftest import ask, eventually
from tests.rollforward.local.console.conftest import add_task, path_of


def test_pause_and_resume_a_queue(browser, engine):
    """A paused queue says so and offers to resume."""
    queue = engine.place.queue_name("default")

    assert browser.post("/queues/default/pause").status == 303
    assert engine.queues.get(queue).state == messages.PAUSED
    assert "Resume" in browser.get("/queues").text
    assert browser.post("/queues/default/resume").status == 303
    assert engine.queues.get(queue).state == messages.RUNNING


def test_a_queue_is_purged_only_when_its_name_is_typed(browser, engine):
    """A slip of the finger purges nothing."""
    add_task(engine)

    wrong = browser.post("/queues/default/purge", {"name": "mails"})
    assert wrong.status == 409
    assert "Nothing was purged" in wrong.text
    assert engine.counts()[engine.place.queue_name("default")]["queued"] == 1

    right = browser.post("/queues/default/purge", {"name": "default"})
    assert right.status == 303
    assert engine.counts()[engine.place.queue_name("default")]["queued"] == 0


@pytest.mark.parametrize("path", ["/queues/nothing/pause", "/queues/nothing/purge"])
def test_an_unknown_queue_is_not_found(browser, path):
    """A queue that is gone gives a page that says so."""
    assert browser.post(path, {"name": "nothing"}).status == 404


def test_run_now_retry_and_delete_a_task(browser, engine):
    """The three levers of a task reach the engine."""
    waiting, gone, done = (add_task(engine) for _ in range(3))
    engine.end_attempt(engine.begin_attempt(done).id, status=200)

    browser.post(f"{path_of(waiting)}/run")
    browser.post(f"{path_of(gone)}/delete")
    browser.post(f"{path_of(done)}/retry")

    due = {(delivery.task_name, delivery.kind) for delivery in engine.due()}
    assert due == {(waiting, "forced"), (done, "duplicate")}


def test_a_button_on_a_task_that_has_ended_says_so(browser, engine):
    """A page may be older than the task: its buttons then explain themselves."""
    name = add_task(engine)
    engine.tasks.delete(name)

    assert browser.post(f"{path_of(name)}/run").status == 404
    assert browser.post(f"{path_of(name)}/retry").status == 409


def test_faults_are_switched_on_and_off(browser, engine):
    """A rule made in the form is in force until it is taken out."""
    fields = {"kind": "delay", "percent": "25", "queue": "mails", "path": "", "param": "2"}

    assert browser.post("/faults", fields).status == 303
    (rule,) = engine.faults.all()
    assert (rule.kind, rule.rate, rule.queue, rule.param) == ("delay", 0.25, "mails", 2.0)

    browser.post("/faults/remove", {"rule": rule.id})
    assert engine.faults.all() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "delay", "percent": "250"},
        {"kind": "unknown", "percent": "5"},
        {"kind": "delay", "percent": "nan"},
        {"kind": "error", "percent": ""},
        {"kind": "error", "percent": "0"},
        {"kind": "error", "percent": "5", "path": "/" + "x" * 500},
        {"kind": "delay", "percent": "5", "max_count": "0.5"},
    ],
)
def test_a_bad_fault_is_refused_with_its_reason(browser, engine, fields):
    """The form comes back with what is wrong, and nothing is on."""
    answer = browser.post("/faults", fields)

    assert answer.status == 400
    assert 'role="alert"' in answer.text
    assert f'name="percent" inputmode="decimal" value="{fields["percent"]}"' in answer.text
    assert engine.faults.all() == []


def test_an_error_speaks_of_the_field_as_the_form_does(browser):
    """In percent, as it was typed, and not of a rate from 0 to 1."""
    fields = {"kind": "delay", "percent": "400", "queue": "mails", "path": "/a", "param": "2"}

    page = browser.post("/faults", fields).text

    assert "Share of deliveries: a number from 0 to 100, not “400”." in page
    for part in ('value="400"', 'value="delay" selected', "<option selected>mails", 'value="/a"'):
        assert part in page


@pytest.mark.parametrize(
    ("path", "field", "name"),
    [
        ("/faults", "percent", "Share of deliveries"),
        ("/faults/mail", "percent", "Share of messages"),
        ("/faults/mail", "latency_ms", "Time for each message"),
    ],
)
def test_an_empty_number_is_refused_with_the_name_of_its_field(browser, engine, path, field, name):
    """It does not stand for 0: nothing is switched on, and what was on stays."""
    fields = {"kind": "error", "percent": "5", "latency_ms": "5", "refused": "", field: " "}

    answer = browser.post(path, fields)

    assert answer.status == 400
    assert f"{name}: a number from 0 to" in answer.text
    assert engine.faults.all() == []


def test_mail_faults_are_listed_with_the_others_and_switched_off(browser, platform):
    """One row each; the others stay."""
    platform.mail.set_faults(temporary_rate=0.25, latency_ms=7, refused=("ada@example.com",))

    page = browser.get("/faults").text
    browser.post("/faults/mail/remove", {"rule": "temporary_rate"})
    browser.post("/faults/mail/remove", {"rule": "__class__"})

    on = page.partition("Active faults")[2].partition("</section>")[0]
    for part in ("25 % of messages", "7 ms for each message", "ada@example.com (550)"):
        assert part in on
    faults = platform.mail.faults
    assert (faults.temporary_rate, faults.latency_ms) == (0.0, 7.0)
    assert faults.refused == ("ada@example.com",)


def test_mail_faults_are_set_in_the_form(browser, platform):
    """Percent, addresses and latency reach the mail server; a bad value changes nothing."""
    browser.post(
        "/faults/mail", {"percent": "20", "refused": "a@x.org\nb@x.org", "latency_ms": "15"}
    )
    bad = browser.post("/faults/mail", {"percent": "120", "refused": "", "latency_ms": "0"})

    faults = platform.mail.faults
    assert bad.status == 400
    assert (faults.temporary_rate, faults.latency_ms) == (0.2, 15.0)
    assert faults.refused == ("a@x.org", "b@x.org")


def test_a_worker_is_killed_by_the_button_and_by_the_api(console, browser, platform):
    """Both ways end in the same kill."""
    browser.post("/faults/kill-worker")
    json_headers = {"Content-Type": "application/json"}
    answer = ask(console.address, "POST", "/api/v1/workers/kill", headers=json_headers)

    assert answer.json() == {"pid": 42}
    assert platform.killed == [42, 42]


@pytest.mark.parametrize("count", [0, 9, "3", True, None, 3])
def test_the_app_has_as_many_workers_as_the_api_says(console, platform, count):
    """1 to 8, a whole number; else nothing changes."""
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"count": count})
    answer = ask(console.address, "POST", "/api/v1/workers", body=body, headers=headers)

    assert (answer.status, platform.wanted) == ((200, 3) if count == 3 else (400, 2))
    shown = ask(console.address, "GET", "/api/v1/workers").json()
    assert shown == {"count": platform.wanted, "max": 8}


def test_cron_jobs_run_pause_and_resume(browser, platform, sweeping_app):
    """A job run by hand shows its result; a paused one shows that."""
    ran = browser.post("/cron/run", {"name": "/cron/sweep"})
    browser.post("/cron/pause", {"name": "/cron/sweep"})
    page = browser.get("/cron").text

    assert ran.headers["location"] == "/cron?said=cron-ok"
    assert [path for path, _ in sweeping_app.requests] == ["/cron/sweep"]
    assert "Paused" in page
    assert "200 ·" in page
    browser.post("/cron/resume", {"name": "/cron/sweep"})
    assert not platform.cron.job("/cron/sweep").paused
    assert browser.post("/cron/run", {"name": "/cron/none"}).status == 404


def test_cron_can_rest_through_the_api(console, platform):
    """A program lets a job's schedule rest and go on; what is unclear changes nothing."""

    def pause(**fields):
        headers = {"Content-Type": "application/json"}
        path = "/api/v1/cron/pause"
        return ask(console.address, "POST", path, body=json.dumps(fields), headers=headers)

    resting = pause(name="/cron/sweep", paused=True)
    refused = [pause(name="/cron/sweep", paused="no"), pause(name="/cron/none", paused=True)]
    still = platform.cron.job("/cron/sweep").paused
    going_on = pause(name="/cron/sweep", paused=False)

    assert (resting.json()["paused"], resting.json()["next"]) == (True, [])
    assert [answer.status for answer in refused] == [400, 404]
    assert still
    assert (going_on.json()["paused"], platform.cron.job("/cron/sweep").paused) == (False, False)


def test_a_service_that_hangs_is_pointed_out(browser, platform, monkeypatch):
    """The overview says that it does not answer, and what to do."""
    note = "has not answered for 12 s. Stop with Ctrl-C and start again."
    row = ServiceState("Datastore", "silent", "127.0.0.1:8081", "", note)
    monkeypatch.setattr(platform, "services", lambda: [row])

    page = browser.get("/").text

    assert "Datastore does not answer" in page
    assert "Does not answer" in page
    assert note in page


def test_mail_is_listed_opened_and_cleared(browser, platform):
    """The list pages; one message is shown as text with its source."""
    for number in range(60):
        raw = f"Subject: letter {number}\r\n\r\nhello {number}".encode()
        platform.mail.store.add("a@example.org", ["b@example.org"], raw)

    first = browser.get("/mail").text
    older = re.search(r'<a href="([^"]+)" rel="next"', first)[1]

    assert "60 messages" in first
    assert "letter 9<" not in first
    assert "letter 9<" in browser.get(older).text
    assert "hello 59" in browser.get("/mail/60").text
    browser.post("/mail/clear")
    assert platform.mail.count() == 0


def test_the_mail_api_lists_shows_and_clears(console, platform):
    """A script can read the mail, set its faults and forget it."""
    platform.mail.store.add("a@example.org", ["b@example.org"], b"Subject: x\r\n\r\nhi")
    headers = {"Content-Type": "application/json"}

    def post(path, fields):
        return ask(console.address, "POST", path, body=json.dumps(fields), headers=headers)

    listed = ask(console.address, "GET", "/api/v1/mail").json()
    one = ask(console.address, "GET", "/api/v1/mail/1").json()
    faults = post("/api/v1/mail/faults", {"temporary_rate": 0.5, "refused": ["c@example.org"]})
    bad = post("/api/v1/mail/faults", {"temporary_rate": "half"})
    unknown = post("/api/v1/mail/faults", {"speed": 1})
    post("/api/v1/mail/clear", {})

    assert (listed["count"], listed["messages"][0]["subject"]) == (1, "x")
    assert one["text"].strip() == "hi"
    assert faults.json()["refused"] == ["c@example.org"]
    assert (bad.status, unknown.status) == (400, 400)
    assert platform.mail.faults.temporary_rate == 0.5
    assert platform.mail.count() == 0


def test_the_control_api_and_the_keys_are_there(console):
    """The emulator's own routes are served by the same port."""
    queues = ask(console.address, "GET", "/api/v1/queues").json()["queues"]
    certificates = ask(console.address, "GET", "/oauth2/v1/certs").json()

    assert {queue["id"] for queue in queues} == {"default", "mails"}
    assert all("BEGIN CERTIFICATE" in pem for pem in certificates.values())


def test_samples_follow_the_tasks(console, engine):
    """Depth and flow are taken each second, from what the engine holds."""
    add_task(engine)

    depth = console.screen.samples.depth
    eventually(lambda: bool(depth) and depth[-1] == 1, "a sample")
