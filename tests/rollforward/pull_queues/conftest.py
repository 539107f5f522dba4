"""Fixtures of the tests of pull queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollforward.pull_queues import PullQueue
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import neighbours

# Beside the queue "work": names that begin like it, and that it begins with.
NEIGHBOURS = (PullQueue("work-2", max_deliveries=1, partitions=4), PullQueue("wor", partitions=4))


@pytest.fixture
def world(world: World) -> Iterator[World]:
    """A world with its context open, and rows of other queues, which no test changes."""
    with world.clients.context(), neighbours(world, NEIGHBOURS):
        yield world
