"""The records that every design counts: 500 keys, 100 s of event time, disorder of up to 2 s.

It is plain Python, since the rivals' programs import it in an environment of their own.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

KEYS = 500
SPAN_MS = 100_000
DISORDER_MS = 2_000
WINDOW_MS = 10_000
SEED = 7
# An arbitrary day at noon, UTC; a multiple of a window's size.
FIRST_MS = 1_735_732_800_000


class Event(NamedTuple):
    """A record: its key, and its time in milliseconds."""

    key: str
    at: int


@functools.lru_cache(maxsize=2)
def events(count: int) -> Sequence[Event]:
    """Return the records in their order of arrival, which only depends on the count."""
    chance = random.Random(SEED)
    return [
        Event(
            f"k{chance.randrange(KEYS)}",
            FIRST_MS + DISORDER_MS + SPAN_MS * n // count - chance.randrange(DISORDER_MS),
        )
        for n in range(count)
    ]


def truth(count: int) -> Counter[tuple[str, int]]:
    """Return the number of records of each key in each window, by the window's start."""
    return Counter((event.key, event.at // WINDOW_MS * WINDOW_MS) for event in events(count))
