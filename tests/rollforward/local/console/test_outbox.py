"""The console's page of the outbox."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from google.cloud import datastore

from tests.rollforward.local.conftest import datastore_client
from tests.rollforward.local.console.conftest import EVIL


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
    assert "Nothing is pending" in page
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
def test_the_outbox_is_swept_at_the_press_of_a_button(browser, stored, sweeping_app, status, said):
    """Whatever cron.yaml schedules; the page tells how it went."""
    sweeping_app.status = status

    answer = browser.post("/outbox/sweep")

    assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/outbox")
    path, headers = sweeping_app.requests[-1]
    assert (path, headers["x-appengine-cron"]) == ("/cron/outbox/sweep", "true")
    assert said in browser.get(answer.headers["location"]).text


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
