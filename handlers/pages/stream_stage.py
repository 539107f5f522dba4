"""What the stages of streams have in common: which computation a delivery was of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handlers.pages.formatting import number
from handlers.pages.incidents import Delivery, Incidents
from pipelines.streams.limits import SLOTS

NAMES = {"tick": "the watermarks", "pull": "the reading of a source", "push": "a push"}


@dataclass(frozen=True)
class Hits:
    """How often the deliveries of a box were hit, and whether a task is not done since."""

    count: int
    is_open: bool


def lag_text(lag_ms: int) -> str:
    """Return how far a computation is behind, in at most six characters.

    >>> [lag_text(ms) for ms in (0, 1, 59_999, 90_000, 6_000_000, 36_000_000, 10**10)]
    ['0 s', '1 s', '60 s', '1 min', '1.7 h', '10 h', '115 d']
    """
    minutes = lag_ms / 60_000
    if minutes < 1:
        return f"{-(-lag_ms // 1000)} s"
    if minutes < 100:
        return f"{int(minutes)} min"
    hours = minutes / 60
    if hours < 100:
        return f"{hours:.{0 if hours >= 9.95 else 1}f} h"
    return f"{number(int(hours / 24))} d"


def short(count: int) -> str:
    """Return a count in at most five characters, as far as it has any meaning.

    >>> [short(count) for count in (0, 9_999, 10_000, 123_456, 12_345_678)]
    ['0', '9\\u202f999', '10k', '123k', '12M']
    """
    if count < 10_000:
        return number(count)
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"


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
