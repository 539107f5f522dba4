"""The console's page of dead tasks."""

import json

import pytest
from google.cloud import datastore

from devserver import services
from devserver.cloudtasks import messages
from tests.devserver.conftest import datastore_client


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
