"""What the stages of streams have in common: which computation a delivery was of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handlers.shared.incidents import Delivery, Incidents
from rollforward.streams.model.limits import SLOTS

NAMES = {"tick": "the watermarks", "pull": "the reading of a source", "push": "a push"}


@dataclass(frozen=True)
class Hits:
    """How often the deliveries of a box were hit, and whether a task is not done since."""

    count: int
    is_open: bool


def hits_of(seen: Incidents) -> dict[str, Hits]:
    """Return which computations were hit, and the source by its own name."""
    hits: dict[str, Hits] = {}
    for each in seen.deliveries:
        box = _box(each)
        if box and each.is_hit:
            before = hits.get(box, Hits(0, is_open=False))
            hits[box] = Hits(before.count + 1, before.is_open or not each.is_repaired)
    return hits


def _box(delivery: Delivery) -> str:
    """Return which box of the picture a delivery is of; "": of none, as that of watermarks."""
    body: Any = delivery.body or {}
    return str(body.get("computation") or body.get("stream") or "")


def delivery_name(delivery: Delivery, names: Mapping[str, str] = {}) -> str:
    """Return what a delivery of a pipeline is called.

    Args:
        names: Of tasks, by the end of their paths: other names than the usual ones.
    """
    body: Any = delivery.body or {}
    if "computation" in body and isinstance(body.get("first_slot"), int):
        share = 100 * body["first_slot"] // SLOTS
        return f"{body['computation']}, keys from {share} % on"
    return {**NAMES, **names}.get(delivery.path.rpartition("/")[2], "a task")
