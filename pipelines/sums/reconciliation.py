"""The reconciliation of a sum: what was accepted, beside what became of it, to the item.

accepted = folded + waiting + parked, and at rest to the amount, too.

Forms and the writers of a load record what was accepted in the commit of the item. The API counts
in memory (pipelines/sums/tally_buffer.py); what a killed process did not write down is in the items
themselves, which say that they came by the API, and the fold that adds them counts them. So the
two sides of an idle sum are equal, and an item that was tallied and is not found is missing.
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
    """A sum as it stands: what is folded, what waits, what is parked.

    `by_api` is what is folded or parked and came by the API.
    """

    folded: Count
    batches: int
    recent: Sequence[Mapping[str, Any]]
    waiting: int
    parked: Count
    by_api: Count
    is_truncated: bool = False  # More waits than was counted.


@dataclass(frozen=True)
class Reconciliation:
    """Both sides of a sum, and the load that it is under."""

    load: LoadStatus
    tallied: Count  # Of forms and of the API.
    status: SumStatus

    @property
    def accepted(self) -> Count:
        return self.load.accepted + self.load.before + self.tallied

    @property
    def found(self) -> int:
        return self.status.folded.items + self.status.waiting + self.status.parked.items

    @property
    def surplus(self) -> int:
        """How many items more there are than were accepted; negative: so many are missing."""
        return self.found - self.accepted.items

    @property
    def is_to_the_amount(self) -> bool:
        return self.accepted.amount == self.status.folded.amount + self.status.parked.amount

    @property
    def is_moving(self) -> bool:
        return self.load.is_moving or self.status.waiting > 0


def reconcile(clients: Clients, name: str) -> Reconciliation:
    """Return both sides of a sum. What was accepted is read first: so none is found missing."""
    tallies = read_tallies(name)
    under = load.status(clients, name)
    found = status(name)
    return Reconciliation(under, tallies.accepted(found), found)


def status(name: str) -> SumStatus:
    """Return how a sum stands.

    Read again when a batch was folded meanwhile: no item may stand in two places.
    """
    row = sum_key(name).get() or Sum()
    for _ in range(MAX_READINGS):
        depth = add_up.depth(name)
        before, row = row, sum_key(name).get() or Sum()
        if row.batches == before.batches:
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
    """What was tallied of inserts that were accepted, as far as it is written down."""

    forms: Count
    api: Count

    def accepted(self, found: SumStatus) -> Count:
        """Return what forms and the API have accepted: the API also what it has not tallied."""
        is_behind = found.by_api.items > self.api.items
        return self.forms + (found.by_api if is_behind else self.api)


def read_tallies(name: str) -> Tallies:
    """Return what was tallied of forms and of the API."""
    shards = range(TALLY_SHARDS)
    keys = [make(name, shard) for make in (tally_key, api_tally_key) for shard in shards]
    counts = [Count(row.items, row.amount) if row else Count() for row in ndb.get_multi(keys)]
    return Tallies(
        sum(counts[:TALLY_SHARDS], start=Count()),
        sum(counts[TALLY_SHARDS:], start=Count()),
    )
