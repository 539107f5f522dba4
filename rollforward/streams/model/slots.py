"""Slots: keys are hashed into 65,536 of them (Flink's key groups)."""

from __future__ import annotations

import functools
import hashlib

SLOTS = 2**16


@functools.lru_cache(maxsize=50_000)
def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=2).digest(), "big")


def first_slots(count: int) -> list[int]:
    """Return the first slots of `count` intervals of equal size.

    >>> first_slots(4)
    [0, 16384, 32768, 49152]
    """
    return [SLOTS * i // count for i in range(count)]
