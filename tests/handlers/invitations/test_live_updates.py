"""What the page of a party watches: its own forms and runs, and those of no other party."""

from __future__ import annotations

import html
import re

import pytest

from tests.handlers.conftest import Browser
from tests.handlers.invitations.party import PAGE, upload
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

GUESTS = "name,email\nAnn,ann@example.com\nBob,bob@example.com\n"


def watched(browser: Browser, page: str) -> str:
    """Return the address that a page asks for changes."""
    found = re.search(r'data-updates="([^"]+)"', browser.get(page).text)
    assert found is not None
    return html.unescape(found[1])


def latest(browser: Browser, address: str) -> str:
    return str(browser.get(address).json["id"])


def play(browser: Browser, world: World, page: str, form_id: str) -> list[str]:
    """Invite guests and send; return the ids that the page would see of each step and its end."""
    ids = []
    for path, form in ((f"{page}/guests", upload(GUESTS, form_id=form_id)), (f"{page}/send", {})):
        address = watched(browser, page)
        ids.append(latest(browser, address))
        assert browser.post(path, form).status_code == 303
        ids.append(latest(browser, address))
        address = watched(browser, page)  # It shows another run now.
        ids.append(latest(browser, address))
        world.settle()
        ids.append(latest(browser, address))
    return ids


def test_a_party_is_told_of_its_own_forms_and_runs(browser: Browser, world: World) -> None:
    """Each form, and each task of the run that a form began."""
    browser.create_party()

    before, posted, reading, read, again, sent, sending, done = play(browser, world, PAGE, "b" * 32)

    assert before != posted
    assert reading != read
    assert again != sent
    assert sending != done


def test_another_party_changes_nothing_of_it(browser: Browser, world: World) -> None:
    """So its page asks for nothing while others send."""
    browser.create_party()
    play(browser, world, PAGE, "b" * 32)
    address = watched(browser, PAGE)
    before = latest(browser, address)

    play(browser, world, browser.create_party("9" * 32), "c" * 32)

    assert latest(browser, address) == before
