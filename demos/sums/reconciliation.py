"""The reconciliation of a sum: what was accepted, beside what became of it, to the item.

accepted = folded + waiting + parked, and at rest to the amount, too.

Forms and the writers of a load record what was accepted in the commit of the item. The API counts
in memory (demos/sums/tally_buffer.py); what a killed process did not write down is in the items
themselves, which say that they came by the API, and the fold that adds them counts them. So the
two sides of an idle sum are equal, and an item that was tallied and is not found is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from demos.sums import load
from demos.sums.load import LoadStatus
from demos.sums.sums import Count, add_up, count_of
from demos.sums.tally_buffer import TALLY_SHARDS
from models.demos.sums import Sum, api_tally_key, sum_key, tally_key
from models.fork_join import EpochId, PackId, key_hash_of, packs_of_queue, parked_packs
from pipelines.runtime import Clients

MAX_PACKS_READ = 2_000
MAX_PARKED_READ = 200
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

    Read again when a batch was folded meanwhile or an item parked: none may stand in two places.
    """
    before = _settled(name)
    for _ in range(MAX_READINGS):
        packs, is_truncated = _waiting(name)
        row, parked = _settled(name)
        if (row.batches, parked) == (before[0].batches, before[1]):
            break
        before = row, parked
    kept = [item for pack in ndb.get_multi(parked) if pack for item in add_up.read(pack.items)]
    return SumStatus(
        folded=Count(row.items, row.total),
        batches=row.batches,
        recent=row.recent or [],
        waiting=sum(pack.items for pack in packs),
        parked=count_of(kept),
        by_api=Count(row.api_items, row.api_amount) + count_of(kept, via="api"),
        is_truncated=is_truncated,
    )


def _settled(name: str) -> tuple[Sum, list[Any]]:
    """Return what does not wait: the row of a sum, and the keys of its parked items."""
    tag = key_hash_of(add_up.name, name)
    keys = parked_packs(add_up.name).fetch(MAX_PARKED_READ, keys_only=True)
    mine = [key for key in keys if EpochId.parse(PackId.parse(key.id()).epoch).tag == tag]
    return sum_key(name).get() or Sum(), mine


def _waiting(name: str) -> tuple[list[PackId], bool]:
    """Return the packs of a sum that wait: their keys tell it all."""
    keys = packs_of_queue(add_up.name).fetch(MAX_PACKS_READ + 1, keys_only=True)
    packs = [PackId.parse(key.id()) for key in keys[:MAX_PACKS_READ]]
    tag = key_hash_of(add_up.name, name)
    return [p for p in packs if EpochId.parse(p.epoch).tag == tag], len(keys) > MAX_PACKS_READ


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
