"""What the tests of continuations share."""

from __future__ import annotations

import pytest

from tests.infra.world import Services, World
from tests.rollforward.continuations.walk_jobs import APPLY


@pytest.fixture
def world(services: Services) -> World:
    return World(services, [APPLY])
