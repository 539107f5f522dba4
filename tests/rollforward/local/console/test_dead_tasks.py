"""The console's page of dead tasks."""

import json
import re
from datetime import UTC, datetime

import pytest
from google.cloud import datastore

from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.services import standalone
from tests.rollforward.local.conftest import datastore_client


def test_without_datastore_the_page_says_so(browser):
    """Dead tasks live in Datastore: when it is away, the page is not an error."""
    page = browser.get("/dead")

    assert page.status == 200
    assert "Datastore does not answer" in page.text


@pytest.fixture(scope="module")
def address():
    """Where a Datastore is."""
    with standalone.datastore_emulator() as running:
        yield running


@pytest.fixture
def put(address, platform):
    """Store a dead task, as the app does; none is left afterwards."""
    platform.datastore_address = address
    client = datastore_client(address)

    def store(name, **properties):
        row = datastore.Entity(client.key("DeadTask", name), exclude_from_indexes=("body",))
        row.update(path="/tasks/mail", queue="mails", body='{"to": "山田"}', **properties)
        client.put(row)

    yield store
    client.delete_multi([row.key for row in client.query(kind="DeadTask").fetch()])
    client.close()


@pytest.mark.services
def test_a_dead_task_is_shown_and_replayed_through_cloud_tasks(browser, platform, engine, put):
    """The app's own row is listed, and Replay enqueues a task with a token for the app."""
    put("dead/1", reason="bad address")

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


@pytest.mark.services
def test_all_that_a_filter_finds_are_replayed(browser, engine, put):
    """Confirmed with their count; not those of another reason, replayed before, or dead since."""
    early, late = (datetime.fromtimestamp(at, UTC) for at in (1_000_000, 2_000_000))
    for number in range(3):
        put(f"n{number}", reason="No such town", updated=early)
    put("other", reason="mailbox is full", updated=early)
    put("done", reason="no such town", updated=early, resolved=True)

    confirm = browser.get("/dead/replay/confirm?q=no+such+town").text
    until = re.search(r'name="until" value="([^"]+)"', confirm)[1]
    put("since", reason="no such town", updated=late)
    form = {"q": "no such town", "until": until}
    replayed = browser.post("/dead/replay/confirm", form)
    wrong = [browser.post("/dead/replay/confirm", {"until": text}) for text in ("", "x", "nan")]

    assert "Replay 3 dead tasks?" in confirm
    assert "count=3" in replayed.headers["location"]
    bodies = [messages.Task.FromString(t.spec).http_request.body for t in engine.history.newest()]
    assert sorted(json.loads(body)["dead_task_id"] for body in bodies) == ["n0", "n1", "n2"]
    assert [answer.status for answer in wrong] == [400, 400, 303]
    assert "mailbox is full" not in browser.get("/dead?q=town").text
