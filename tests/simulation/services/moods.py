"""The moods of services outside of the app: drawn by the seed, for an order, attempt by attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

MoodsOfOrders = Mapping[str, Sequence[str]]


class Moods(NamedTuple):
    """The moods of a schedule, of each service by the order."""

    mail: MoodsOfOrders
    payments: MoodsOfOrders


CALM = Moods({}, {})


class AttemptMoods:
    """The moods of one service, of which each attempt takes the next one.

    Args:
        never: Moods that stay, as a refusal for good does.
    """

    def __init__(self, moods: MoodsOfOrders, never: Collection[str]) -> None:
        self._moods = {order: list(theirs) for order, theirs in moods.items()}
        self._never = never

    def next(self, order: str) -> str:
        """Return the mood of the next attempt; "": none."""
        return next(iter(self._moods.get(order, ())), "")

    def take(self, order: str) -> str:
        """Return the mood of an attempt, which ends it."""
        mood = self.next(order)
        if mood and mood not in self._never:
            self._moods[order].pop(0)
        return mood
