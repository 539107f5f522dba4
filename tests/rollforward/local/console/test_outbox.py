"""Late rows of the outbox on the first page; the app's own console has its page."""

from datetime import UTC, datetime, timedelta

import pytest
from google.cloud import datastore

from tests.rollforward.local.conftest import datastore_client


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


@pytest.mark.parametrize("odd", ["made by hand", "c|now|h", 5_629_499_534_213_120])
def test_a_row_with_an_odd_key_hides_no_other(browser, stored, odd):
    """A row of another version, or one made by hand, is old, and the others are counted, too."""
    row = datastore.Entity(stored.key("OutboxTask", odd))
    row.update({"path": "/tasks/work", "queue": "default", "body": "{}"})
    stored.put_multi([stranded(stored, 320), row])

    assert "2 rows in the outbox" in browser.get("/").text


def test_an_empty_outbox_says_so(browser, stored):
    """Mostly nothing waits, and that is how it should be."""
    assert "in the outbox" not in browser.get("/").text


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


def test_an_outbox_that_cannot_be_read_is_no_error(browser):
    """Datastore is away: the overview is silent about it."""
    assert browser.get("/").status == 200
