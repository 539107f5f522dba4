"""Fixture for tests of grades: a student."""

from __future__ import annotations

import pytest
from werkzeug.test import TestResponse

from tests.handlers.conftest import Browser
from tests.handlers.grades.school import STUDENT
from tests.infra.world import World


@pytest.fixture
def ada(browser: Browser, world: World) -> TestResponse:
    """One student, saved and in her bar; the response to the form that added her."""
    response = browser.post("/grades/students", STUDENT)
    assert response.status_code == 303, response.text
    world.settle()
    return response
