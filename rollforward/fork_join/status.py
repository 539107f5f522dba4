"""The status of an item, and the pending items of a key."""

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
    """The status of an item.

    Attributes:
        result: The join function's result for it, if kept.
        is_deleted: It was deleted with its dead task. 30 days later it reads as folded.
    """

    is_folded: bool
    result: Any = None
    is_parked: bool = False
    is_deleted: bool = False


@dataclass(frozen=True)
class Depth(Generic[I]):
    """The number of pending items of a key, and its parked items.

    `is_truncated`: the queue has more pending packs than were counted.
    """

    waiting: int
    parked: Sequence[I]
    is_truncated: bool = False


def status_of(accepted: Accepted) -> ItemStatus:
    """Return the status of an item."""
    pack = PackId.parse(accepted.pack)
    alone = pack.single(accepted.position)  # Its pack after a bisection.
    places = {alone.text: 0, pack.text: accepted.position}
    # In one lookup, since a replay may move it back meanwhile.
    keys = [make(place) for make in (outcome_key, pack_key) for place in places]
    keys.append(pack_key(alone.parked.text))
    rows = dict(zip(keys, ndb.get_multi(keys), strict=True))
    for place, position in places.items():
        outcome = rows[outcome_key(place)]
        if outcome is not None and outcome.is_deleted:
            return ItemStatus(False, is_deleted=True)
        if outcome is not None:
            return ItemStatus(True, outcome.results[position])
    if any(rows[pack_key(place)] for place in places):
        return ItemStatus(False)
    is_parked = rows[pack_key(alone.parked.text)] is not None
    return ItemStatus(not is_parked, is_parked=is_parked)


def depth_of(queue: str, key: str, read: Callable[[str], list[I]]) -> Depth[I]:
    """Return the pending and the parked items of a key.

    It reads again if an item was parked or replayed meanwhile, so that none is counted twice.
    """
    key_hash = key_hash_of(queue, key)
    parked = _keys_of(parked_packs(queue), key_hash, MAX_PARKED_PACKS)[0]
    for _ in range(READINGS):
        waiting, is_truncated = _keys_of(packs_of_queue(queue), key_hash, MAX_WAITING_PACKS)
        earlier, parked = parked, _keys_of(parked_packs(queue), key_hash, MAX_PARKED_PACKS)[0]
        if parked == earlier:
            break
    stored = ndb.get_multi([pack_key(pack.text) for pack in parked])
    items = [item for pack in stored if pack is not None for item in read(pack.items)]
    return Depth(sum(pack.items for pack in waiting), items, is_truncated)


def _keys_of(query: Any, key_hash: str, limit: int) -> tuple[list[PackId], bool]:
    """Return the packs of a key, by keys alone, and whether there are more than were read."""
    keys = query.fetch(limit + 1, keys_only=True)
    packs = [PackId.parse(key.id()) for key in keys[:limit]]
    packs = [pack for pack in packs if EpochId.parse(pack.epoch).key_hash == key_hash]
    return packs, len(keys) > limit
