"""What the tests of batches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.batches.harness import batch_world, neighbours


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """A world with batches, and batches beside them that nobody touches."""
    world = batch_world(services)
    with neighbours(world):
        yield world
