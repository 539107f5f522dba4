"""Pages: what an operator reads, and forms that change something once, with a token."""

from __future__ import annotations

import datetime
import re
import time
from collections import Counter
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from google.cloud import ndb
from werkzeug.test import TestResponse

from rollforward.console.pages.frame import TOKENS_KEPT_S
from rollforward.datastore.batched import batched
from rollforward.operations import list_dead_tasks, waiting
from rollforward.outbox.entities import OutboxTask, RowId
from rollforward.registry import PATTERNS
from rollforward.runtime.channel.rpc import Cost
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.cloud_tasks import CloudTaskQueue
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.rollforward.console.conftest import API, PATH, Desk

PAGES = ("/", "/dead", "/runs", "/waiting", "/waiting?queue=default", "/outbox", "/lag")
PAGES += ("/schedules", "/lanes", "/audit", "/dead/all/replay", "/dead/all/delete")
ROOT = "/rollforward"
MAX_READS = 60


class Browser:
    """A browser of an operator, with its cookies."""

    def __init__(self, desk: Desk, role: str = "operate") -> None:
        self.client: FlaskClient = desk.app.test_client()
        self.headers = {"X-Role": role}

    def open(self, path: str) -> TestResponse:
        address = path if path.startswith(ROOT) else ROOT + path
        return self.client.get(address, headers=self.headers)

    def read(self, path: str) -> str:
        response = self.open(path)
        assert response.status_code == 200, (path, response.status_code, response.text)
        return response.text

    def submit(self, page: str, action: str, **fields: object) -> TestResponse:
        """Send a form with the token of a page."""
        [token, *_] = re.findall(r'name="csrf_token" value="([^"]+)"', self.read(page))
        return self.client.post(
            ROOT + action, data={"csrf_token": token, **fields}, headers=self.headers
        )


@pytest.mark.parametrize("role", ["read", "operate"])
def test_every_page_answers_and_says_where_it_is(desk: Desk, role: str) -> None:
    """With nothing to show, and with something; links of the page lead somewhere."""
    browser = Browser(desk, role)
    for _ in range(2):
        for path in PAGES:
            text = browser.read(path)
            assert "<h1>" in text, path
            for address in set(re.findall(r'(?:href|src)="(/[^"]*)"', text)):
                assert browser.open(unescape(address)).status_code == 200, (path, address)
        desk.give_up("x")
        desk.world.sweep()


def test_every_address_of_a_page_is_below_the_place_where_the_app_is_mounted(desk: Desk) -> None:
    """Also those of the menu, which names the page, of Refresh, and of the first page of a list."""
    created = desk.world.clock.now().replace(tzinfo=None)
    rows = [RowId(f"c{number:023d}", created, 0, False, "1a2b3c4d") for number in range(30)]
    with desk.world.context():
        ndb.put_multi(
            [OutboxTask(id=row.text, path=PATH, queue="default", body="{}") for row in rows]
        )
    cursor = desk.ask(f"{API}/outbox?limit=20").json["next_cursor"]  # type: ignore[index]
    client, headers = desk.app.test_client(), {"X-Role": "operate"}
    for path in (*PAGES, f"/outbox?cursor={quote(cursor)}"):
        answer = client.get(ROOT + path, base_url="http://localhost/shop", headers=headers)
        addresses = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', answer.text))
        current = re.findall(r'<a href="([^"]*)"[^>]*aria-current="page"', answer.text)

        assert answer.status_code == 200, path
        assert {text for text in addresses if not text.startswith(f"/shop{ROOT}/")} == set(), path
        assert current == [f"/shop{ROOT}/{path.strip('/').partition('?')[0].partition('/')[0]}"]


def test_the_overview_without_alerts_claims_no_more_than_it_checks(desk: Desk) -> None:
    """The outbox may have rows, as long as none of them is late."""
    created = desk.world.clock.now().replace(tzinfo=None)
    row = RowId("c" * 24, created, 0, False, "1a2b3c4d")
    with desk.world.context():
        OutboxTask(id=row.text, path=PATH, queue="default", body="{}").put()

    page = Browser(desk).read("/")

    assert "no task of the outbox is late" in page
    assert "backlog" not in page


def test_a_reader_is_offered_no_form_that_changes_something(desk: Desk) -> None:
    """Filters only."""
    dead_id = desk.give_up("x")
    browser = Browser(desk, "read")

    for path in (*PAGES, f"/dead/one/{dead_id}"):
        text = browser.read(path)
        assert 'method="post"' not in text, path
        assert "formaction" not in text, path


def test_a_dead_task_is_shown_with_its_traceback_and_replayed(desk: Desk) -> None:
    """The page says so, and the audit trail has who did it."""
    dead_id = desk.give_up("x", reason="gave up. Traceback <b>", error="KeyError", deliveries=7)
    browser = Browser(desk)

    shown = browser.read(f"/dead/one/{dead_id}")
    answer = browser.submit("/dead", "/dead/change", target=f"{dead_id}:replay")
    desk.world.settle()

    assert "gave up. Traceback &lt;b&gt;" in shown
    assert ">7<" in shown
    assert (answer.status_code, desk.done) == (303, Counter({"x": 1}))
    assert "Replayed: its task is enqueued." in browser.read(answer.headers["Location"])
    assert "operate@example.com" in browser.read("/audit")


def test_a_form_without_the_token_changes_nothing(desk: Desk) -> None:
    """As every form of the app."""
    dead_id = desk.give_up("x")
    browser = Browser(desk)
    browser.read("/dead")

    answer = browser.client.post(
        f"{ROOT}/dead/change", data={"target": f"{dead_id}:replay"}, headers=browser.headers
    )

    assert answer.status_code == 403
    desk.world.settle()
    assert desk.done == {}


def test_the_selected_dead_tasks_are_replayed(desk: Desk) -> None:
    """The other ones stay."""
    ids = {tag: desk.give_up(tag) for tag in "abc"}
    browser = Browser(desk)

    answer = browser.submit("/dead", "/dead/selected", verb="replay", id=[ids["a"], ids["c"]])
    desk.world.settle()

    assert desk.done == Counter({"a": 1, "c": 1})
    text = browser.read(answer.headers["Location"])
    assert "replay-dead-tasks" in text
    assert re.search(r"<b>2</b>.*Done", text)


def test_all_that_match_are_replayed_but_those_that_died_since(desk: Desk) -> None:
    """A person confirms a number, and gets it once: the form sent twice is one run."""
    desk.give_up("a", queue="mail")
    desk.give_up("b", queue="default", reason="KeyError: x")
    desk.give_up("c", queue="default", reason="KeyError: x")
    browser = Browser(desk)
    desk.world.clock.sleep(1)
    page = browser.read("/dead/all/replay?error=KeyError")
    desk.world.clock.sleep(1)
    desk.give_up("late", reason="KeyError: x")
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))

    answers = [
        browser.client.post(f"{ROOT}/dead/all/replay", data=fields, headers=browser.headers)
        for _ in range(2)
    ]
    desk.world.settle()

    assert "Replay 2 dead tasks?" in page
    assert len({answer.headers["Location"] for answer in answers}) == 1
    assert desk.done == Counter({"b": 1, "c": 1})


@pytest.mark.parametrize(
    ("action", "fields", "status"),
    [
        ("/dead/change", {"target": "x:explode"}, 404),
        ("/dead/change", {"target": "nothing:replay"}, 404),
        ("/dead/change", {}, 404),
        ("/dead/selected", {"verb": "replay"}, 400),
        ("/dead/selected", {"verb": "explode", "id": "x"}, 404),
        ("/dead/all/replay", {}, 400),
        ("/dead/all/replay", {"until": "x", "key": "k"}, 400),
        ("/dead/all/explode", {"until": "2030-01-01T00:00Z", "key": "k"}, 404),
        ("/runs/change", {"pattern": "continuations", "id": "x", "verb": "cancel"}, 404),
        ("/runs/change", {}, 404),
    ],
)
def test_a_form_that_cannot_be_understood_changes_nothing(
    desk: Desk, action: str, fields: dict[str, str], status: int
) -> None:
    """And gets a page that says why."""
    desk.give_up("x")

    answer = Browser(desk).submit("/dead", action, **fields)

    assert (answer.status_code, 'role="alert"' in answer.text) == (status, True)
    desk.world.settle()
    assert desk.done == {}


@pytest.mark.parametrize(
    "path", ["/dead?age=x", "/dead?cursor=x", "/runs?state=x", "/runs?before=x", "/audit?before=x"]
)
def test_an_address_that_cannot_be_understood_is_refused(desk: Desk, path: str) -> None:
    """A page of the console says which part."""
    answer = Browser(desk).open(path)

    assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose zone is not UTC."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_what_fails_and_is_retried_is_on_the_page_of_waiting_tasks(
    desk: Desk, elsewhere: None
) -> None:
    """With its last error and its times, in any zone of the machine."""
    with desk.world.context():
        now = desk.world.clock.now().replace(tzinfo=None)
        TaskAttempts(
            id="x", path="/tasks/ship", queue="mail", failures=3, error="KeyError: 'a'", first=now,
            expires=now,
        ).put()  # fmt: skip

    text = Browser(desk).read("/waiting")

    assert "/tasks/ship" in text
    assert "KeyError: &#39;a&#39;" in text
    assert f'data-label="First failed"><time datetime="{now:%Y-%m-%dT%H:%M:%S}' in text


def test_the_outbox_is_swept_by_a_press_on_record(desk: Desk) -> None:
    """A row that its process left behind becomes a task at once."""
    with desk.world.context():
        created = desk.world.clock.now().replace(tzinfo=None) - datetime.timedelta(seconds=30)
        row = RowId("c" * 24, created, 0, False, "1a2b3c4d")
        OutboxTask(id=row.text, path=PATH, queue="default", body='{"tag": "x"}').put()
    browser = Browser(desk)
    shown = browser.read("/outbox")

    answer = browser.submit("/outbox", "/outbox/sweep")
    desk.world.settle()

    assert PATH in shown
    assert (answer.status_code, desk.done) == (303, Counter({"x": 1}))
    assert "Nothing is pending" in browser.read("/outbox")
    assert "Sweep outbox" in browser.read("/audit")


def test_the_outbox_is_listed_by_age_to_its_last_row(desk: Desk) -> None:
    """Each row once: of all partitions, of the same instant, and those made by hand."""
    now = desk.world.clock.now().replace(tzinfo=None)
    rows = [
        RowId(f"{number * 7 % 16:x}" * 24, now - datetime.timedelta(seconds=number // 4), 0, False)
        for number in range(90)
    ]
    by_age = [row.text for row in sorted(rows, key=lambda row: (row.created, row.text))]
    strange = ["-by-hand", "~by-hand"]
    with desk.world.context():
        ndb.put_multi(
            [OutboxTask(id=id_, path=PATH, queue="default", body="{}") for id_ in by_age + strange]
        )
    listed: list[str] = []
    cursor = ""
    while not listed or cursor:
        answer = desk.ask(f"{API}/outbox?limit=20&cursor={quote(cursor)}").json
        assert answer is not None
        listed += [row["id"] for row in answer["rows"]]
        cursor = answer["next_cursor"]
    browser = Browser(desk)
    shown = browser.read("/outbox")
    [following] = re.findall(r'href="([^"]+)" rel="next"', shown)

    assert [id_ for id_ in listed if id_ not in strange] == by_age
    assert sorted(listed) == sorted(by_age + strange)
    assert by_age[0] in shown
    assert by_age[0] not in browser.read(unescape(following))
    assert reads_of(desk, lambda: browser.read("/outbox")) <= MAX_READS
    for cursor in ("x", "20300501T120000000000|", "99999999T999999999999|c"):
        assert browser.open(f"/outbox?cursor={cursor}").status_code == 400, cursor


def test_the_outbox_is_listed_to_its_last_row_if_one_partition_has_all(desk: Desk) -> None:
    """As after an outage of one process's queue: no other partition fills a page."""
    now = desk.world.clock.now().replace(tzinfo=None)
    ages = [datetime.timedelta(seconds=number) for number in range(5)]
    rows = [RowId("c" * 24, now - age, 0, False).text for age in ages]
    with desk.world.context():
        ndb.put_multi([OutboxTask(id=id_, path=PATH, queue="default", body="{}") for id_ in rows])
    pages, cursor = list[list[str]](), ""
    while not pages or cursor:
        answer = desk.ask(f"{API}/outbox?limit=2&cursor={quote(cursor)}").json
        assert answer is not None
        pages.append([row["id"] for row in answer["rows"]])
        cursor = answer["next_cursor"]

    assert pages == [rows[:2:-1], rows[2:0:-1], rows[:1]]


def test_sweeps_say_when_each_was_done(desk: Desk) -> None:
    """A sweep that is not known to have happened says so."""
    browser = Browser(desk)
    counts = [browser.read("/schedules").count(">not known<")]
    desk.world.sweep()
    counts.append(browser.read("/schedules").count(">not known<"))

    swept = [pattern for pattern in PATTERNS if pattern.is_swept]
    assert counts == [len(swept), 0]


def test_a_page_without_news_costs_an_operator_no_body(desk: Desk) -> None:
    """Its script asks every two seconds, and less often after a 304; forms are good for a day."""
    desk.give_up("x")
    browser = Browser(desk)
    for path in ("/dead", "/waiting", "/outbox"):
        headers = {**browser.headers, "If-None-Match": browser.open(path).headers["ETag"]}
        time.sleep(1.1)  # The token of its forms is another one.
        again = browser.client.get(ROOT + path, headers=headers)
        assert again.status_code == 304, path

    desk.world.clock.sleep(TOKENS_KEPT_S)
    assert browser.client.get(ROOT + path, headers=headers).status_code == 200


def put_dead(desk: Desk, count: int) -> None:
    """Store dead tasks past their own commits."""
    now_utc = desk.world.clock.now().replace(tzinfo=None)
    with desk.world.context():
        for numbers in batched(range(count), 250):
            rows = []
            for number in numbers:
                died = now_utc - datetime.timedelta(seconds=count - number)
                row = DeadTask(
                    id=f"d{number:06d}", path=PATH, queue=f"q{number % 3}", error="ValueError",
                    task_name=f"t{number}", body='{"tag": "x"}', reason="ValueError: no such party",
                    created=died, updated=died,
                )  # fmt: skip
                row.list_open()
                rows.append(row)
            ndb.put_multi(rows)


@pytest.mark.parametrize("count", [30, 300, *([100_000] if IS_EXHAUSTIVE else ())])
def test_a_page_reads_as_much_of_many_rows_as_of_few_in_bulk(desk: Desk, count: int) -> None:
    """At most sixty entities, whatever is stored; `make soak` stores 100,000 dead tasks."""
    put_dead(desk, count)
    browser = Browser(desk)
    [cursor] = {page(desk, "")}

    filters = ("queue=q1", "pattern=tasks&error=ValueError", "age=24h", "sort=oldest")
    lists = [f"/dead?{query}" for query in (*filters, f"cursor={cursor}")]
    for path in (*PAGES, *lists, "/dead/one/d000007", "/runs?state=running"):
        reads = reads_of(desk, lambda path=path: browser.read(path))  # type: ignore[misc]
        assert reads <= MAX_READS, (path, reads)
    assert reads_of(desk, lambda: browser.read("/dead")) >= 20  # They are counted.
    assert reads_of(desk, lambda: desk.ask(f"{API}/dead-tasks?limit=50")) <= MAX_READS


def page(desk: Desk, cursor: str) -> str:
    with desk.world.context():
        return list_dead_tasks(cursor=cursor, limit=20).next_cursor


def reads_of(desk: Desk, act: object) -> int:
    meter = desk.world.clients.meter
    spent: Cost = meter.total()
    act()  # type: ignore[operator]
    return (meter.total() - spent).reads


def test_the_lag_page_marks_what_an_alert_would_name(desk: Desk) -> None:
    """A person finds it among thirty rows: by its mark, with the number that it is above."""
    browser = Browser(desk)
    calm = browser.read("/lag")
    desk.give_up("x")
    marked = browser.read("/lag")

    assert "is-retrying" not in calm
    [cell] = re.findall(r'<th scope="row" class="mono">([a-z_]+)</th>[^\n]*is-retrying', marked)
    assert cell == "dead_tasks_open"
    assert "above 0" in marked


def test_the_lag_page_names_the_patterns_that_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad row of one pattern hides the gauges of no other, as in /metrics."""
    outbox = desk.world.registry.patterns["outbox"]
    monkeypatch.setattr(outbox, "gauges", lambda clients, parts: [][0])

    text = Browser(desk).read("/lag")

    assert "Not read: outbox<" in text
    assert "dead_tasks_open" in text
    assert "outbox_waiting" not in text


def test_all_pages_that_are_open_ask_cloud_tasks_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refreshes every few seconds; a queue that is paused here is shown at once."""
    tasks, asked = desk.world.clients.tasks, []
    assert isinstance(tasks, CloudTaskQueue)
    listed = tasks.queue_states
    monkeypatch.setattr(tasks, "queue_states", lambda: asked.append(1) or listed())
    browser, other = Browser(desk), Browser(desk, "read")
    monkeypatch.setattr(waiting, "STATES_KEPT_S", 0)
    browser.read("/")
    other.read("/")
    assert len(asked) == 2, "what is too old is asked again"
    asked.clear()
    monkeypatch.setattr(waiting, "STATES_KEPT_S", 3_600)  # Ten pages may take some seconds.
    waiting.forget_queue_states(desk.world.clients)
    for _ in range(5):
        browser.read("/")
        other.read("/")
    calm = len(asked)
    try:
        browser.submit("/waiting", "/queues/change", queue="default", verb="pause")
        assert "The queue default is paused" in other.read("/")
    finally:
        with desk.world.context():
            tasks.control_queue("default", "resume")

    assert calm == 1
