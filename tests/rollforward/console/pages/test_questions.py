"""Changes that cannot be taken back: the console asks before it makes them."""

from __future__ import annotations

import re

import pytest

from tests.infra.world import Services
from tests.rollforward.batches.harness import TREES, Branch, branch
from tests.rollforward.console.conftest import Desk, desk_with
from tests.rollforward.console.runs.test_flows import A1, start
from tests.rollforward.console.test_letters import QUEUE, kill_items
from tests.rollforward.console.test_pages import Browser
from tests.rollforward.flows import shop
from tests.rollforward.flows.shop import order
from tests.rollforward.pull_queues.harness import WORK

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app has flows and a pull queue."""
    return desk_with(services, order, shop.mail, WORK)


def questions(html: str) -> dict[str, str]:
    """Return the questions of a page by their ids; each has one button of danger."""
    asked = dict(re.findall(r'<details class="ask" id="([^"]+)">(.*?)</details>', html, re.DOTALL))
    assert html.count('<button class="danger"') == len(asked)
    assert all(text.count('<button class="danger"') == 1 for text in asked.values())
    return asked


def test_no_press_alone_deletes_a_dead_task(desk: Desk) -> None:
    dead_id = desk.give_up("a")
    browser = Browser(desk)

    for path in ("/dead", f"/dead/one/{dead_id}"):
        [text] = questions(browser.read(path)).values()
        assert "cannot be replayed" in text


def test_no_press_alone_deletes_a_dead_letter(desk: Desk) -> None:
    [letter_id] = kill_items(desk, "a")
    browser = Browser(desk)

    for path in (QUEUE, f"{QUEUE}/one/{letter_id}"):
        [text] = questions(browser.read(path)).values()
        assert "deleted permanently" in text


def test_no_press_alone_undoes_a_flow_and_the_question_stays_open(desk: Desk) -> None:
    """A page that keeps itself fresh leaves a question open that has the same id."""
    start(desk)
    browser = Browser(desk)

    for path in ("/runs", A1):
        asked = questions(browser.read(path))
        assert len(asked) == 1
        assert questions(browser.read(path)).keys() == asked.keys()


def test_a_batch_that_was_cancelled_is_not_said_to_be_resumable(services: Services) -> None:
    """Its notice says what happens now: its callback is called."""
    desk = desk_with(services, TREES)
    with desk.world.context():
        TREES.populate(desk.world.clients, "root", [(branch, Branch("x", 2))], seal=True)
    page, browser = "/runs/batches/trees%3Aroot", Browser(desk)
    [text] = questions(browser.read(page)).values()
    answer = browser.submit(page, "/runs/change", pattern="batches", id="trees:root", verb="cancel")

    assert "its callback does" in text
    shown = browser.read(answer.location)
    assert "its callback is called" in shown
    assert "can be resumed" not in shown


def test_a_button_has_the_same_name_each_time(desk: Desk) -> None:
    """The focus of a keyboard stays on it while the page keeps itself fresh."""
    start(desk)
    browser = Browser(desk)

    names = [re.findall(r'data-key="([^"]+)"', browser.read(A1)) for _ in range(2)]

    assert names[0] == names[1] != []
