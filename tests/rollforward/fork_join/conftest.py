"""What the tests of fork-join queues share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rollforward.tallies import neighbours, tally_world
from tests.world import Services, World


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """A world with tallies, and packs beside them that nobody touches."""
    world = tally_world(services)
    with neighbours(world):
        yield world
