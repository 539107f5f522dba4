"""The stage of zeitgeist: its last playback, and the rows of its computations."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Stage, Timeline, moment_of, suffered
from handlers.shared.stream_stage import delivery_name
from pipelines.zeitgeist.pipeline import ZEITGEIST
from pipelines.zeitgeist.playbacks import Playback
from rollforward.streams.model.limits import SLOTS

TASKS = "/tasks/streams/zeitgeist/"


@dataclass(frozen=True)
class Piece:
    """An interval, by its place in percent of all keys."""

    x: float
    width: float
    records: int
    records_s: float
    busy: float
    is_leased: bool


@dataclass(frozen=True)
class Row:
    """A computation: progress, version, and the intervals of its keys.

    `change`: its current change, and how many intervals and sources know; empty without one.
    """

    name: str
    records: int
    waiting: int
    late: int
    dead: int
    lag_ms: int
    pieces: Sequence[Piece]
    version: int
    change: str


@dataclass(frozen=True)
class Sums:
    """Records received since the pipeline began, by the first computation's verdict."""

    received: int
    counted: int
    late: int
    dead: int
    repeated: int
    waiting: int

    @property
    def in_flight(self) -> int:
        """Records without a verdict yet; a bit off while records move between two reads."""
        return max(0, self.received - self.counted - self.late - self.dead - self.repeated)


def rows_of(status: Any, topology: Any, front: int) -> list[Row]:
    """Return how far each computation is, and how far behind the fastest feed."""
    return [
        Row(
            name, part.records, part.waiting, part.late, part.dead,
            max(0, front - part.watermark), _pieces(part), part.version,
            _change(topology.parts[name]),
        )
        for name, part in ((name, status.computations[name]) for name in ZEITGEIST.graph.order)
    ]  # fmt: skip


def _change(part: Any) -> str:
    return f"{part.phase}, {part.acknowledged} of {part.senders} know" if part.is_changing else ""


def _pieces(computation: Any) -> list[Piece]:
    ends = [interval.first_slot for interval in computation.intervals] + [SLOTS]
    return [
        Piece(
            round(100 * begin / SLOTS, 2), round(100 * (end - begin) / SLOTS, 2),
            interval.records, interval.records_s, interval.busy, interval.is_leased,
        )
        for (begin, end), interval in zip(pairwise(ends), computation.intervals, strict=True)
    ]  # fmt: skip


def sums_of(status: Any) -> Sums:
    """Return the records received, by the first computation's verdict."""
    source, counter = status.sources["queries"], status.computations["counter"]
    return Sums(
        source.records,
        counter.records,
        counter.late,
        counter.dead,
        counter.repeated,
        counter.waiting,
    )


@dataclass(frozen=True)
class ZeitgeistStage(DemoStage):
    """The last playback; None: there was none."""

    playback: Playback | None
    sums: Sums
    is_moving: bool

    path = TASKS

    @property
    def began(self) -> datetime.datetime | None:
        started_ms = self.playback.started_ms if self.playback else 0
        return moment_of(started_ms) if started_ms else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        lasted_s = self._lasted_s()
        elapsed_s = age_s if lasted_s is None else lasted_s
        return Timeline(started, elapsed_s, lasted_s is not None, begin="started", end="played")

    def _lasted_s(self) -> float | None:
        """Return how long the playback lasted; None: it is not over."""
        if self.playback is None or self.playback.ended_ms is None:
            return None
        return max(0.0, self.playback.ended_ms / 1000 - self.playback.started_ms / 1000)

    def name(self, delivery: Delivery) -> str:
        return delivery_name(delivery)

    def closing(self, stage: Stage) -> str:
        sums, lasted_s = self.sums, self._lasted_s()
        parts = [
            f"{plural(sums.received, 'record')} in = {number(sums.counted)} counted"
            f" + {number(sums.late)} late + {number(sums.dead)} dead"
            f" + {number(sums.repeated)} duplicates + {number(sums.in_flight)} in flight",
            *suffered(stage),
        ]
        if lasted_s is None or self.is_moving:
            return ", ".join(parts)
        return ", ".join([*parts, f"played in {duration(lasted_s)}", *self.balance().words])

    def balance(self) -> Balance:
        sums = self.sums
        return Balance(
            is_moving=self.is_moving,
            earlier=sums.received,
            found_count=sums.counted + sums.late + sums.dead + sums.repeated,
            in_flight=sums.in_flight if self.is_moving else sums.waiting,
        )
