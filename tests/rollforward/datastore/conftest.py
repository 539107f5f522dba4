"""A world for the tests of models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import World


@pytest.fixture
def watched_world(world: World) -> Iterator[World]:
    """A world whose calls are counted, in a context that is open."""
    with world.clients.context(), world.plan.watched():
        yield world
