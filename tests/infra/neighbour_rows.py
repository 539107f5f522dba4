"""Rows beside those of a test, which nobody may touch: of other names, and of another namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.cloud import ndb

from tests.infra.world import World

ELSEWHERE = "beside"


@contextmanager
def untouched(world: World, rows: Sequence[Any]) -> Iterator[None]:
    """Store rows; in the end they are as they were."""
    with world.context():
        keys = ndb.put_multi(list(rows))
        before = ndb.get_multi(keys)
    assert None not in before

    yield

    with world.context():
        changed = [old for old, new in zip(before, ndb.get_multi(keys), strict=True) if old != new]
    assert changed == [], "what stands beside was touched"


def elsewhere(key: Any) -> Any:
    """Return the key of the same name in another namespace."""
    return ndb.Key(*key.flat(), namespace=ELSEWHERE)
