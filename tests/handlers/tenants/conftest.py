"""The app, whose lanes know the tasks of the demo."""

from __future__ import annotations

import pytest

from tests.handlers.conftest import prepare
from tests.infra.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    world = World(services, knows_paths=True)
    prepare(world.app)
    return world
