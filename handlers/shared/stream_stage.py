"""Stages of pipelines: the computation and the name of a delivery."""

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
    """Return the name of a pipeline's delivery.

    Args:
        names: Names of tasks by the ends of their paths, in place of the usual ones.
    """
    body: Any = delivery.body or {}
    if "computation" in body and isinstance(body.get("first_slot"), int):
        share = 100 * body["first_slot"] // SLOTS
        return f"{body['computation']}, keys from {share} % on"
    return {**NAMES, **names}.get(delivery.path.rpartition("/")[2], "a task")
