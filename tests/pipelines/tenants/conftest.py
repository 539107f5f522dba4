"""The app, whose lanes know the tasks of the demo."""

from __future__ import annotations

import pytest

from tests.infra.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    return World(services, knows_paths=True)
