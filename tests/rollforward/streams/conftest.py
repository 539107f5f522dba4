"""What the tests of streams share."""

from __future__ import annotations

import pytest

from tests.rollforward.streams.harness import stream_world
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services)
