"""Worlds that deliver the updates of the school's views."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import ThreadedWorld, neighbours
from tests.rollforward.materialized_views.student_views import BUILDS


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """A world that delivers the school's updates, with tables beside them that nobody touches."""
    world = ThreadedWorld(services, builds=[BUILDS])
    with neighbours(world):
        yield world


@pytest.fixture
def here(world: World) -> Iterator[World]:
    """The same, in a context that is open."""
    with world.context():
        yield world
