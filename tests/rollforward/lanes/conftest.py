"""The app with the lanes of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.lanes import office


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """Yield the app with the lanes of the tests, and the context of a request open."""
    world = World(services, lanes=office.LANES, tasks=[office.write, office.PARCEL])
    world.fails_fast = True
    office.DESK.__init__()  # type: ignore[misc]
    with world.clients.context():
        yield world
