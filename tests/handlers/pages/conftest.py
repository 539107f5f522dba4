"""What tests of pages share: a party, with and without guests, and a student."""

from __future__ import annotations

import pytest
from werkzeug.test import TestResponse

from tests.handlers.conftest import Browser
from tests.handlers.pages.party import ID, PAGE, invite
from tests.handlers.pages.school import STUDENT
from tests.world import World


@pytest.fixture
def party(browser: Browser, world: World) -> str:
    """A party with two guests who have been told, and the place of its page."""
    browser.create_party(ID)
    invite(browser, world)
    assert browser.post(f"{PAGE}/send").status_code == 303
    world.settle()
    return PAGE


@pytest.fixture
def bare_party(browser: Browser) -> str:
    """A party without guests, and the place of its page."""
    return browser.create_party(ID)


@pytest.fixture
def ada(browser: Browser, world: World) -> TestResponse:
    """One student, saved and in her bar; the response to the form that added her."""
    response = browser.post("/grades/students", STUDENT)
    assert response.status_code == 303, response.text
    world.settle()
    return response
