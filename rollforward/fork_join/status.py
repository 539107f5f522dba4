"""What became of an item, and how many items of a key wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.cloud import ndb

from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    key_hash_of,
    outcome_key,
    pack_key,
    packs_of_queue,
    parked_packs,
)
from rollforward.fork_join.items import Accepted

I = TypeVar("I")  # noqa: E741  An item.

MAX_WAITING_PACKS = 2_000
MAX_PARKED_PACKS = 200
READINGS = 4


@dataclass(frozen=True)
class ItemStatus:
    """What became of an item. `result` is what the join function returned for it, if kept."""

    is_folded: bool
    result: Any = None
    is_parked: bool = False


@dataclass(frozen=True)
class Depth(Generic[I]):
    """How many items of a key wait, and which are parked.

    `is_truncated`: so much waits in the queue that not all was counted.
    """

    waiting: int
    parked: Sequence[I]
    is_truncated: bool = False


def status_of(accepted: Accepted) -> ItemStatus:
    """Return what became of an item."""
    pack = PackId.parse(accepted.pack)
    alone = pack.single(accepted.position)  # Where it stands if its batch failed.
    places = {alone.text: 0, pack.text: accepted.position}
    # In one look: a replay may put it back meanwhile.
    keys = [make(place) for make in (outcome_key, pack_key) for place in places]
    keys.append(pack_key(alone.parked.text))
    found = dict(zip(keys, ndb.get_multi(keys), strict=True))
    for place, position in places.items():
        outcome = found[outcome_key(place)]
        if outcome is not None:
            return ItemStatus(True, outcome.results[position])
    if any(found[pack_key(place)] for place in places):
        return ItemStatus(False)
    is_parked = found[pack_key(alone.parked.text)] is not None
    return ItemStatus(not is_parked, is_parked=is_parked)


def depth_of(queue: str, key: str, read: Callable[[str], list[I]]) -> Depth[I]:
    """Return what waits and what is parked of a key.

    Read again when an item was parked or replayed meanwhile: none may stand in two places.
    """
    key_hash = key_hash_of(queue, key)
    parked = _keys_of(parked_packs(queue), key_hash, MAX_PARKED_PACKS)[0]
    for _ in range(READINGS):
        waiting, is_truncated = _keys_of(packs_of_queue(queue), key_hash, MAX_WAITING_PACKS)
        before, parked = parked, _keys_of(parked_packs(queue), key_hash, MAX_PARKED_PACKS)[0]
        if parked == before:
            break
    stored = ndb.get_multi([pack_key(each.text) for each in parked])
    items = [item for pack in stored if pack is not None for item in read(pack.items)]
    return Depth(sum(pack.items for pack in waiting), items, is_truncated)


def _keys_of(query: Any, key_hash: str, limit: int) -> tuple[list[PackId], bool]:
    """Return the packs of a key, and whether there are more than were read: keys say it all."""
    keys = query.fetch(limit + 1, keys_only=True)
    packs = [PackId.parse(key.id()) for key in keys[:limit]]
    mine = [pack for pack in packs if EpochId.parse(pack.epoch).key_hash == key_hash]
    return mine, len(keys) > limit
