"""Dead tasks on the first page; the app's own console has their page."""

import pytest
from google.cloud import datastore

from rollforward.local.services import standalone
from tests.rollforward.local.conftest import datastore_client


@pytest.mark.parametrize("path", ["/dead", "/outbox"])
def test_a_page_of_the_app_leads_to_the_app_s_console(browser, platform, path):
    """Where the app mounts one by default."""
    page = browser.get(path)

    assert page.status == 302
    assert page.headers["location"] == f"{platform.app_url}/rollforward{path}"


def test_without_datastore_the_first_page_counts_no_dead_task(browser):
    """They live in Datastore: when it is away, the page is not an error."""
    page = browser.get("/")

    assert page.status == 200
    assert "dead task" not in page.text


@pytest.mark.services
def test_open_dead_tasks_are_counted_on_the_first_page(browser, platform):
    """Those that were replayed are not."""
    with standalone.datastore_emulator() as address:
        platform.datastore_address = address
        client = datastore_client(address)
        for name, is_resolved in (("a", False), ("b", False), ("c", True)):
            row = datastore.Entity(client.key("DeadTask", name))
            row.update(path="/tasks/mail", resolved=is_resolved)
            client.put(row)

        page = browser.get("/").text
        client.close()

    assert "2 dead tasks to replay or delete" in page
