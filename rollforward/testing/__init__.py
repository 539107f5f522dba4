"""Test kit for apps: real services, a clock that the test moves, and faults at every remote call.

    def test_a_sale_is_shipped(rollforward):
        rollforward.client.post("/sell", data={"form_id": "f1"})
        rollforward.settle()
        assert Sale.get_by_id("f1").is_shipped

    def test_a_sale_is_shipped_despite_faults(rollforward):
        def sell():
            rollforward.client.post("/sell", data={"form_id": "f1"})
            rollforward.settle()

        def check():
            assert [sale.is_shipped for sale in Sale.query()] == [True]

        rollforward.explore(sell, check)

`plugin` has the fixtures, `Rollforward` is the type of `rollforward`. Each name is imported on
first use: pytest loads the plugin in every session, and most sessions need nothing of this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollforward.streams import StreamTest
    from rollforward.testing.exploration import FAULTS, Exploration, ExploreError
    from rollforward.testing.kit import NoAppError, Rollforward
    from rollforward.testing.world import (
        NotSettledError,
        TaskFailedError,
        World,
    )

__all__ = [
    "FAULTS",
    "Exploration",
    "ExploreError",
    "NoAppError",
    "NotSettledError",
    "Rollforward",
    "StreamTest",
    "TaskFailedError",
    "World",
]

_HOMES = {
    "FAULTS": "testing.exploration",
    "Exploration": "testing.exploration",
    "ExploreError": "testing.exploration",
    "NoAppError": "testing.kit",
    "NotSettledError": "testing.world",
    "Rollforward": "testing.kit",
    "StreamTest": "streams",
    "TaskFailedError": "testing.world",
    "World": "testing.world",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'rollforward.testing' has no attribute {name!r}")
        return getattr(importlib.import_module(f"rollforward.{_HOMES[name]}"), name)
