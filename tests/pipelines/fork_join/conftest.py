"""What the tests of fork-join queues share."""

from __future__ import annotations

import pytest

from tests.pipelines.tallies import tally_world
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    return tally_world(services)
