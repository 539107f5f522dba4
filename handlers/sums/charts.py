"""Pictures of a sum: the writers of a load and the batches that fold their items, over time.

Lengths along time are in percent of the picture, heights in pixels.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.sums.load import LoadStatus

WRITERS_HIGH = 110
MIN_LANE, MAX_LANE = 3.0, 16.0
BATCH_HIGH = 22
GAP = 26  # Above the writers and above the batches: for their captions.
# A step that takes no time is drawn all the same.
MIN_PERCENT = 0.3
BARS_HIGH = 90


@dataclass(frozen=True)
class Block:
    """A stretch of time in a lane."""

    x: float
    width: float
    y: float
    height: float
    items: int
    is_last: bool = False

    @property
    def end(self) -> float:
        return round(self.x + self.width, 2)

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True)
class Gantt:
    """A load over time: steps of writers above, batches below, and where each was folded."""

    steps: Sequence[Block]
    batches: Sequence[Block]
    grounds: Sequence[Block]
    now: float | None
    batches_y: float
    height: float
    length_s: float


def gantt(
    load: LoadStatus,
    recent: Sequence[Mapping[str, Any]],
    now: datetime.datetime,
    length_s: float,
) -> Gantt | None:
    """Draw the last load over `length_s`; None: there was none."""
    if load.load is None:
        return None
    began_ms = load.load.started_ms
    folded = [
        (ms_of(batch["opened"]) - began_ms, ms_of(batch["folded"]) - began_ms, int(batch["items"]))
        for batch in recent
    ]
    # Batches of this load; what came long after it has nothing to do with it.
    ends = [step[1] for writer in load.writers for step in writer.steps or []]
    last_ms = max([load.load.seconds * 1000, *ends])
    folded = [batch for batch in folded if batch[1] >= 0 and batch[0] <= last_ms]
    now_ms = now.timestamp() * 1000 - began_ms
    length = length_s * 1000
    lane = min(MAX_LANE, max(MIN_LANE, WRITERS_HIGH / load.load.writers))
    batches_y = GAP + lane * load.load.writers + GAP

    def block(start: float, end: float, y: float, height: float, items: int) -> Block:
        x = min(100.0, max(0.0, 100 * start / length))
        width = max(MIN_PERCENT, 100 * end / length - x)
        return Block(round(x, 2), round(width, 2), round(y, 1), round(height, 1), items)

    grounds = [block(0, length, GAP + lane * i, lane - 1, 0) for i in range(load.load.writers)]
    steps = [
        block(step[0], step[1], GAP + lane * i, lane - 1, step[2])
        for i, writer in enumerate(load.writers)
        for step in writer.steps or []
    ]
    batches = [
        block(start, end, batches_y + (i % 2) * (BATCH_HIGH + 2), BATCH_HIGH, items)
        for i, (start, end, items) in enumerate(sorted(folded))
    ]
    return Gantt(
        steps,
        batches,
        grounds,
        round(100 * now_ms / length, 2) if load.is_moving and now_ms < length else None,
        batches_y,
        batches_y + 2 * (BATCH_HIGH + 2),
        length / 1000,
    )


def sizes(recent: Sequence[Mapping[str, Any]], waiting: int) -> list[Block]:
    """Return a bar for each of the last batches, oldest first, and one for the open batch."""
    counts = [int(batch["items"]) for batch in reversed(recent)] + ([waiting] if waiting else [])
    highest, pitch = max([10, *counts]), 100 / max(12, len(counts))
    bars = []
    for i, count in enumerate(counts):
        height = round(max(2.0, BARS_HIGH * count / highest), 1)
        is_last = bool(waiting) and i == len(counts) - 1
        bars.append(
            Block(
                round(pitch * i, 2),
                round(pitch * 0.8, 2),
                BARS_HIGH - height,
                height,
                count,
                is_last,
            )
        )
    return bars


def took_s(batch: Mapping[str, Any]) -> float:
    """Return how long it took from a batch's opening to its fold, in seconds."""
    return (ms_of(batch["folded"]) - ms_of(batch["opened"])) / 1000


def ms_of(moment: str) -> float:
    """Return an ISO time of UTC in milliseconds since 1970."""
    at = datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC)
    return at.timestamp() * 1000
