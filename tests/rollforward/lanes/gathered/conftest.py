"""The app with the gathering lanes of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.lanes.gathered import mailroom


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """Yield the app with the gathering lanes, and the context of a request open."""
    world = World(services, lanes=mailroom.LANES)
    world.fails_fast = True
    mailroom.DESK.__init__(clock=world.clock)  # type: ignore[misc]
    with world.clients.context():
        yield world
