"""How the pipeline is cut into intervals: what is busy is split, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.zeitgeist.pipeline import ZEITGEIST
from pipelines.zeitgeist.playbacks import Playback
from pipelines.zeitgeist.series import DAY_MS
from rollforward.runtime import Clients
from rollforward.streams.model.limits import SLOTS


@dataclass(frozen=True)
class Split:
    """A computation that was split: where the new interval begins, and how many there are now."""

    computation: str
    slot: int
    intervals: int


def split_busiest(clients: Clients, playback: Playback) -> Split | None:
    """Split the interval that has most to do; None: each key has one of its own.

    Raises:
        StreamError: there are as many as there may be.
    """
    found = ZEITGEIST.status(clients).computations
    busiest = sorted(
        ((each.busy, each.records_s, each.records, name) for name in found
         for each in found[name].intervals),
        reverse=True,
    )  # fmt: skip
    for name in dict.fromkeys(name for *_, name in busiest):
        slot = ZEITGEIST.split_by_keys(clients, name, _keys(playback, name))
        if slot is not None:
            return Split(name, slot, len(found[name].intervals) + 1)
    return None


def _keys(playback: Playback, computation: str) -> Sequence[str]:
    """Return the keys that a playback's records have now, or soon."""
    queries = [part.query for part in playback.parts]
    if computation != "history":
        return queries
    day = playback.front // DAY_MS
    return [f"{query}|{each}" for query in queries for each in (day, day + 1)]


def merge_all(clients: Clients) -> int:
    """Undo all splits; return how many there were."""
    first = {SLOTS * number // ZEITGEIST.intervals for number in range(ZEITGEIST.intervals)}
    split = [
        (name, each.first_slot)
        for name, found in ZEITGEIST.status(clients).computations.items()
        for each in found.intervals
        if each.first_slot not in first
    ]
    for name, slot in split:
        ZEITGEIST.merge(clients, name, slot)
    return len(split)
