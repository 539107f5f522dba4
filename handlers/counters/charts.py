"""Pictures of a counter: a column for each shard, and clicks and conflicts by second.

Lengths across are in percent of the picture, heights in percent, or in pixels of the chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.counters.load import LoadStatus
from rollforward.counters import ShardStatus

CHART_HIGH = 76
MIN_HIGH = 1.5
# Of a column: what it takes of its place, and up to how many have room for their numbers.
FILLED = 0.84
MAX_LABELLED = 24
# A few columns stay columns.
MIN_PLACES = 12
# The way whose clicks are drawn: what the shards are of.
DRAWN = "sharded"


@dataclass(frozen=True)
class Column:
    """A shard: what it holds, and how full it is drawn, in percent of the fullest."""

    number: int
    count: int
    level: int
    is_draining: bool
    x: float
    width: float
    is_labelled: bool

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True)
class Second:
    """One second of a load: its clicks, and the conflicts that they met."""

    second: int
    x: float
    width: float
    clicks: int
    conflicts: int
    high: float
    conflicts_high: float


@dataclass(frozen=True)
class Chart:
    """A load by second."""

    way: str
    seconds: Sequence[Second]
    wanted_y: float
    wanted_width: float
    peak: int
    height: int = CHART_HIGH

    @property
    def clicks(self) -> int:
        return sum(second.clicks for second in self.seconds)

    @property
    def conflicts(self) -> int:
        return sum(second.conflicts for second in self.seconds)


def columns(status: ShardStatus) -> list[Column]:
    """Return a column for each shard that exists."""
    fullest = max((abs(count) for count in status.counts), default=0) or 1
    pitch = 100 / max(MIN_PLACES, len(status.counts))
    return [
        Column(
            number,
            count,
            round(100 * abs(count) / fullest),
            number >= status.shards,
            round(pitch * number, 2),
            round(pitch * FILLED, 2),
            len(status.counts) <= MAX_LABELLED,
        )
        for number, count in enumerate(status.counts)
    ]


def by_second(status: LoadStatus, length_s: float) -> Chart | None:
    """Draw the last load on an axis of `length_s`; None: there was none."""
    load = status.load
    if load is None or not load.ways:
        return None
    way = DRAWN if DRAWN in load.ways else load.ways[0]
    counts = status.ways[way].seconds
    peak = max([load.rate, *(sum(pair) for pair in counts.values())])
    pitch = 100 / length_s

    def high(count: int) -> float:
        return round(max(MIN_HIGH, CHART_HIGH * count / peak), 1) if count else 0.0

    def drawn(second: int) -> Second:
        clicks, conflicts = counts.get(second, (0, 0))
        x = round(min(100.0, pitch * second), 2)
        width = round(min(100 - x, pitch * 0.8), 2)
        return Second(second, x, width, clicks, conflicts, high(clicks), high(conflicts))

    return Chart(
        way,
        [drawn(second) for second in range(max([load.seconds, *(s + 1 for s in counts)]))],
        round(CHART_HIGH * (1 - load.rate / peak), 1),
        round(min(100.0, pitch * load.seconds), 2),
        peak,
    )
