"""What the tests of continuations share."""

from __future__ import annotations

import pytest

from tests.rollforward.jobs import APPLY
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    return World(services, [APPLY])
