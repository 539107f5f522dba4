"""Statistics of cached queries, by outcome: counted in memory, summed up in memcached.

Each process adds its counts to counters in memcached at most once a second, so a hit makes no
further call. The counters restart each day, and when memcached is emptied.

Lost on failure: the counts that a killed process had not added. Only pages read them.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from rollforward.runtime import Clients
from rollforward.runtime.cache import parse_counter

PUSH_INTERVAL_S = 1.0
STATS_TTL_S = 24 * 3600
HIT, STALE, MISS, REFRESHED = "hits", "stale", "misses", "refreshes"
SHARED, UNCACHED = "shared", "uncached"
BROKEN, FAILED, TOO_LARGE, MICROSECONDS = "broken", "failed", "too_large", "microseconds"
KINDS = (HIT, STALE, MISS, REFRESHED, SHARED, UNCACHED, BROKEN, FAILED, TOO_LARGE, MICROSECONDS)


@dataclass(frozen=True)
class CacheStats:
    """Today's calls of a cached query, by outcome.

    Attributes:
        hits: Calls served from memcached.
        stale: Calls served an expired value, while another caller refreshed it.
        misses: Calls that found no value and computed it.
        refreshes: Calls that computed a value that others were still served.
        shared: Calls that waited for another caller of the same process, or for another process.
        uncached: Calls that computed because memcached was away, or in a transaction.
        broken: Foreign or damaged values; each was a miss as well.
        failed: Refreshes that raised; the old value was served.
        too_large: Values that memcached does not take.
        mean_s: Mean duration of a computation; None: there was none.
        is_shared: Counts of all processes; else memcached is away, and this process's own.
    """

    hits: int
    stale: int
    misses: int
    refreshes: int
    shared: int
    uncached: int
    broken: int
    failed: int
    too_large: int
    mean_s: float | None
    is_shared: bool

    @property
    def calls(self) -> int:
        """The number of all calls."""
        return self.hits + self.stale + self.misses + self.refreshes + self.shared + self.uncached

    @property
    def hit_ratio(self) -> float | None:
        """Return which share of the calls computed nothing; None: there was no call."""
        free = self.hits + self.stale + self.shared
        return free / self.calls if self.calls else None


class Counts:
    """This process's counts for one name."""

    def __init__(self, clients: Clients, space: str) -> None:
        self._clients = clients
        self._space = space
        self._lock = threading.Lock()
        self._own: Counter[str] = Counter()
        self._unpushed: Counter[str] = Counter()
        self._pushed_at_s = 0.0

    def record(self, kind: str, number: int = 1) -> None:
        """Count calls; once a second the counts are added to the shared counters."""
        with self._lock:
            self._own[kind] += number
            self._unpushed[kind] += number
            # Also when the clock was put back.
            is_due = abs(self._now_s() - self._pushed_at_s) >= PUSH_INTERVAL_S
        if is_due:
            self.push()

    def push(self) -> None:
        """Add the counts to the counters in memcached; rejected counts wait."""
        with self._lock:
            self._pushed_at_s = self._now_s()
            unpushed, self._unpushed = self._unpushed, Counter()
        for kind, number in unpushed.items():
            if self._clients.cache.incr(self._key(kind), number, STATS_TTL_S) is None:
                with self._lock:
                    self._unpushed[kind] += number

    def read(self) -> CacheStats:
        """Return what all processes have counted."""
        self.push()
        cache = self._clients.cache
        with self._lock:
            is_shared = not self._unpushed
            counts = Counter(self._own)
        shared = {kind: parse_counter(cache.get(self._key(kind))) or 0 for kind in KINDS}
        return _stats(Counter(shared) if is_shared else counts, is_shared)

    def reset(self) -> None:
        """Count from 0 again, for all processes."""
        with self._lock:
            self._own, self._unpushed = Counter(), Counter()
        for kind in KINDS:
            self._clients.cache.delete(self._key(kind))

    def _now_s(self) -> float:
        return self._clients.clock.now().timestamp()

    def _key(self, kind: str) -> str:
        return f"{self._space}:stats:{kind}"


def _stats(numbers: Counter[str], is_shared: bool) -> CacheStats:
    computed = numbers[MISS] + numbers[REFRESHED] + numbers[UNCACHED]
    mean_s = numbers[MICROSECONDS] / 1e6 / computed if computed else None
    counts = {kind: numbers[kind] for kind in KINDS if kind != MICROSECONDS}
    return CacheStats(**counts, mean_s=mean_s, is_shared=is_shared)
