"""Flows in the console: failed ones are found, shown with their steps, and retried from one."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from urllib.parse import quote, urljoin

import pytest

from rollforward.flows import Steps, flow
from rollforward.flows.reading import FlowState
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.operations import list_audit
from rollforward.tasks.runs import RunQuery
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_pages import ROOT, Browser, reads_of
from tests.rollforward.flows import shop
from tests.rollforward.flows.shop import BANK, DAY_S, order

A1 = f"/runs/flows/{quote('test-orders|A1')}"
MANY = 30


@flow("test-long")
def long(step: Steps) -> None:
    """Never delivered: its rows are written by the tests."""


@pytest.fixture
def desk(services: Services) -> Desk:
    """Return the console of an app with the flow of orders."""
    BANK.__init__()  # type: ignore[misc]
    return desk_with(services, order, shop.mail, long)


def settle(desk: Desk, days: float = 0.0) -> None:
    if days:
        desk.world.clock.sleep(days * DAY_S)
        desk.world.sweep(shop.SWEEP)
    desk.world.settle(patience_s=60)


def start(desk: Desk, flow_id: str = "A1") -> None:
    with desk.world.context():
        order.start(desk.world.clients, flow_id, "boots")
    settle(desk)


def signal(desk: Desk, event: str, payload: object) -> None:
    with desk.world.context():
        order.signal(desk.world.clients, "A1", event, payload)


def state_of(desk: Desk, flow_id: str = "A1") -> FlowState:
    with desk.world.context():
        return order.state(flow_id)


def taken(desk: Desk) -> int:
    with desk.world.context():
        return int(shop.FlowStock.get_by_id("boots").taken)


def row_of(desk: Desk) -> dict[str, object]:
    with desk.world.context():
        return dict(run_key("test-orders|A1").get().to_dict())


def fail(desk: Desk, flow_id: str = "A1") -> None:
    """Start a flow whose charge fails until it is given up."""

    def refuse(verb: str) -> None:
        raise ValueError("the bank is <closed>")

    BANK.before = refuse
    start(desk, flow_id)
    for _ in range(6):
        settle(desk, days=0.1)
    assert state_of(desk, flow_id).state == "failed"
    BANK.before = lambda verb: None


@pytest.mark.parametrize("flow_id", ["a/../b", "../../b", "./a"])
def test_a_flow_whose_id_is_like_a_path_is_opened_and_cancelled(desk: Desk, flow_id: str) -> None:
    """A browser takes parts like .. out of an address, unless they are within a part."""
    start(desk, flow_id)
    browser = Browser(desk)
    [row] = re.findall(r'<th scope="row" class="task"><a href="([^"]+)"', browser.read("/runs"))
    shown = browser.read(urljoin(f"{ROOT}/runs", row))
    fields = {"pattern": "flows", "id": f"test-orders|{flow_id}", "verb": "cancel"}
    answer = browser.submit(urljoin(f"{ROOT}/runs", row), "/runs/change", **fields)

    assert f"<h1>test-orders|{flow_id}</h1>" in shown
    assert "Cancelled" in browser.read(urljoin(f"{ROOT}/runs", answer.headers["Location"]))


def test_a_failed_flow_is_found_from_the_overview_in_one_click(desk: Desk) -> None:
    """It needs a person, says why, and is no dead task; a calm overview says so."""
    browser = Browser(desk)
    assert "no run has failed" in browser.read("/")
    start(desk, "fine")
    fail(desk)

    overview = browser.read("/")
    [link] = set(re.findall(r'href="([^"]+)"[^>]*><span[^>]*>✕</span> 1 flow failed', overview))
    listed = browser.read(link.replace("&amp;", "&"))

    assert "Failed: needs a person" in listed
    assert "test-orders|A1" in listed
    assert "test-orders|fine" not in listed
    assert "the bank is &lt;closed&gt;" in listed
    assert "dead task" not in overview.split("attention")[1].split("</ul>")[0]


def test_the_page_of_a_flow_shows_its_steps_and_what_it_waits_for(desk: Desk) -> None:
    """Times are times, an unread event is there, and text of others is escaped."""
    start(desk)
    signal(desk, "<door>", "x")

    shown = Browser(desk).read(A1)

    assert "Waits for the event courier, times out <time" in shown
    assert re.search(r"Unread events</dt><dd[^>]*>&lt;door&gt;(?! ×)", shown)
    assert [f'<th scope="row">{name}</th>' in shown for name in ("reserve", "charge", "courier")]
    assert re.search(r'data-label="Began"[^>]*><time', shown)
    assert shown.count('class="lane"') == 3
    assert not re.search(r">1\d{9}(\.\d+)?<", shown)


def test_a_flow_that_has_ended_shows_its_result_its_batch_and_no_open_sleep(desk: Desk) -> None:
    """No write ends a sleep: that it is over follows from the steps behind it."""
    start(desk)
    signal(desk, "courier", {"at": "the door"})
    settle(desk)
    asleep = Browser(desk).read(A1)
    settle(desk, days=45.1)
    settle(desk)

    shown = Browser(desk).read(A1)

    assert "Sleeps for to try it on, wakes <time" in asleep
    assert "2 mails" in shown
    assert "Waiting" not in shown.split("<h2>Steps")[1]
    [batch] = re.findall(rf'href="({ROOT}/runs/batches/[^"]+)"', shown)
    page = Browser(desk).read(batch)
    assert "flow-test-orders" in page
    [flow_url] = re.findall(rf'Waited for by</dt><dd[^>]*><a href="({ROOT}/runs/[^"]+)"', page)
    assert flow_url == f"{ROOT}/runs/flows/test-orders%7CA1"


def test_a_flow_is_retried_from_a_step_by_a_page_that_says_what_stays(desk: Desk) -> None:
    """The later steps run again, under new keys; the trail names the step."""
    fail(desk)
    browser = Browser(desk)
    [confirm] = {
        address.replace("&amp;", "&")
        for address in re.findall(r'href="([^"]*runs/retry[^"]*)"', browser.read(A1))
        if "step=reserve" in address
    }
    page = browser.read(confirm)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))

    refused = browser.client.post(
        f"{ROOT}/runs/change", data={**fields, "csrf_token": "x"}, headers=browser.headers
    )
    answer = browser.client.post(f"{ROOT}/runs/change", data=fields, headers=browser.headers)
    twice = browser.client.post(f"{ROOT}/runs/change", data=fields, headers=browser.headers)
    settle(desk)

    assert "effects stay" in page
    assert "2 steps run again: reserve and all later ones" in page
    assert (refused.status_code, answer.status_code, twice.status_code) == (403, 303, 409)
    assert "Retried: " in browser.read(answer.headers["Location"])
    assert taken(desk) == 2
    assert state_of(desk).steps["charge"].state == "done"
    with desk.world.context():
        actions = [(entry.action, entry.target) for entry in list_audit(limit=5)[0]]
    assert actions.count(("retry run", "flows/test-orders|A1 from the step reserve")) == 2


def test_a_question_that_was_answered_once_retries_no_later_run(desk: Desk) -> None:
    """A form sent again after the retry has failed, too, would charge once more."""
    fail(desk)
    confirm = f"/runs/retry?pattern=flows&id={quote('test-orders|A1')}&step=charge"
    browser = Browser(desk)
    page = browser.read(confirm)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))

    first = browser.client.post(f"{ROOT}/runs/change", data=fields, headers=browser.headers)
    settle(desk)
    with desk.world.context():
        order.cancel(desk.world.clients, "A1")
        row = run_key("test-orders|A1").get()
        row.state, row.verdict = "succeeded", None
        row.put()
    late = browser.client.post(f"{ROOT}/runs/change", data=fields, headers=browser.headers)
    by_api = [desk.change(f"{A1}:retry", {"from_step": "charge", "runs": n}) for n in (1, -1, 2)]

    assert (first.status_code, late.status_code) == (303, 409)
    assert "was retried meanwhile" in late.text
    assert [answer.status_code for answer in by_api] == [409, 400, 200]


def test_a_flow_is_retried_and_cancelled_by_its_buttons(desk: Desk) -> None:
    """A retry keeps the results; a cancel undoes what was done."""
    fail(desk)
    fields = {"pattern": "flows", "id": "test-orders|A1"}

    retried = Browser(desk).submit(A1, "/runs/change", **fields, verb="retry")
    settle(desk)
    at_work = state_of(desk)
    cancelled = Browser(desk).submit(A1, "/runs/change", **fields, verb="cancel")
    settle(desk)

    assert (retried.status_code, at_work.state) == (303, "running")
    assert at_work.steps["charge"].state == "done"
    assert "undone, the last one first" in Browser(desk).read(cancelled.headers["Location"])
    assert state_of(desk).state == "cancelled"
    assert (taken(desk), BANK.held) == (0, set())


def test_a_key_that_is_used_again_for_another_step_is_another_retry(desk: Desk) -> None:
    """W15: it was answered, and is on record, as done, and nothing was."""
    fail(desk)
    key = {"Idempotency-Key": "one"}

    steps = ("charge", "charge", "reserve")
    answers = [desk.change(f"{A1}:retry", {"from_step": step}, headers=key) for step in steps]

    assert [answer.status_code for answer in answers] == [200, 200, 409]
    assert "is running" in answers[2].text


@pytest.mark.parametrize("way", ["form", "API"])
def test_a_cancellation_that_is_sent_twice_is_made_once(desk: Desk, way: str) -> None:
    """W15: a second one would leave what could not be undone meanwhile."""
    fail(desk)
    browser = Browser(desk)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', browser.read(A1)))
    fields["verb"] = "cancel"
    for _ in range(2):
        if way == "API":
            answer = desk.change(f"{A1}:cancel", headers={"Idempotency-Key": "one"})
        else:
            answer = browser.client.post(
                f"{ROOT}/runs/change", data=fields, headers=browser.headers
            )
        assert answer.status_code in (200, 303)
        settle(desk)
        with desk.world.context():
            row = run_key("test-orders|A1").get()
            assert not row.skips_unknown
            row.state, row.verdict, row.ended, row.expires = "failed", "cancelled", None, None
            row.put()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"step": "nothing"}, 409),
        ({"step": "s" * 200}, 409),
        ({"step": "s" * 201}, 413),
        ({"step": "本" * 100}, 400),
        ({"step": "reserve", "verb": "cancel"}, 409),
        ({"step": "reserve", "pattern": "continuations"}, 409),
        ({"step": "reserve", "pattern": "nothing"}, 404),
        ({"step": "reserve", "id": "test-orders|B"}, 404),
        ({"step": "reserve", "id": "i" * 1_001}, 413),
    ],
)
def test_a_retry_that_cannot_be_made_changes_nothing(
    desk: Desk, fields: dict[str, str], status: int
) -> None:
    """A clear refusal, as a page."""
    fail(desk)
    before = row_of(desk)
    sent = {"pattern": "flows", "id": "test-orders|A1", "verb": "retry", **fields}

    answer = Browser(desk).submit(A1, "/runs/change", **sent)

    assert answer.status_code == status, answer.text
    assert row_of(desk) == before


@pytest.mark.parametrize("query", ["", "?step=x", "?pattern=flows&id=test-orders|A1&step=courier"])
def test_a_confirmation_of_what_cannot_be_retried_says_so(desk: Desk, query: str) -> None:
    """A flow that runs is not retried from a step."""
    start(desk)

    answer = Browser(desk).open(f"/runs/retry{query}")

    assert answer.status_code in (404, 409)
    assert 'role="alert"' in answer.text


def test_a_reader_is_shown_a_flow_and_offered_nothing(desk: Desk) -> None:
    """Nor does the page of the confirmation have a form for a reader."""
    fail(desk)
    reader = Browser(desk, "read")
    confirm = f"/runs/retry?pattern=flows&id={quote('test-orders|A1')}&step=reserve"

    retry_all = "/runs/retry-all?pattern=flows"
    assert "None has failed" not in reader.read(retry_all)
    for path in (A1, confirm, retry_all, "/runs?pattern=flows&state=failed"):
        text = reader.read(path)
        assert 'method="post"' not in text, path
        assert "Retry from here" not in text, path
        assert "All that have failed:" not in text, path


def test_the_api_retries_from_a_step(desk: Desk) -> None:
    """Bad bodies are refused; the run has its facts."""
    fail(desk)
    path = f"{A1}:retry"

    bad = [
        desk.change(path, body).status_code
        for body in ({"from": "x"}, {"from_step": 7}, {"from_step": "s" * 201}, [])
    ]
    unknown = desk.change(path, {"from_step": "nothing"})
    by_cancel = desk.change(f"{A1}:cancel", {"from_step": "reserve"})
    shown = desk.ask(API + A1).json
    answer = desk.change(path, {"from_step": "charge"})
    settle(desk)

    assert bad == [400] * 4
    assert (unknown.status_code, by_cancel.status_code) == (409, 400)
    assert (shown["run"]["state"], shown["starts"]) == ("failed", ["reserve", "charge"])
    assert "the bank is <closed>" in shown["run"]["reason"]
    assert (answer.status_code, answer.json) == (200, {"id": "test-orders|A1"})
    assert state_of(desk).steps["charge"].state == "done"
    assert taken(desk) == 1


def test_a_dead_task_of_a_flow_leads_to_its_run(desk: Desk) -> None:
    """A body that names none, or is no JSON, has no link."""
    start(desk)
    path = "/tasks/flows/test-orders"
    bodies = {"a": b'{"run_id": "test-orders|A1"}', "b": b"[]", "c": b'{"run_id": 7}'}
    ids = [desk.give_up(tag, path=path, body=body) for tag, body in bodies.items()]

    pages = [Browser(desk).read(f"/dead/one/{dead_id}") for dead_id in ids]

    assert [f'href="{ROOT}/runs/flows/test-orders%7CA1"' in page for page in pages] == [
        *(True, False, False)
    ]


def test_a_large_result_is_named_by_its_rows_and_an_open_batch_is_linked(desk: Desk) -> None:
    """What fits no row of a table is not read for it."""
    small, large = StepRecord("commit", "done", value='"boots"'), StepRecord("commit", "done")
    batch = StepRecord("batch", batch="000|c|1")
    steps = {"a": small.body, "b": replace(large, rows="o", chunks=2).body, "c": batch.body}
    write(desk, 1, steps=steps)

    shown = Browser(desk).read(f"/runs/flows/{quote('test-long|000')}")

    assert "&#34;boots&#34;" in shown
    assert "large: in 2 rows of its own" in shown
    assert re.search(rf'Batch</dt><dd[^>]*><a href="{ROOT}/runs/batches/flow-test-long', shown)


def write(desk: Desk, count: int, **fields: object) -> None:
    """Write rows of flows, each created a second after the one before."""
    begun = desk.world.clock.now().replace(tzinfo=None)
    for number in range(count):
        created = begun + datetime.timedelta(seconds=number)
        with desk.world.context():
            row = FlowRun(key=run_key(f"test-long|{number:03d}"), args="{}", started_by="t")
            row.populate(created=created, **fields)
            if row.state == "failed":
                row.failed = created
            row.put()


def test_a_page_of_runs_reads_as_little_of_many_flows(desk: Desk) -> None:
    """Whatever it is filtered by; the failed one among them is on the first page."""
    fail(desk)
    desk.world.clock.sleep(60)
    write(desk, MANY)
    browser = Browser(desk)

    for query in ("", "?pattern=flows", "?state=running", "?pattern=flows&state=finished"):
        assert reads_of(desk, lambda query=query: browser.read(f"/runs{query}")) <= 60, query  # type: ignore[misc]
    assert "test-orders|A1" in browser.read("/runs?state=failed")
    assert reads_of(desk, lambda: browser.read("/")) <= 60
    assert reads_of(desk, lambda: browser.read(A1)) <= 5
    assert browser.open("/runs?pattern=nothing").status_code == 400


def test_failed_flows_are_listed_in_pages_each_once(desk: Desk) -> None:
    """The newest first, by the API."""
    write(desk, MANY, state="failed", failure="x")

    names: list[str] = []
    before = None
    for _ in range(MANY):
        query = RunQuery(before, "failed", limit=7)
        with desk.world.context():
            listed = desk.world.registry.runs(desk.world.clients, query)
        names += [run.id for run in listed.runs]
        before = listed.next_before
        if before is None:
            break

    assert names == [f"test-long|{number:03d}" for number in reversed(range(MANY))]


def test_a_flow_of_a_thousand_steps_is_cut_with_a_note(desk: Desk) -> None:
    """The last ones are shown, and their picture has fewer."""
    now_s = desk.world.clock.now().timestamp()
    steps = {
        f"mail {number}": StepRecord("commit", "done", began=now_s, ended=now_s + 1).body
        for number in range(1_000)
    }
    write(desk, 1, steps=steps, state="failed", failure="StepFailedError: x")

    shown = Browser(desk).read(f"/runs/flows/{quote('test-long|000')}")

    assert "the first 800 are left out" in shown
    assert "--from STEP" in shown
    assert '<th scope="row">mail 799</th>' not in shown
    assert '<th scope="row">mail 800</th>' in shown
    assert shown.count('class="lane"') == 50
    confirm = f"/runs/retry?pattern=flows&id={quote('test-long|000')}&step=mail+5"
    assert "995 steps run again" in Browser(desk).read(confirm)
    assert "795 others are not shown" in Browser(desk).read(confirm)
