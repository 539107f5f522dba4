"""How much an interval has to do, measured by its worker, and what follows from that.

An interval whose worker was at work nearly all of the time, and had more waiting whenever it
looked, is split in the middle of its records. Two neighbours that were mostly idle are merged. A
key that has half of the records is said to be hot: no split helps there, but a computation in
front that combines its records by parts does (`windows.two_phase`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.schema import Load

PERIOD_MS = 1_000
SPLIT_BUSY = 0.8
MERGE_BUSY = 0.3  # Of both together: far from what two halves have after a split.
HOT_SHARE = 0.5
# What was measured longer ago says nothing any more. Nor is anything merged sooner after a split.
STALE_MS = 60_000


class LoadMeter:
    """What one run of a worker measures, period by period."""

    def __init__(self, elapsed_ms: Callable[[], float]) -> None:
        self._elapsed_ms = elapsed_ms
        self.load = Load()
        self.split_slot: int | None = None  # Where the last period asks for a split.
        self._begin()

    def _begin(self) -> None:
        self._began_ms = self._elapsed_ms()
        self._busy_ms = 0.0
        self._commit_ms = 0.0
        self._rounds = 0
        self._is_behind = True
        self._keys: Counter[str] = Counter()

    def round(self, busy_ms: float, commit_ms: float, keys: Iterable[str], *, behind: bool) -> None:
        """Note a batch.

        Args:
            behind: More was waiting than it took.
        """
        self._busy_ms += busy_ms
        self._commit_ms += commit_ms
        self._rounds += 1
        self._is_behind = self._is_behind and behind
        self._keys.update(keys)

    def load_after(self, before: Load) -> Load:
        """Return the load of an interval, given the one that runs before this one have left."""
        return self.load._replace(split_ms=before.split_ms) if self.load.at_ms else before

    def end_period(self, now_ms: int) -> bool:
        """Sum up, if a period is over; return whether one was."""
        took_ms = self._elapsed_ms() - self._began_ms
        if took_ms < PERIOD_MS:
            return False
        records = self._keys.total()
        [(hot, most)] = self._keys.most_common(1) or [("", 0)]
        is_hot = bool(records) and most >= HOT_SHARE * records
        self.load = Load(
            at_ms=now_ms,
            records_s=round(records * 1000 / took_ms, 1),
            busy=round(min(1.0, self._busy_ms / took_ms), 3),
            commit_ms=round(self._commit_ms / max(1, self._rounds), 2),
            hot_key=hot if is_hot else "",
            hot_share=round(most / records, 3) if is_hot else 0,
        )
        is_full = self.load.busy >= SPLIT_BUSY and self._is_behind and self._rounds > 0
        self.split_slot = middle(self._keys) if is_full else None
        self._begin()
        return True


def middle(keys: Mapping[str, int]) -> int | None:
    """Return the slot at which two halves have about the same records; None: there is none."""
    slots: Counter[int] = Counter()
    for key, count in keys.items():
        slots[slot_of(key)] += count
    half, below = slots.total() / 2, 0
    best: tuple[float, int] | None = None
    for slot in sorted(slots):
        if below:
            found = (abs(half - below), slot)
            best = found if best is None else min(best, found)
        below += slots[slot]
    return None if best is None else best[1]


def halved(load: Load, now_ms: int) -> Load:
    """Return what each half of an interval is expected to have to do."""
    return Load(at_ms=now_ms, busy=load.busy / 2, split_ms=now_ms)


def merge_candidate(los: Sequence[int], loads: Mapping[int, Load], now_ms: int) -> int | None:
    """Return the first slot of an interval that should be a part of the one before it, or None.

    Args:
        los: Where each interval of a computation begins.
        loads: What those that rest have had to do.
    """
    busy = {lo: load.busy if load.at_ms > now_ms - STALE_MS else 0.0 for lo, load in loads.items()}
    young = {lo for lo, load in loads.items() if load.split_ms > now_ms - STALE_MS}
    for lo, slot in pairwise(los):
        if not {lo, slot} <= busy.keys() - young:
            continue
        if busy[lo] + busy[slot] < MERGE_BUSY:
            return slot
    return None
