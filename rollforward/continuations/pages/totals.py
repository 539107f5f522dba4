"""Totals of a run, kept in eight rows, so that its progress is read without its pages.

A page and a slot that has its sums change in one commit, and the page keeps the counted sums. So a
commit that was made twice, or whose reply was lost, counts once.

An older version of the code writes pages and counts nothing. The next attempt at
a page counts it, or the sweep. A run that the older version started has no slots: its pages are
read.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

# The rate of so long ago counts, once the run has lasted twice as long.
RECENT_S = 5.0


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
        letters, cost = _nonzero(self.letters), _nonzero(self.cost)
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


def _nonzero(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def uncounted(page: ContinuationPage) -> PageSums:
    """Return the sums of a page that no slot has."""
    return PageSums.of(page) - PageSums.load(page.counted)


def is_missed(page: ContinuationPage) -> bool:
    """Return whether a page was given back by a version of the code that counts nothing."""
    return page.owner is None and not uncounted(page).is_zero


@dataclass(frozen=True)
class SlotTotals:
    """The slots of a run, added up.

    Attributes:
        lately: Second and items that ended in it, of attempts that have ended, for 2 * RECENT_S.
    """

    sums: PageSums
    lately: Counter[int]
    updated_at: datetime.datetime | None

    @classmethod
    def of(cls, slots: Iterable[ContinuationTotals | None]) -> SlotTotals:
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
        return sum(count for second, count in self.lately.items() if second > second_of(since))


def slot_totals(run_id: str) -> SlotTotals:
    """Return the sums of the slots of a run."""
    return SlotTotals.of(ndb.get_multi(totals_keys(run_id)))


def slot_totals_of(run_ids: Sequence[str]) -> dict[str, SlotTotals]:
    """Return the sums of the slots of some runs, in one lookup."""
    keys = [key for run_id in run_ids for key in totals_keys(run_id)]
    slots = iter(ndb.get_multi(keys))
    return {run_id: SlotTotals.of(islice(slots, TOTALS_SLOTS)) for run_id in run_ids}


def second_of(at: datetime.datetime) -> int:
    """Return a naive time's second since 1970."""
    return int(at.replace(tzinfo=datetime.UTC).timestamp())
