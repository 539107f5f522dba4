"""What tests of the invitations share: a party and its host."""

from __future__ import annotations

import pytest

from tests.infra.world import World
from tests.pipelines.invitations.host import Host


@pytest.fixture
def host(world: World) -> Host:
    host = Host(world)
    host.create()
    return host
