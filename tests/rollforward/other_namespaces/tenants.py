"""Contexts of tenants, within the one that is open, and calls that are refused in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.cloud.ndb.context import get_context

from rollforward.datastore.contexts import OtherNamespaceError
from tests.infra.world import World


def tenant(name: str) -> Any:
    """Return a context of a tenant's namespace."""
    return get_context().new(namespace=name).use()


@contextmanager
def refused(world: World) -> Iterator[None]:
    """Check that the block is refused, with advice, before it has written or read anything."""
    before = world.clients.meter.cost()
    with pytest.raises(OtherNamespaceError, match=r"'acme'.*own_namespace\(\)"), tenant("acme"):
        yield
    spent = world.clients.meter.cost() - before
    assert (spent.reads, spent.writes) == (0, 0)
