"""Scaling of the pipeline: split the busiest interval, and merge all splits."""

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
    """Result of a split: the slot where the new interval begins, and the number of intervals."""

    computation: str
    slot: int
    intervals: int


def split_busiest(clients: Clients, playback: Playback) -> Split | None:
    """Split the busiest interval; None: each key has an interval of its own.

    Raises:
        StreamError: the limit of intervals is reached.
    """
    computations = ZEITGEIST.status(clients).computations
    busiest = sorted(
        (
            (interval.busy, interval.records_s, interval.records, name)
            for name, computation in computations.items()
            for interval in computation.intervals
        ),
        reverse=True,
    )
    for name in dict.fromkeys(name for *_, name in busiest):
        slot = ZEITGEIST.split_by_keys(clients, name, _keys(playback, name))
        if slot is not None:
            return Split(name, slot, len(computations[name].intervals) + 1)
    return None


def _keys(playback: Playback, computation: str) -> Sequence[str]:
    """Return the current and next keys of a playback's records."""
    queries = [part.query for part in playback.parts]
    if computation != "history":
        return queries
    day = playback.front // DAY_MS
    return [f"{query}|{number}" for query in queries for number in (day, day + 1)]


def merge_all(clients: Clients) -> int:
    """Undo all splits; return their number."""
    initial_slots = {SLOTS * number // ZEITGEIST.intervals for number in range(ZEITGEIST.intervals)}
    split = [
        (name, interval.first_slot)
        for name, computation in ZEITGEIST.status(clients).computations.items()
        for interval in computation.intervals
        if interval.first_slot not in initial_slots
    ]
    for name, slot in split:
        ZEITGEIST.merge(clients, name, slot)
    return len(split)
