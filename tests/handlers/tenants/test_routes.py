"""The pages of tenants: a form acts once, bad input is refused, and each line shows its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models.tenants import newest_rushes
from tests.handlers.conftest import Browser
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
ASKED = {
    **{"way": "lanes", "flood": "20", "behind": "2", "tasks": "3", "chosen": "B", "rule": "order"},
    **{"pace": "fast", "dead": "1"},
}


@pytest.fixture
def rush(browser: Browser) -> str:
    """A rush of which nothing has been sent, and where its page is."""
    response = browser.post("/tenants", {"id": FORM, **ASKED})
    assert response.status_code == 303, response.text
    return response.headers["Location"].partition("#")[0]


@pytest.mark.parametrize(
    "path", ["/tenants", f"/tenants/{FORM}?tab=table", f"/tenants/{FORM}/live"]
)
def test_what_is_read_changes_nothing(
    browser: Browser, world: World, rush: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    world.settle()
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry; before the first rush the page says what to press."""
    assert browser.get("/").text.count('href="/tenants"') == 2
    assert "Press “Flood, in lanes”" in browser.get("/tenants").text


def test_tenants_have_their_turns(browser: Browser, world: World, rush: str) -> None:
    """None is done, then all are; one task is dead, and B's others are in order."""
    assert "0 of 26 tasks done" in browser.get(rush).text

    world.settle()

    after = browser.get(f"{rush}?tab=table").text
    assert "25 of 26 tasks done, 1 dead, 0 redelivered, 0 lost, 0 duplicated" in after
    assert "Adds up" in after
    assert "in order" in after
    assert 'data-moving="no"' in after
    assert after.count('class="strip"') == 3


def test_a_form_that_is_sent_twice_begins_one_rush(
    browser: Browser, world: World, rush: str
) -> None:
    """The second one leads to the same page."""
    repeated = browser.post("/tenants", {"id": FORM, **ASKED, "flood": "60"})

    assert repeated.headers["Location"].partition("#")[0] == rush
    with world.context():
        assert [row.flood for row in newest_rushes().fetch(2)] == [20]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("flood", text) for text in ("0", "2001", "", "٣")),
        *(("behind", "6"), ("tasks", "21"), ("dead", "4")),
        *(("way", "x"), ("chosen", "C"), ("rule", "<b>"), ("pace", "")),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    browser: Browser, snapshot: Callable[[], Any], field: str, value: str
) -> None:
    """400 beside the field, what was typed kept and escaped, and nothing is stored."""
    browser.token()
    stored = snapshot()

    response = browser.post("/tenants", {"id": FORM, **ASKED, field: value})

    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text
    assert "<b>" not in response.text.partition('id="now"')[2].partition("stage-show")[0]
    assert snapshot() == stored


def test_bad_requests_change_nothing(
    browser: Browser, rush: str, snapshot: Callable[[], Any]
) -> None:
    stored = snapshot()
    assert browser.post("/tenants", {"id": "x", **ASKED}).status_code == 400
    assert browser.post("/tenants", {"id": OTHER, **ASKED}, token="").status_code == 403
    assert snapshot() == stored


@pytest.mark.parametrize("path", [f"/tenants/{OTHER}", "/tenants/x", "/tenants/x/live"])
def test_pages_of_nothing_are_not_found(browser: Browser, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_the_code_that_ran_is_shown(browser: Browser) -> None:
    """From the source that runs."""
    text = browser.get("/tenants?tab=code").text
    assert "lane=lane_of(row, args.tenant)" in text
    assert text.count("<figure") == 6


def test_one_press_of_the_front_page_floods(browser: Browser, world: World) -> None:
    """A thousand tasks, once for each form."""
    for _ in range(2):
        assert browser.post("/demo/tenants", {"id": FORM}).headers["Location"] == f"/tenants/{FORM}"
    with world.context():
        assert [row.flood for row in newest_rushes().fetch(2)] == [1000]
