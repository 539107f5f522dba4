"""What the tests of batches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rollforward.batches.harness import batch_world, neighbours
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """A world with batches, and batches beside them that nobody touches."""
    world = batch_world(services)
    with neighbours(world):
        yield world
