"""The stage of the counters: their last load, and the incidents of its deliveries."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handlers.shared.balance import Balance, total_of
from handlers.shared.demo_stage import DemoStage, name_by_path
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, flushed, moment_of, suffered
from pipelines.counters.counters import Sums
from pipelines.counters.load import LoadStatus

# Of writers, of what drains shards, and of folds: by the beginnings of their routes.
WRITERS = "/tasks/counters-demo/"
WORDS = {
    WRITERS: "a writer's start",
    "/tasks/counters/": "the draining of a shard",
    "/tasks/fork-join/counters-": "a fold",
}
# Without a key a repeated click counts again, and what a dead process had in memory is gone.
INEXACT = "in-memory"
SHOWN_WHOLE = 10  # Clicks a second from which a rate has no decimals.


@dataclass(frozen=True)
class Counts:
    """Counted and accepted clicks by way.

    Attributes:
        under_way: Clicks that may count and are not recorded as accepted.
    """

    sums: Sums
    accepted: Mapping[str, int]
    under_way: Mapping[str, int]
    is_moving: bool

    def off(self, way: str) -> int:
        """Return how many more a way has counted than it should; negative: fewer."""
        return self.sums.by_way[way] - self.accepted[way]

    def balance(self, way: str) -> Balance:
        """Return the books of a way since the counter's first click."""
        return Balance(
            is_moving=self.is_moving,
            earlier=self.accepted[way],
            found_count=self.sums.by_way[way],
            in_flight=self.sums.pending if way == "gathered" else 0,
            unconfirmed=self.under_way[way],
        )

    @property
    def exact(self) -> list[Balance]:
        """The books of the ways that promise to be exact."""
        return [self.balance(way) for way in self.accepted if way != INEXACT]


@dataclass(frozen=True)
class CounterStage(DemoStage):
    """The last load of the counters.

    Attributes:
        names: A title and a sentence for each way.
        reads: Reads of the page so far.
    """

    load: LoadStatus
    counts: Counts
    names: Mapping[str, tuple[str, str]]
    reads: int

    path = "counters"
    paths = tuple(WORDS)

    @property
    def began(self) -> datetime.datetime | None:
        return moment_of(self.load.load.started_ms) if self.load.load else None

    @property
    def _is_whole(self) -> bool:
        """Whether every click that was asked for is accepted."""
        return self.balance().not_attempted == 0

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        is_over = not self.load.is_moving
        return Timeline(
            started,
            self._elapsed_s(age_s),
            is_over,
            begin="started",
            end="all accepted" if self._is_whole else "ended",
            is_complete=self._is_whole,
        )

    def _elapsed_s(self, age_s: float) -> float:
        """Return how long the load has lasted, or until its last writer was done."""
        assert self.load.load is not None
        ended_ms = max((way.ended_ms for way in self.load.ways.values()), default=0)
        lasted_s = (ended_ms - self.load.load.started_ms) / 1000
        elapsed_s = age_s if self.load.is_moving else lasted_s
        # The end of a load that was given up is not known.
        return elapsed_s if elapsed_s > 0 else float(self.load.load.seconds)

    def name(self, delivery: Delivery) -> str:
        body: Any = delivery.body or {}
        if delivery.path.startswith(WRITERS) and body.get("way") in self.names:
            return f"writer {int(body.get('writer', 0)) + 1}, {self.names[body['way']][0].lower()}"
        return name_by_path(delivery, WORDS)

    def closing(self, stage: Stage) -> str:
        ways = self.load.ways
        clicked = sum(way.accepted for way in ways.values())
        parts = [plural(clicked, "click") + (f" in {len(ways)} ways" if len(ways) > 1 else "")]
        parts += [*suffered(stage), *flushed(stage), *self.balance().words]
        return ", ".join(parts if self.load.is_moving else [*parts, *self._in_memory()])

    def balance(self) -> Balance:
        load, ways = self.load.load, self.load.ways
        if load is None:
            return total_of(self.counts.exact, is_moving=False)
        accepted = sum(way.accepted for way in ways.values())
        asked, is_moving = load.clicks * len(ways), self.load.is_moving
        return total_of(self.counts.exact, is_moving=is_moving, asked=asked, made_count=accepted)

    def _in_memory(self) -> list[str]:
        """Return how far the way that is not exact is off, in words."""
        off = self.counts.off(INEXACT)
        if off < 0:
            return [f"{number(-off)} in memory pending or lost"]
        return [f"{number(off)} in memory repeated"] if off else []

    def cost(self) -> list[Cell]:
        """Return a cell for each way: its rate, and the latency and writes of a click."""
        cells = []
        for way, result in self.load.ways.items():
            per_s = self.load.rate(way)
            rate = f"{number(per_s, 0 if per_s >= SHOWN_WHOLE else 1)} / s"
            writes = number(result.writes / result.accepted, 1) if result.accepted else "–"
            p95 = duration(None if result.p95_ms is None else result.p95_ms / 1000)
            value = number(result.accepted) if self.load.is_moving else rate
            cells.append(Cell(self.names[way][0], value, f"p95 {p95}, {writes} writes"))
        return [*cells, Cell("This page", plural(self.reads, "read"), "however many clicks")]
