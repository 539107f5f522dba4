"""Lists of dead letters on the console: all of them are reached, page by page."""

from __future__ import annotations

import datetime
import re
from html import unescape

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.console.pages import letters
from rollforward.continuations import listing
from rollforward.operations.letters import PAGE_SIZE
from rollforward.pull_queues.pattern import PullQueues
from rollforward.streams.driver import run_steps
from tests.infra.world import Services
from tests.rollforward.console.conftest import API, Desk, desk_with
from tests.rollforward.console.test_letters import PICKY, QUEUE, kill_items, put_dead
from tests.rollforward.console.test_pages import Browser
from tests.rollforward.pull_queues.harness import WORK, lease, payloads

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app has a pull queue."""
    return desk_with(services, WORK)


def test_a_page_of_letters_leads_to_the_older_ones_and_the_last_to_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each letter is on one page."""
    monkeypatch.setattr(letters, "PAGE_ROWS", 2)
    ids, seen, path = kill_items(desk, *"abc"), list[str](), QUEUE
    browser = Browser(desk)
    for _ in range(2):
        page = browser.read(path)
        seen += re.findall(rf'href="[^"]*{QUEUE}/one/([^"/?]+)"', page)
        following = re.findall(r'href="([^"]*cursor=[^"]+)"', page)
        path = unescape(following[0]) if following else ""

    assert (sorted(seen), path) == (sorted(ids), "")


def test_a_run_over_all_letters_takes_those_of_every_page(desk: Desk) -> None:
    """Of a queue, whose list is by age, too."""
    kill_items(desk, *(f"{number:02}" for number in range(PAGE_SIZE + 1)))

    desk.change("/dead-letters/pull-queues/work:replay", {"all": True})
    desk.world.settle()

    with desk.world.context():
        assert len(payloads(lease(desk.world, limit=50))) == PAGE_SIZE + 1


def test_a_list_that_the_account_may_not_read_is_forbidden(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the words of the service, which name the right."""

    def refuse(*args: object, **options: object) -> None:
        raise rpc_errors.PermissionDenied("datastore.entities.list is missing")

    monkeypatch.setattr(PullQueues, "letters", refuse)

    answer = desk.ask(f"{API}/dead-letters/pull-queues/work")

    assert (answer.status_code, answer.content_type) == (403, "application/problem+json")
    assert "datastore.entities.list is missing" in answer.text


def test_a_run_whose_first_pages_have_no_letter_of_its_time_is_shown(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there, without items, and more of them than its page shows."""
    monkeypatch.setattr(listing, "MAX_PAGES", 3)
    desk = desk_with(services, PICKY)
    now = desk.world.clock.now()
    with desk.world.context():
        long_ago = now - datetime.timedelta(days=1)
        run_steps(desk.world.clients, PICKY, put_dead, long_ago, 250)

    since = f"{now - datetime.timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    answer = desk.change("/dead-letters/streams/picky:delete", {"all": True, "since": since})
    desk.world.settle()

    address = "/runs/continuations/{id}".format(**(answer.json or {})["run"])
    shown = desk.ask(API + address).json or {}
    assert [part["items"] for part in shown["parts"]] == ["", "", ""]
    assert "picky" in Browser(desk).read(address)


def test_letters_that_die_while_a_person_reads_are_left_alone(desk: Desk) -> None:
    """The page said how many it deletes, and deleted all that were dead when it was sent."""
    kill_items(desk, "a", "b")
    desk.world.clock.sleep(1)
    browser = Browser(desk)
    confirm = browser.read(f"{QUEUE}/all/delete")
    desk.world.clock.sleep(1)
    [new_id] = kill_items(desk, "new")

    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', confirm))
    browser.client.post("/rollforward/letters/selected", data=fields, headers=browser.headers)
    desk.world.settle()

    assert "Delete 2 dead letters of work?" in confirm
    left = desk.ask(f"{API}/dead-letters/pull-queues/work").json["dead_letters"]
    assert [letter["id"] for letter in left] == [new_id]
