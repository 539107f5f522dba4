"""Histogram of how far records of a source lag behind its latest record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# The first bucket counts records without a delay. Every further bound is 1.41 times its
# predecessor; the last bucket has all delays of over two hours.
BUCKETS = 48
# A histogram with more delays is halved, so that recent delays count for most.
MAX_DELAYS = 10_000


def with_delays(delays: Sequence[int], latest: int, times: Iterable[int]) -> tuple[int, ...]:
    """Add the delays of records to the histogram of a source, in order of arrival.

    Args:
        delays: Number of records in each bucket; empty at the beginning.
        latest: The latest event time of a record so far.
    """
    counts = list(delays) or [0] * BUCKETS
    for time_ms in times:
        latest = max(latest, time_ms)
        counts[_bucket(latest - time_ms)] += 1
    if sum(counts) > MAX_DELAYS:
        counts = [count // 2 for count in counts]
    return tuple(counts)


def delay_of(delays: Sequence[int], percentile: float) -> int | None:
    """Return the delay that this percentage of records does not exceed; None: unknown."""
    excess = sum(delays) * (100 - percentile) / 100
    for bucket in range(len(delays) - 1, -1, -1):
        if delays[bucket] > excess:
            return None if bucket == BUCKETS - 1 else _bound(bucket)
        excess -= delays[bucket]
    return None


def _bucket(delay_ms: int) -> int:
    """Return the first bucket whose bound is not below a delay."""
    if delay_ms <= 0:
        return 0
    return min(1 + math.ceil(2 * math.log2(delay_ms)), BUCKETS - 1)


def _bound(bucket: int) -> int:
    return 0 if bucket == 0 else math.ceil(2 ** ((bucket - 1) / 2))
