"""What the tests of counters share."""

from __future__ import annotations

import pytest

from tests.pipelines.counters.counts import counter_world
from tests.world import Services, World


@pytest.fixture
def world(services: Services, way: str, monkeypatch: pytest.MonkeyPatch) -> World:
    return counter_world(services, way, monkeypatch)
