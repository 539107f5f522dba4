"""Delays of records behind the latest one, in buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# The first is of no delay. From there on each bound is 1.41 times the one before; the last one has
# all delays of over two hours.
BUCKETS = 48


# More delays than these are halved, so that the newest ones count for most.
MAX_DELAYS = 10_000


def with_delays(delays: Sequence[int], latest: int, times: Iterable[int]) -> tuple[int, ...]:
    """Add to the delays of a source those of records, in the order in which they come.

    Args:
        delays: How many records had a delay of each bucket; empty: none so far.
        latest: The latest time of a record so far.
    """
    counts = list(delays) or [0] * BUCKETS
    for at in times:
        latest = max(latest, at)
        counts[_bucket(latest - at)] += 1
    if sum(counts) > MAX_DELAYS:
        counts = [count // 2 for count in counts]
    return tuple(counts)


def delay_of(delays: Sequence[int], percentile: float) -> int | None:
    """Return the delay that so many percent of records do not exceed; None: it is not known."""
    left_out = sum(delays) * (100 - percentile) / 100
    for bucket in range(len(delays) - 1, -1, -1):
        if delays[bucket] > left_out:
            return None if bucket == BUCKETS - 1 else _bound(bucket)
        left_out -= delays[bucket]
    return None


def _bucket(delay_ms: int) -> int:
    """Return the first bucket whose bound is not below a delay."""
    if delay_ms <= 0:
        return 0
    return min(1 + math.ceil(2 * math.log2(delay_ms)), BUCKETS - 1)


def _bound(bucket: int) -> int:
    return 0 if bucket == 0 else math.ceil(2 ** ((bucket - 1) / 2))
