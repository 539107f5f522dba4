"""Fixtures of the tests of fork-join queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import neighbours, tally_world


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """A world with tallies, and neighbouring packs that must not change."""
    world = tally_world(services)
    with neighbours(world):
        yield world
