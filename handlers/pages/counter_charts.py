"""Pictures of a counter: a cell for each shard, and clicks and conflicts by second.

Lengths along time are in percent of the picture, heights in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demos.counters.load import LoadStatus
from pipelines.counters import ShardStatus

CHART_HIGH = 110
MIN_HIGH = 1.5
# The way whose clicks are drawn: what the shards are of.
DRAWN = "sharded"


@dataclass(frozen=True)
class Cell:
    """A shard: what it holds, and how full it is drawn, in percent of the fullest."""

    number: int
    count: int
    level: int
    is_draining: bool


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
    wanted: int
    peak: int
    height: int = CHART_HIGH

    @property
    def clicks(self) -> int:
        return sum(each.clicks for each in self.seconds)

    @property
    def conflicts(self) -> int:
        return sum(each.conflicts for each in self.seconds)


def cells(status: ShardStatus) -> list[Cell]:
    """Return a cell for each shard that exists."""
    fullest = max((abs(count) for count in status.counts), default=0) or 1
    return [
        Cell(number, count, round(100 * abs(count) / fullest), number >= status.shards)
        for number, count in enumerate(status.counts)
    ]


def by_second(status: LoadStatus) -> Chart | None:
    """Draw the last load; None: there was none."""
    load = status.load
    if load is None or not load.ways:
        return None
    way = DRAWN if DRAWN in load.ways else load.ways[0]
    found = status.ways[way].seconds
    peak = max([load.rate, *(sum(each) for each in found.values())])
    pitch = 100 / load.seconds

    def high(count: int) -> float:
        return round(max(MIN_HIGH, CHART_HIGH * count / peak), 1) if count else 0.0

    def drawn(second: int) -> Second:
        clicks, conflicts = found.get(second, (0, 0))
        x, width = round(pitch * second, 2), round(pitch * 0.8, 2)
        return Second(second, x, width, clicks, conflicts, high(clicks), high(conflicts))

    seconds = [drawn(second) for second in range(load.seconds)]
    return Chart(way, seconds, round(CHART_HIGH * (1 - load.rate / peak), 1), load.rate, peak)
