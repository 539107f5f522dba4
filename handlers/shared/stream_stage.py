"""What the stages of streams have in common: which computation a delivery was of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handlers.shared.incidents import Delivery
from rollforward.streams.model.limits import SLOTS

NAMES = {"tick": "the watermarks", "pull": "the reading of a source", "push": "a push"}


def box_of(delivery: Delivery) -> str | None:
    """Return the computation or source that a delivery is of; None: of none, as of watermarks."""
    body: Any = delivery.body or {}
    return str(body.get("computation") or body.get("stream") or "") or None


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
