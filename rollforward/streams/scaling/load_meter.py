"""Load of an interval, measured by its worker, and the splits and merges that follow from it.

An interval is split at the median of its records for one of three reasons:

- Backlog: its worker was busy nearly all the time and always had more waiting.
- Latency: the hooks of its bundles take over a second, period after period. The records of the
  next bundle wait for that long, even if there never is a backlog.
- Bytes: its working set exceeds the cache, so that most bundles read evicted states again. Each
  half has a cache of its own.

Two neighbours that were mostly idle are merged. A key with half of the records is a hot key. No
split helps there, but a computation upstream that aggregates its records in parts does
(`rollforward.streams.operators.hot_keys`).

Source: T. Akidau and others, "MillWheel", 2013, 7.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.schema import Load

PERIOD_MS = 1_000
SPLIT_BUSY = 0.8
# Time of a bundle's hooks, and for how many periods. A split makes remote calls no shorter, so that
# a store that is slow for a while splits nothing.
SLOW_MS, SLOW_PERIODS = 1_000, 3
# Share of bundles that read evicted rows. A worker that is mostly idle may read them again.
REREAD_SHARE, REREAD_BUSY = 0.5, 0.5
MERGE_BUSY = 0.3  # Of both together, far below the load of two halves after a split.
HOT_SHARE = 0.5
# An older measurement is ignored. Nor is an interval merged sooner after a split.
STALE_MS = 60_000


class LoadMeter:
    """Measurements of one run of a worker, period by period."""

    def __init__(self, elapsed_ms: Callable[[], float]) -> None:
        self._elapsed_ms = elapsed_ms
        self.load = Load()
        self.split_slot: int | None = None  # The slot at which the last period suggests a split.
        self._slow_periods = 0
        self._begin()

    def _begin(self) -> None:
        self._began_ms = self._elapsed_ms()
        self._busy_ms = 0.0
        self._commit_ms = 0.0
        self._rounds = self._rereading = 0
        self._is_slow = False
        self._is_behind = True
        self._keys: Counter[str] = Counter()

    def round(
        self,
        busy_ms: float,
        commit_ms: float,
        keys: Iterable[str],
        *,
        behind: bool,
        hooks_ms: float = 0.0,
        reread: int = 0,
    ) -> None:
        """Record a bundle.

        Args:
            behind: The inbox had more records than the bundle took.
            hooks_ms: The part of `busy_ms` in which hooks ran.
            reread: The number of evicted rows that it read again.
        """
        self._busy_ms += busy_ms
        self._commit_ms += commit_ms
        self._rounds += 1
        self._is_slow = self._is_slow or hooks_ms >= SLOW_MS
        self._rereading += reread > 0
        self._is_behind = self._is_behind and behind
        self._keys.update(keys)

    def load_after(self, stored: Load) -> Load:
        """Return the load to store, given the one that earlier runs have stored."""
        return self.load._replace(split_ms=stored.split_ms) if self.load.at_ms else stored

    def end_period(self, now_ms: int) -> bool:
        """Summarize the period if it is over; return whether it was."""
        took_ms = self._elapsed_ms() - self._began_ms
        if took_ms < PERIOD_MS:
            return False
        records = self._keys.total()
        [(top_key, top_count)] = self._keys.most_common(1) or [("", 0)]
        is_hot = bool(records) and top_count >= HOT_SHARE * records
        self.load = Load(
            at_ms=now_ms,
            records_s=round(records * 1000 / took_ms, 1),
            busy=round(min(1.0, self._busy_ms / took_ms), 3),
            commit_ms=round(self._commit_ms / max(1, self._rounds), 2),
            hot_key=top_key if is_hot else "",
            hot_share=round(top_count / records, 3) if is_hot else 0,
        )
        self.split_slot = median_slot(self._keys) if self._is_overloaded() else None
        self._begin()
        return True

    def _is_overloaded(self) -> bool:
        """Return whether the period ends with a reason for a split."""
        self._slow_periods = self._slow_periods + 1 if self._is_slow else 0
        is_latent = self._slow_periods >= SLOW_PERIODS
        if is_latent:
            self._slow_periods = 0  # A half has to be slow for as long again.
        busy, rounds = self.load.busy, self._rounds
        is_full = busy >= SPLIT_BUSY and self._is_behind and rounds > 0
        is_rereading = busy >= REREAD_BUSY and self._rereading > REREAD_SHARE * rounds
        return is_full or is_latent or is_rereading


def median_slot(keys: Mapping[str, int]) -> int | None:
    """Return the slot that cuts the records of keys in about equal halves; None: there is none."""
    slots: Counter[int] = Counter()
    for key, count in keys.items():
        slots[slot_of(key)] += count
    half, below = slots.total() / 2, 0
    best: tuple[float, int] | None = None
    for slot in sorted(slots):
        if below:
            candidate = (abs(half - below), slot)
            best = candidate if best is None else min(best, candidate)
        below += slots[slot]
    return None if best is None else best[1]


def halved(load: Load, now_ms: int) -> Load:
    """Return the expected load of each half of an interval."""
    return Load(at_ms=now_ms, busy=load.busy / 2, split_ms=now_ms)


def merge_candidate(los: Sequence[int], loads: Mapping[int, Load], now_ms: int) -> int | None:
    """Return the first slot of an interval to merge into its predecessor, or None.

    Args:
        los: First slots of the intervals of a computation.
        loads: Loads of the idle intervals.
    """
    busy = {lo: load.busy if load.at_ms > now_ms - STALE_MS else 0.0 for lo, load in loads.items()}
    young = {lo for lo, load in loads.items() if load.split_ms > now_ms - STALE_MS}
    for lo, slot in pairwise(los):
        if not {lo, slot} <= busy.keys() - young:
            continue
        if busy[lo] + busy[slot] < MERGE_BUSY:
            return slot
    return None
