"""What the tests of batches share."""

from __future__ import annotations

import pytest

from tests.pipelines.batches.harness import batch_world
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> World:
    return batch_world(services)
