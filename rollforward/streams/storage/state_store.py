"""Keyed state store of an interval. Small keys share a row, called a slab (RocksDB: a block).

A slab holds the keys of a range of slots. Above 32 KB it is cut into smaller slabs, unless all of
its keys share one slot. A state over 4 KB has its own row, while its key's timers stay in the slab.
If a slab exceeds 300 KB nevertheless, each state that is written gets its own row.

The interval's row lists the slabs and when they are due, so a worker reads only the slabs it needs.
An interval with thousands of slabs has larger ones, so that its own row grows slower than its
states.

Rows stay cached until another worker writes: every write names the version that it expects.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollforward.streams.model.key_state import NOTHING, KeyState, SlabBody
from rollforward.streams.model.records import NEVER
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.storage.remote_calls import (
    Commit,
    Key,
    Read,
    Steps,
    StoredRow,
    TooLargeError,
)
from rollforward.streams.storage.schema import LARGE, SLAB, Interval, Names, Slab
from rollforward.streams.storage.state_cache import RowCache

MAX_SLAB_BYTES = 32_000
MAX_SMALL_BYTES = 4_000
# A larger slab has keys of one slot alone, and cannot be cut.
MAX_SLOT_BYTES = 300_000
# Slabs of one interval, whose row has room for about 16,000.
MANY_SLABS, MOST_SLABS = 2_000, 12_000
LARGE_AT_ONCE = 50
EMPTY = SlabBody({})
BEHIND_ALL = NEVER + 1  # Sorts behind every slab of the same slot.


@dataclass
class StateStore:
    """Cached slabs of one interval."""

    names: Names
    computation: str
    rows: RowCache = field(default_factory=RowCache)
    _keys: dict[int, Key] = field(default_factory=dict)  # Keys of slabs.
    _slabs: tuple[Slab, ...] = ()
    _los: list[int] = field(default_factory=list)  # The first slots of these slabs.

    def clear(self) -> None:
        self.rows.clear()

    def evict(self, interval: Interval, max_bytes: int) -> None:
        """Evict the rows with the latest next use, if all rows together are too large."""
        if self.rows.bytes <= max_bytes:
            return
        due = {slab.lo: min(slab.due, slab.processing_due) for slab in interval.slabs}

        def next_use(key: Key) -> int:
            _, _, slot, *_ = key.name.split(":", 3)
            lo = interval.slabs[bisect_right(interval.slabs, (int(slot, 16), BEHIND_ALL)) - 1].lo
            return due[lo]

        self.rows.evict(max_bytes, next_use)

    def load(
        self,
        interval: Interval,
        keys: Iterable[str],
        slabs: Iterable[int],
        *,
        max_bytes: float = math.inf,
    ) -> Steps[None]:
        """Read the slabs of some keys, and further ones, unless they are cached.

        Args:
            slabs: The first slots of slabs.
            max_bytes: The approximate limit of large states to read.

        Raises:
            TooLargeError: the large states exceed it.
        """
        by_slab = self._by_slab(interval, keys)
        yield from self._read(map(self._key, sorted({*slabs, *by_slab})))
        large = [
            self.names.large(self.computation, key)
            for lo, names in by_slab.items()
            if (are_large := self._slab(lo).large)
            for key in names
            if key in are_large
        ]
        read_bytes, cached_bytes = 0, self.rows.bytes
        for start in range(0, len(large), LARGE_AT_ONCE):
            if read_bytes > max_bytes:
                raise TooLargeError(f"states must have at most {max_bytes} bytes together")
            yield from self._read(large[start : start + LARGE_AT_ONCE])
            read_bytes = self.rows.bytes - cached_bytes

    def states(self, interval: Interval, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the states of keys whose slabs were loaded."""
        states: dict[str, KeyState] = {}
        for lo, names in self._by_slab(interval, keys).items():
            body = self._slab(lo)
            if body.large:
                states |= {key: self.state(interval, key) for key in names}
            else:
                states |= {key: body.keys.get(key, NOTHING) for key in names}
        return states

    def state(self, interval: Interval, key: str) -> KeyState:
        """Return the state of a key whose slab was loaded."""
        body = self._slab(self.slab_of(interval, key))
        state = body.keys.get(key, NOTHING)
        if body.large and key in body.large and not self.is_row_missing(interval, key):
            return state._replace(text=self.rows[self.names.large(self.computation, key)].body)
        return state

    def is_row_missing(self, interval: Interval, key: str) -> bool:
        """Return whether a key is large by its slab, but its own row was missing when it was read.

        The worker of the interval has committed in between. A worker's commit then fails, and a
        reader reads again.
        """
        is_large = key in self._slab(self.slab_of(interval, key)).large
        return is_large and not self.rows[self.names.large(self.computation, key)].version

    def drop_large(self, keys: Iterable[str]) -> None:
        """Evict the large states of some keys."""
        for key in keys:
            self.rows.drop(self.names.large(self.computation, key))

    def keys(self, lo: int) -> list[str]:
        """Return the keys of a slab that was loaded."""
        return list(self._slab(lo).keys)

    def due(self, slabs: Iterable[int], watermark: int, now_ms: int) -> list[str]:
        """Return the keys of some slabs that are due."""
        return [
            key
            for lo in slabs
            for key, state in self._slab(lo).keys.items()
            if state.times.due <= watermark or state.times.processing_due <= now_ms
        ]

    def change(
        self, interval: Interval, keys: Mapping[str, KeyState], commit: Commit
    ) -> tuple[Slab, ...]:
        """Add the new states of some keys to a commit; return the resulting slabs."""
        slabs = {slab.lo: slab for slab in interval.slabs}
        for lo, names in self._by_slab(interval, keys).items():
            old = self._slab(lo)
            changed = {
                key: keys[key] for key in names if self._has_changed(interval, old, key, keys[key])
            }
            if not changed:
                continue
            is_full = self.rows.size(self._key(lo)) > MAX_SLOT_BYTES
            body = self._changed(old, changed, commit, 0 if is_full else MAX_SMALL_BYTES)
            for part_lo, part in _split_slab(lo, body, max_slab_bytes(len(interval.slabs))):
                self._write(self._key(part_lo), part, commit)
                slabs[part_lo] = summary(part_lo, part)
        return tuple(slabs[lo] for lo in sorted(slabs))

    def committed(self, commit: Commit, versions: list[int]) -> None:
        """Update the cache after a commit."""
        written = [*((key, body) for key, body, _ in commit.puts), *commit.inserts]
        for (key, body), version in zip(written, versions, strict=True):
            if key.kind in (SLAB, LARGE):
                self.rows[key] = StoredRow(body, version)
        for key, _ in commit.deletes:
            self.rows.drop(key)

    def slab_of(self, interval: Interval, key: str) -> int:
        """Return the first slot of a key's slab."""
        los = self._los_of(interval)
        return los[bisect_right(los, slot_of(key)) - 1]

    def _by_slab(self, interval: Interval, keys: Iterable[str]) -> Mapping[int, Sequence[str]]:
        """Return keys by the first slot of their slab."""
        los = self._los_of(interval)
        by_lo: dict[int, list[str]] = defaultdict(list)
        for key in keys:
            by_lo[los[bisect_right(los, slot_of(key)) - 1]].append(key)
        return by_lo

    def _los_of(self, interval: Interval) -> Sequence[int]:
        """Return the first slots of an interval's slabs."""
        if interval.slabs is not self._slabs:
            self._slabs, self._los = interval.slabs, [slab.lo for slab in interval.slabs]
        return self._los

    def _read(self, keys: Iterable[Key]) -> Steps[None]:
        keys = list(keys)
        self.rows.touch(keys)
        uncached = [key for key in keys if key not in self.rows]
        if uncached:
            rows = yield Read(uncached)
            for key, row in zip(uncached, rows, strict=True):
                self.rows[key] = row or StoredRow(EMPTY, 0)

    def _key(self, lo: int) -> Key:
        """Return the key of a slab; built once, because it is needed for each key in the slab."""
        key = self._keys.get(lo)
        if key is None:
            key = self._keys[lo] = self.names.slab(self.computation, lo)
        return key

    def _slab(self, lo: int) -> SlabBody:
        body: SlabBody = self.rows[self._key(lo)].body
        return body

    def _has_changed(self, interval: Interval, slab: SlabBody, key: str, state: KeyState) -> bool:
        """Return whether a state differs from the stored one.

        The state of a large key was assembled from two rows, so it is compared by value.
        """
        if state is slab.keys.get(key, NOTHING):
            return False
        return key not in slab.large or state != self.state(interval, key)

    def _changed(
        self, body: SlabBody, changed: Mapping[str, KeyState], commit: Commit, max_small: int
    ) -> SlabBody:
        """Return a slab with some keys changed; add the rows of large states to a commit."""
        keys, large = dict(body.keys), set(body.large)
        for key, state in changed.items():
            if len(state.text) > max_small:
                name = self.names.large(self.computation, key)
                if key not in large or self.rows[name].body != state.text:
                    self._write(name, state.text, commit)
                keys[key] = state._replace(text="")
                large.add(key)
                continue
            if key in large:
                large.discard(key)
                row = self.names.large(self.computation, key)
                commit.deletes.append((row, self.rows[row].version))
            if state.is_empty:
                keys.pop(key, None)
            else:
                keys[key] = state
        return body.with_changed(changed, keys, large)

    def _write(self, key: Key, body: Any, commit: Commit) -> None:
        row = self.rows.get(key)
        if row is None or not row.version:
            commit.inserts.append((key, body))
        else:
            commit.puts.append((key, body, row.version))


def max_slab_bytes(slabs: int) -> int:
    """Return the maximum size of a slab in an interval with this number of slabs."""
    return MAX_SLAB_BYTES * min(8, 1 + slabs // MANY_SLABS)


def is_crowded(slabs: int) -> bool:
    """Return whether an interval with this number of slabs should be split."""
    return slabs > MOST_SLABS


def _split_slab(lo: int, body: SlabBody, max_bytes: int) -> Iterable[tuple[int, SlabBody]]:
    """Return a slab, or the parts that it is cut into, each with its first slot."""
    slots = {key: slot_of(key) for key in body.keys} if body.size > max_bytes else {}
    distinct = sorted(set(slots.values()))
    if len(distinct) < 2:
        yield lo, body
        return
    middle = max(distinct[1], sorted(slots.values())[len(slots) // 2])
    for part_lo, low, high in ((lo, 0, middle), (middle, middle, SLOTS)):
        keys = {key: state for key, state in body.keys.items() if low <= slots[key] < high}
        yield from _split_slab(part_lo, SlabBody(keys, body.large & frozenset(keys)), max_bytes)


def summary(lo: int, body: SlabBody) -> Slab:
    """Return the summary of a slab for its interval's row."""
    states = [NOTHING, *body.keys.values()]
    holds, dues, processing_dues, timers = zip(*[state.times for state in states], strict=True)
    return Slab(lo, min(holds), min(dues), min(processing_dues), sum(timers))
