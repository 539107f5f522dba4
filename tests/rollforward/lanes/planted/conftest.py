"""Moments of guards on a machine that has other work."""

from __future__ import annotations

import pytest

from rollforward.lanes.runs import lookups


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn end with its tasks, however long they take."""
    monkeypatch.setattr(lookups, "SLICE_S", 60.0)
