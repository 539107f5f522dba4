"""Shared fixtures of the tests of streams."""

from __future__ import annotations

import pytest

from tests.infra.world import Services, World
from tests.rollforward.streams.harness import stream_world


@pytest.fixture
def world(services: Services) -> World:
    return stream_world(services)
