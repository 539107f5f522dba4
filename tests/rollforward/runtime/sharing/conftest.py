"""A world for the tests of shared transactions."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.runtime.sharing import shared_transaction
from tests.infra.world import World


@pytest.fixture
def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A world whose calls are counted, in a context that is open; nobody pauses."""
    monkeypatch.setattr(shared_transaction, "pause_before_retry", lambda failures: None)
    with world.clients.context(), world.plan.watched():
        yield world
