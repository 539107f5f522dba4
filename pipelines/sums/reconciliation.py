"""Reconciliation of a sum: accepted items against folded, waiting and parked ones.

accepted = folded + waiting + parked, to the item; and to the amount once the sum is idle.

Forms and the writers of a load record an accepted item in the commit of the item. The API counts in
memory (pipelines/sums/tally_buffer.py). The items of the API are marked, so the fold also counts
those that a killed process had not stored. So the two sides of an idle sum are equal, and a tallied
item that is in no place is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from models.sums import Sum, api_tally_key, sum_key, tally_key
from pipelines.sums import load
from pipelines.sums.load import LoadStatus
from pipelines.sums.sums import Count, add_up, count_of
from pipelines.sums.tally_buffer import TALLY_SHARDS
from rollforward.runtime import Clients

MAX_READINGS = 4


@dataclass(frozen=True)
class SumStatus:
    """State of a sum: its folded, waiting and parked items.

    `by_api` counts the folded and parked items of the API.
    """

    folded: Count
    batches: int
    recent: Sequence[Mapping[str, Any]]
    waiting: int
    parked: Count
    by_api: Count
    is_truncated: bool = False  # The count of waiting items was cut off.


@dataclass(frozen=True)
class Reconciliation:
    """Both sides of a sum, and its load."""

    load: LoadStatus
    tallied: Count  # Items of forms and of the API.
    status: SumStatus

    @property
    def accepted(self) -> Count:
        return self.load.accepted + self.load.before + self.tallied

    @property
    def found(self) -> int:
        return self.status.folded.items + self.status.waiting + self.status.parked.items

    @property
    def surplus(self) -> int:
        """Items beyond the accepted ones; negative: the number of missing ones."""
        return self.found - self.accepted.items

    @property
    def is_to_the_amount(self) -> bool:
        return self.accepted.amount == self.status.folded.amount + self.status.parked.amount

    @property
    def is_moving(self) -> bool:
        return self.load.is_moving or self.status.waiting > 0


def reconcile(clients: Clients, name: str) -> Reconciliation:
    """Return both sides of a sum; reading the accepted side first makes no item seem missing."""
    tallies = read_tallies(name)
    under = load.status(clients, name)
    current = status(name)
    return Reconciliation(under, tallies.accepted(current), current)


def status(name: str) -> SumStatus:
    """Return the state of a sum.

    It is read again if a batch was folded meanwhile, so that no item counts in two places.
    """
    row = sum_key(name).get() or Sum()
    for _ in range(MAX_READINGS):
        depth = add_up.depth(name)
        previous, row = row, sum_key(name).get() or Sum()
        if row.batches == previous.batches:
            break
    return SumStatus(
        folded=Count(row.items, row.total),
        batches=row.batches,
        recent=row.recent or [],
        waiting=depth.waiting,
        parked=count_of(depth.parked),
        by_api=Count(row.api_items, row.api_amount) + count_of(depth.parked, via="api"),
        is_truncated=depth.is_truncated,
    )


@dataclass(frozen=True)
class Tallies:
    """Stored tallies of accepted inserts."""

    forms: Count
    api: Count

    def accepted(self, current: SumStatus) -> Count:
        """Return the accepted items of forms and the API; untallied items of the API count too."""
        is_behind = current.by_api.items > self.api.items
        return self.forms + (current.by_api if is_behind else self.api)


def read_tallies(name: str) -> Tallies:
    """Return the tallies of forms and of the API."""
    shards = range(TALLY_SHARDS)
    keys = [make(name, shard) for make in (tally_key, api_tally_key) for shard in shards]
    counts = [Count(row.items, row.amount) if row else Count() for row in ndb.get_multi(keys)]
    return Tallies(
        sum(counts[:TALLY_SHARDS], start=Count()),
        sum(counts[TALLY_SHARDS:], start=Count()),
    )
