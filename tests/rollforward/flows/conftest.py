"""The app with the flows of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.flows import probe, shop


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """Yield the app with the flows of the tests, and the context of a request open."""
    world = World(services, flows=[shop.order, probe.probe], tasks=[shop.mail])
    world.fails_fast = True
    shop.BANK.__init__()  # type: ignore[misc]
    probe.CODE.__init__()  # type: ignore[misc]
    with world.clients.context():
        yield world
