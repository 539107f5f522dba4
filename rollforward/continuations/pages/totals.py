"""Totals of a run, kept in eight rows, so that its progress is read without its pages.

An attempt that gives its page back adds the page's receipts to one of the run's slots, less those
that were counted before. The page and the slot change in one commit, and the page keeps the counted
sums. So a commit that was made twice, or whose reply was lost, counts once.

Each process prefers a slot of its own, and remembers its version. Then the commit takes one round
trip, as without totals. A process that finds a slot changed by another one takes the next.

An older version of the code writes pages and counts nothing. The next attempt at such a page counts
it, or the sweep; a run that it started has no slots, and its pages are read.

Lost on failure: nothing. An attempt that takes over counts the receipts of one that died.
"""

from __future__ import annotations

import datetime
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import (
    ENDED,
    TOTALS_SLOTS,
    ContinuationPage,
    ContinuationTotals,
    totals_keys,
)
from rollforward.datastore.transactions import transact
from rollforward.datastore.versions import read_versions
from rollforward.runtime.clients import Clients

# The rate of so long ago counts, once the run has lasted twice as long.
RECENT_S = 5.0
# Runs whose slots a process remembers.
MAX_RUNS = 100


@dataclass
class PageSums:
    """Totals of pages."""

    letters: Counter[str] = field(default_factory=Counter)
    cost: Counter[str] = field(default_factory=Counter)
    in_doubt: int = 0
    pages: int = 0

    @classmethod
    def of(cls, page: ContinuationPage) -> PageSums:
        """Return the totals of one page."""
        return cls(Counter(page.receipts), Counter(page.cost), page.in_doubt, 1)

    @classmethod
    def load(cls, stored: Mapping[str, Any] | None) -> PageSums:
        """Return totals that `dump` returned; None: of no page."""
        if stored is None:
            return cls()
        cost, letters = Counter(stored["cost"]), Counter(stored["letters"])
        return cls(letters, cost, stored["in_doubt"], stored["pages"])

    def dump(self) -> dict[str, Any]:
        """Return the totals as JSON can hold them."""
        letters, cost = _without_zeros(self.letters), _without_zeros(self.cost)
        return {"letters": letters, "cost": cost, "in_doubt": self.in_doubt, "pages": self.pages}

    def add(self, letters: str, cost: Mapping[str, int], in_doubt: int) -> None:
        self += PageSums(Counter(letters), Counter(cost), in_doubt, 1)

    def __iadd__(self, other: PageSums) -> PageSums:
        self.letters.update(other.letters)
        self.cost.update(other.cost)
        self.in_doubt += other.in_doubt
        self.pages += other.pages
        return self

    def __sub__(self, other: PageSums) -> PageSums:
        letters, cost = self.letters.copy(), self.cost.copy()
        letters.subtract(other.letters)
        cost.subtract(other.cost)
        return PageSums(letters, cost, self.in_doubt - other.in_doubt, self.pages - other.pages)

    def copy(self) -> PageSums:
        return PageSums(self.letters.copy(), self.cost.copy(), self.in_doubt, self.pages)

    @property
    def ended(self) -> int:
        """How many items have ended."""
        return sum(self.letters[letter] for letter in ENDED)

    @property
    def is_zero(self) -> bool:
        return self.dump() == PageSums().dump()


def _without_zeros(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def uncounted(page: ContinuationPage) -> PageSums:
    """Return the sums of a page that no slot has."""
    return PageSums.of(page) - PageSums.load(page.counted)


def is_forgotten(page: ContinuationPage) -> bool:
    """Return whether a page was given back by a version of the code that counts nothing."""
    return page.owner is None and not uncounted(page).is_zero


@dataclass(frozen=True)
class KeptTotals:
    """The slots of a run, added up.

    Attributes:
        recently: Items that ended in the last RECENT_S of the attempts that have ended.
    """

    sums: PageSums
    lately: Counter[int]
    updated_at: datetime.datetime | None

    @classmethod
    def of(cls, slots: Iterable[ContinuationTotals | None]) -> KeptTotals:
        sums, lately = PageSums(), Counter[int]()
        updated_at: list[datetime.datetime] = []
        for slot in slots:
            if slot is not None:
                sums += PageSums.load(slot.sums)
                lately.update(dict(slot.lately))
                updated_at.append(slot.updated_at)
        return cls(sums, lately, max(updated_at, default=None))

    def ended_since(self, since: datetime.datetime) -> int:
        """Return how many items ended after a time, within the last few seconds."""
        return sum(count for second, count in self.lately.items() if second > _second(since))


def kept_totals(run_id: str) -> KeptTotals:
    """Return the sums of the slots of a run."""
    return KeptTotals.of(ndb.get_multi(totals_keys(run_id)))


def kept_totals_of(run_ids: Sequence[str]) -> dict[str, KeptTotals]:
    """Return the sums of the slots of some runs, in one lookup."""
    keys = [key for run_id in run_ids for key in totals_keys(run_id)]
    slots = iter(ndb.get_multi(keys))
    return {run_id: KeptTotals.of(islice(slots, TOTALS_SLOTS)) for run_id in run_ids}


def _second(at: datetime.datetime) -> int:
    return int(at.replace(tzinfo=datetime.UTC).timestamp())


def _count(page: ContinuationPage, slot: ContinuationTotals) -> bool:
    """Add the sums of a page that no slot has to one; return whether there were any."""
    share = uncounted(page)
    if share.is_zero:
        return False
    sums = PageSums.load(slot.sums)
    sums += share
    slot.sums = sums.dump()
    slot.updated_at = max(slot.updated_at, page.updated_at)
    now = _second(page.updated_at)
    lately = Counter(dict(slot.lately))
    lately[now] += share.ended
    slot.lately = [pair for pair in sorted(lately.items()) if now - pair[0] <= 2 * RECENT_S]
    page.counted = PageSums.of(page).dump()
    return True


def _new_slot(key: Any, page: ContinuationPage) -> ContinuationTotals:
    return ContinuationTotals(key=key, sums=PageSums().dump(), updated_at=page.updated_at)


class Slot:
    """A slot that this process uses, by one thread at a time, and its version, once known."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.lock = threading.Lock()
        self._latest: tuple[ContinuationTotals | None, int | None] | None = None
        self._changed: ContinuationTotals | None = None

    def counting(
        self, clients: Clients, page: ContinuationPage
    ) -> list[tuple[ndb.Model, int | None]]:
        """Count a page; return the row to write with it, and its version; outside transactions."""
        if self._latest is None:
            [read] = read_versions(clients.datastore, [self.key])
            self._latest = read or (None, None)
        (row, version), self._latest = self._latest, None
        row = row or _new_slot(self.key, page)
        if not _count(page, row):
            return []
        self._changed = row
        return [(row, version)]

    def written(self, version: int) -> None:
        """Note the version of the row that `counting` returned, once it is committed."""
        self._latest = (self._changed, version)

    def count(self, page: ContinuationPage, row: ContinuationTotals | None) -> list[ndb.Model]:
        """Count a page; return the row to put with it; in a transaction, which has read `row`."""
        self._latest = None
        row = row or _new_slot(self.key, page)
        return [row] if _count(page, row) else []


class RunSlots:
    """The slots of a run, as a process uses them."""

    def __init__(self, keys: Sequence[Any], first: int) -> None:
        self._slots = [Slot(key) for key in keys]
        self._first = first

    @contextmanager
    def one(self) -> Iterator[Slot]:
        """Hold a slot that no other thread holds: the preferred one, if it is free."""
        for place in range(TOTALS_SLOTS):
            slot = self._slots[(self._first + place) % TOTALS_SLOTS]
            if slot.lock.acquire(blocking=place == TOTALS_SLOTS - 1):
                try:
                    yield slot
                finally:
                    slot.lock.release()
                return

    def prefer_next(self) -> None:
        """Take the next slot from now on: another process uses this one."""
        self._first = (self._first + 1) % TOTALS_SLOTS


class ProcessSlots:
    """The slots of the runs that a process has worked on last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Any, RunSlots] = {}  # The one used last comes last.

    def of(self, run_id: str, owner: str) -> RunSlots:
        """Return the slots of a run; the first attempt's owner chooses which is preferred."""
        keys = totals_keys(run_id)
        with self._lock:
            slots = self._runs.pop(keys[0], None)
            if slots is None:
                slots = RunSlots(keys, zlib.crc32(owner.encode()) % TOTALS_SLOTS)
            self._runs[keys[0]] = slots
            if len(self._runs) > MAX_RUNS:
                self._runs.pop(next(iter(self._runs)))
            return slots


def slots_of(clients: Clients, run_id: str, owner: str) -> RunSlots:
    """Return the slots of a run, as this process uses them."""
    state = clients.process_state.get_or_create("continuation slots", ProcessSlots)
    return state.of(run_id, owner)


def count_forgotten(clients: Clients, run_id: str, pages: Iterable[Any]) -> None:
    """Count the pages of some keys that another version of the code has given back."""
    for key in pages:

        def body(key: Any = key) -> None:
            page, row = ndb.get_multi([key, slot.key])
            if page is not None and is_forgotten(page):
                ndb.put_multi([page, *slot.count(page, row)])

        with slots_of(clients, run_id, clients.new_owner()).one() as slot:
            transact(body)
