"""The console: what it shows, what its buttons do, and whom it refuses."""

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from google.cloud import datastore

from devserver import services, settings
from devserver.cloudtasks import messages
from devserver.cloudtasks.emulator import Emulator, EmulatorSettings
from devserver.console import guards
from devserver.console.server import Console
from devserver.cron import Cron
from devserver.mail import MailServer
from devserver.service_table import ServiceState
from tests.devserver.conftest import QUEUE_YAML, ask, datastore_client, eventually

CONSOLE = Path(guards.__file__).parent
PORTS = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
PAGES = [
    "/",
    "/queues",
    "/tasks",
    "/outbox",
    "/dead",
    "/mail",
    "/cron",
    "/faults",
    "/queues/default/purge",
]
EVIL = "<script>alert(1)</script>"


@dataclass
class FakePlatform:
    """The dev server's parts that the console sees, with no app and no Java."""

    settings: settings.Settings
    tasks: Emulator
    cron: Cron
    mail: MailServer
    app_url: str
    datastore_address: str = "127.0.0.1:1"
    killed: list[int] = field(default_factory=list)

    def services(self):
        return [ServiceState("App", "stopped", "127.0.0.1:8080", "http://127.0.0.1:8080", EVIL)]

    def shell_environment(self):
        return {"GOOGLE_CLOUD_PROJECT": "demo-local"}

    def kill_worker(self):
        self.killed.append(42)
        return 42


class Browser:
    """Sends what a person's browser would: its cookie, and forms with their token."""

    def __init__(self, address):
        self.address = address
        page = self.get("/faults")
        self.cookie = page.headers["set-cookie"].split(";")[0]
        self.token = re.search(r'name="csrf_token" value="(\w+)"', self.get("/faults").text)[1]

    def get(self, path, **headers):
        cookie = {"Cookie": self.cookie} if hasattr(self, "cookie") else {}
        return ask(self.address, "GET", path, headers={**cookie, **headers})

    def post(self, path, fields=None, *, token=None, **headers):
        body = urlencode({"csrf_token": token or self.token, **(fields or {})})
        form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": self.cookie}
        return ask(self.address, "POST", path, body=body, headers={**form, **headers})


@pytest.fixture
def platform(tmp_path, loop_thread, sweeping_app):
    """A platform whose tasks wait for the test."""
    (tmp_path / "queue.yaml").write_text(QUEUE_YAML)
    (tmp_path / "cron.yaml").write_text(
        "cron:\n- url: /cron/sweep\n  schedule: every 5 minutes\n  description: sweep <b>\n"
    )
    chosen = settings.read(["--memory"], {f"{name}_PORT": "0" for name in PORTS}, tmp_path)

    async def build():
        emulator = Emulator(
            EmulatorSettings(
                app_url=sweeping_app.url, queue_yaml=tmp_path / "queue.yaml", dispatching=False
            )
        )
        cron = Cron(sweeping_app.url)
        cron.load(tmp_path / "cron.yaml")
        await cron.open()
        return emulator, cron

    emulator, cron = loop_thread.run(build())
    mail = MailServer()
    mail.start()
    yield FakePlatform(chosen, emulator, cron, mail, sweeping_app.url)
    loop_thread.run(cron.stop())
    loop_thread.run(emulator.stop())
    mail.stop()


@pytest.fixture
def console(platform, loop_thread):
    """A console at work."""
    running = Console(platform, 0)

    async def start():
        await running.start()
        running.begin_sampling()

    loop_thread.run(start())
    yield running
    loop_thread.run(running.stop())


@pytest.fixture
def browser(console):
    """A person's browser on the console."""
    return Browser(console.address)


@pytest.fixture
def engine(platform):
    """The Cloud Tasks engine behind the console."""
    return platform.tasks.engine


def add_task(engine, queue="default", body=b'{"name": "\\u5c71\\u7530"}', path="/tasks/work"):
    task = messages.Task()
    task.http_request.url = f"http://127.0.0.1:1{path}"
    task.http_request.body = body
    return engine.tasks.create(engine.place.queue_name(queue), task).name


def path_of(name):
    queue, task = re.search(r"/queues/(.+)/tasks/(.+)", name).groups()
    return f"/tasks/{queue}/{task}"


# --- whom it refuses ------------------------------------------------------


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


def test_a_dead_task_whose_name_is_too_long_is_not_asked_for(browser, engine):
    """A replay that can never work is no task."""
    assert browser.post(f"/dead/{'x' * 1501}/replay").status == 404
    assert engine.history.newest("", "", 0, 10) == []


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


# --- what it shows --------------------------------------------------------


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
        return re.findall(r">/tasks/(first|second|third)<", browser.get(f"/tasks?{query}").text)

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
        seen += re.findall(r'<span class="sub mono">(\d+)</span>', page)
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


# --- what its buttons do --------------------------------------------------


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
        {"kind": "delay", "percent": "5", "max_count": "0.5"},
    ],
)
def test_a_bad_fault_is_refused_with_its_reason(browser, engine, fields):
    """The form comes back with what is wrong, and nothing is on."""
    answer = browser.post("/faults", fields)

    assert answer.status == 400
    assert 'role="alert"' in answer.text
    assert engine.faults.all() == []


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

    eventually(lambda: bool(console.samples.depth) and console.samples.depth[-1] == 1, "a sample")


# --- outbox ---------------------------------------------------------------


def stranded(client, age_s, *, held=False, number=0, **changes):
    """Return an outbox row as the app would have written it some time ago."""
    created = datetime.now(UTC) - timedelta(seconds=age_s)
    kind = "h" if held else "o"
    row = datastore.Entity(
        client.key("OutboxTask", f"c|{created:%Y%m%dT%H%M%S%f}|{kind}|c0ffee|{number:04d}|1a2b3c4d")
    )
    row.update({"path": "/tasks/work", "queue": "default", "body": '{"name": "山田"}', **changes})
    return row


@pytest.fixture
def stored(platform, datastore_address):
    """A Datastore to put rows into, where the console looks for them; emptied afterwards."""
    platform.datastore_address = datastore_address("datastore")
    client = datastore_client(platform.datastore_address)
    yield client
    query = client.query(kind="OutboxTask")
    query.keys_only()
    keys = [row.key for row in query.fetch()]
    for start in range(0, len(keys), 500):
        client.delete_multi(keys[start : start + 500])
    client.close()


def test_the_outbox_is_shown_oldest_first(browser, stored):
    """How much waits and since when, and each row with what it asks for."""
    rows = [stranded(stored, 5), stranded(stored, 320, path=EVIL), stranded(stored, 75)]
    held = stranded(stored, 7_300, held=True, tag="views/room")
    stored.put_multi([*rows, held])

    page = browser.get("/outbox").text

    assert "<dd>4</dd>" in page
    assert [*re.findall(r"<summary>Body</summary>.*?山田", page, re.DOTALL)][3:]
    ages = re.findall(r'data-label="Since"><time[^>]*>([^<]*)<', page)
    assert ages[:3] == ["2 h ago", "5 min ago", "1 min ago"]
    assert re.fullmatch(r"\d+ s ago", ages[3])  # Seconds pass between the row and the page.
    assert page.count("Unacked</span>") == 1
    assert "views/room" in page
    assert EVIL not in page
    assert "Only the oldest" not in page


@pytest.mark.parametrize("odd", ["made by hand", "c|now|h", 5_629_499_534_213_120])
def test_a_row_with_an_odd_key_hides_no_other(browser, stored, odd):
    """A row of another version, or one made by hand, is old, and the page shows the others, too."""
    row = datastore.Entity(stored.key("OutboxTask", odd))
    row.update({"path": "/tasks/work", "queue": "default", "body": "{}"})
    stored.put_multi([stranded(stored, 320), row])

    page = browser.get("/outbox").text

    assert "<dd>2</dd>" in page
    assert "5 min ago" in page
    assert "in the outbox" in browser.get("/").text


def test_a_long_outbox_shows_the_oldest_and_counts_no_further_than_it_must(browser, stored):
    """Fifty rows in full, a thousand counted: the page of a backlog is as fast as another."""
    for start in (0, 500):
        many = [stranded(stored, 60 + i, number=i) for i in range(start, start + 500)]
        stored.put_multi(many)
    stored.put(stranded(stored, 10, number=1000))

    page = browser.get("/outbox").text

    assert "<dd>1000 or more</dd>" in page
    assert page.count('data-label="Since"') == 50
    assert "Only the oldest 50 are shown." in page


def test_an_empty_outbox_says_so(browser, stored):
    """Mostly nothing waits, and that is how it should be."""
    page = browser.get("/outbox").text

    assert "<dd>0</dd>" in page
    assert "Nothing waits" in page
    assert "in the outbox" not in browser.get("/").text


def test_the_relays_rate_is_asked_of_the_app(browser, stored, sweeping_app):
    """With the scheduler's token; an app that says nothing leaves a dash."""
    silent = browser.get("/outbox").text
    sweeping_app.said = "# TYPE outbox_relayed_per_second gauge\noutbox_relayed_per_second 12.25\n"

    page = browser.get("/outbox").text

    assert "<dd>–</dd>" in silent
    assert "<dd>12.2 a second</dd>" in page
    path, headers = sweeping_app.requests[-1]
    assert (path, headers["x-appengine-cron"]) == ("/metrics", "true")


@pytest.mark.parametrize(("status", "said"), [(200, "Swept: "), (503, "The sweep failed")])
def test_the_outbox_is_swept_at_the_press_of_a_button(
    browser, platform, stored, sweeping_app, tmp_path, status, said
):
    """The entry of cron.yaml runs now, and the page tells how it went."""
    (tmp_path / "cron.yaml").write_text(
        "cron:\n- url: /cron/outbox/sweep\n  schedule: every 5 minutes\n"
    )
    platform.cron.load(tmp_path / "cron.yaml")
    sweeping_app.status = status

    answer = browser.post("/outbox/sweep")

    assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/outbox")
    assert sweeping_app.requests[-1][0] == "/cron/outbox/sweep"
    assert platform.cron.job("/cron/outbox/sweep").last_run.by_hand
    assert said in browser.get(answer.headers["location"]).text


def test_a_sweep_that_cron_yaml_lacks_is_no_page(browser):
    """Somebody took the entry out: the button says so."""
    answer = browser.post("/outbox/sweep")

    assert answer.status == 404
    assert "There is no cron job" in answer.text


@pytest.mark.parametrize(
    ("held", "age_s", "is_late"),
    [(False, 30, False), (False, 200, True), (True, 200, False), (True, 700, True)],
)
def test_the_overview_tells_of_rows_that_wait_too_long(browser, stored, held, age_s, is_late):
    """A minute for a row that its process should have relayed; a held one may wait in its queue."""
    stored.put(stranded(stored, age_s, held=held))

    overview = browser.get("/").text

    assert ("1 row in the outbox" in overview) is is_late
    assert ('href="/outbox"><span' in overview) is is_late


def test_an_outbox_that_cannot_be_read_says_why(browser):
    """Datastore is away: the page stands, with the reason; the overview is silent about it."""
    page = browser.get("/outbox")

    assert page.status == 200
    assert "Datastore does not answer" in page.text
    assert browser.get("/").status == 200


# --- dead tasks -----------------------------------------------------------


def test_without_datastore_the_page_says_so(browser):
    """Dead tasks live in Datastore: when it is away, the page is not an error."""
    page = browser.get("/dead")

    assert page.status == 200
    assert "Datastore does not answer" in page.text


@pytest.mark.services
def test_a_dead_task_is_shown_and_replayed_through_cloud_tasks(browser, platform, engine):
    """The app's own row is listed, and Replay enqueues a task with a token for the app."""
    with services.datastore_emulator() as address:
        platform.datastore_address = address
        client = datastore_client(address)
        key = client.key("DeadTask", "dead/1")
        row = datastore.Entity(key, exclude_from_indexes=("body",))
        row.update(path="/tasks/mail", queue="mails", body='{"to": "山田"}', reason="bad address")
        client.put(row)
        client.close()

        page = browser.get("/dead").text
        replayed = browser.post("/dead/dead%2F1/replay")

    assert "bad address" in page
    assert "山田" in page
    assert replayed.status == 303
    (task,) = engine.history.newest()
    spec = messages.Task.FromString(task.spec).http_request
    assert spec.url == f"{platform.app_url}/tasks/dead/replay"
    assert json.loads(spec.body) == {"dead_task_id": "dead/1"}
    assert spec.oidc_token.audience == platform.app_url
