"""How often a cached query was served, and from where: counted in memory, summed up in memcached.

Each process counts for itself and adds what it has counted to counters in memcached, at most once
a second: a hit makes no further call. The counters begin anew each day, and when memcached is
emptied.

Lost on failure: what a killed process has counted and not added up. They are there to be read, and
nothing depends on them.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from rollforward.runtime import Clients
from rollforward.runtime.cache import counted

PUSH_INTERVAL_S = 1.0
STATS_TTL_S = 24 * 3600
HIT, STALE, MISS, REFRESHED = "hits", "stale", "misses", "refreshes"
SHARED, UNCACHED = "shared", "uncached"
BROKEN, FAILED, TOO_LARGE, MICROSECONDS = "broken", "failed", "too_large", "microseconds"
KINDS = (HIT, STALE, MISS, REFRESHED, SHARED, UNCACHED, BROKEN, FAILED, TOO_LARGE, MICROSECONDS)


@dataclass(frozen=True)
class CacheStats:
    """How a cached query was served, today.

    Attributes:
        hits: Calls served from memcached.
        stale: Of a value that had expired, while another caller refreshed it.
        misses: That found nothing and computed.
        refreshes: That computed before or after the end of a value, while others were served it.
        shared: That waited for another caller of the same process, or for another process.
        uncached: That computed because memcached was away, or in a transaction.
        broken: Values that were no values of ours; each was a miss as well.
        failed: Refreshes that raised; the old value was served.
        too_large: Values that memcached does not take.
        mean_s: What a computation took, on average; None: there was none.
        is_shared: Of all processes; else memcached is away, and they are this process's own.
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
        return self.hits + self.stale + self.misses + self.refreshes + self.shared + self.uncached

    @property
    def hit_ratio(self) -> float | None:
        """Return which share of the calls computed nothing; None: there was no call."""
        free = self.hits + self.stale + self.shared
        return free / self.calls if self.calls else None


class Tally:
    """What this process has counted for one name."""

    def __init__(self, clients: Clients, space: str) -> None:
        self._clients = clients
        self._space = space
        self._lock = threading.Lock()
        self._own: Counter[str] = Counter()
        self._unpushed: Counter[str] = Counter()
        self._pushed_at_s = 0.0

    def record(self, kind: str, number: int = 1) -> None:
        """Count something; once a second, what was counted is added to that of the others."""
        with self._lock:
            self._own[kind] += number
            self._unpushed[kind] += number
            # Also when the clock was put back.
            is_due = abs(self._now_s() - self._pushed_at_s) >= PUSH_INTERVAL_S
        if is_due:
            self.push()

    def push(self) -> None:
        """Add what was counted to the counters in memcached; what they do not take waits."""
        with self._lock:
            self._pushed_at_s = self._now_s()
            taken, self._unpushed = self._unpushed, Counter()
        for kind, number in taken.items():
            if self._clients.cache.incr(self._key(kind), number, STATS_TTL_S) is None:
                with self._lock:
                    self._unpushed[kind] += number

    def read(self) -> CacheStats:
        """Return what all processes have counted."""
        self.push()
        cache = self._clients.cache
        with self._lock:
            is_shared = not self._unpushed
            own = Counter(self._own)
        known = {kind: counted(cache.get(self._key(kind))) or 0 for kind in KINDS}
        return _stats(Counter(known) if is_shared else own, is_shared)

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
