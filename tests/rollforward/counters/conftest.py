"""Fixtures of the tests of counters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.infra.world import Services, World
from tests.rollforward.counters.counts import counter_world, neighbours


@pytest.fixture
def world(services: Services, way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world with counters, and neighbouring counters that must not change."""
    world = counter_world(services, way, monkeypatch)
    with neighbours(world):
        yield world
