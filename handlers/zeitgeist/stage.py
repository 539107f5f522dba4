"""The stage of zeitgeist: its last playback, what its deliveries suffered, how all is cut up."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Stage, Timeline, seconds, stage_of, suffered
from handlers.shared.stream_stage import Hits, delivery_name, hits_of
from pipelines.zeitgeist.pipeline import ZEITGEIST
from pipelines.zeitgeist.playbacks import Playback
from rollforward.streams.model.limits import SLOTS

TASKS = "/tasks/streams/zeitgeist/"
TOLD_FOR = datetime.timedelta(seconds=30)


@dataclass(frozen=True)
class Piece:
    """An interval, by its place in percent of all keys."""

    x: float
    width: float
    records: int
    records_s: float
    busy: float
    is_held: bool


@dataclass(frozen=True)
class Row:
    """How far a computation is, its version, and the intervals that its keys are cut into.

    `change`: what becomes of it, and how many intervals and sources know; empty: nothing.
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
    """What has come in since the pipeline began, and what the first computation made of it."""

    came: int
    counted: int
    late: int
    dead: int
    repeated: int
    waiting: int

    @property
    def in_flight(self) -> int:
        """Records that are neither: in an inbox, as far as two reads can tell while they move."""
        return max(0, self.came - self.counted - self.late - self.dead - self.repeated)

    @property
    def adds_up(self) -> bool:
        """Whether nothing is lost and nothing is doubled; when all is at rest."""
        done = self.counted + self.late + self.dead + self.repeated
        return self.came == done + self.waiting


def rows_of(status: Any, topology: Any, front: int) -> list[Row]:
    """Return how far each computation is, and how far behind the fastest feed."""
    return [
        Row(
            each.name, each.records, each.waiting, each.late, each.dead,
            max(0, front - each.watermark), _pieces(each), each.version,
            _change(topology.parts[each.name]),
        )
        for each in (status.computations[name] for name in ZEITGEIST.graph.order)
    ]  # fmt: skip


def _change(part: Any) -> str:
    return f"{part.phase}, {part.noted} of {part.senders} know" if part.is_changing else ""


def _pieces(found: Any) -> list[Piece]:
    ends = [each.first_slot for each in found.intervals] + [SLOTS]
    return [
        Piece(
            round(100 * begin / SLOTS, 2), round(100 * (end - begin) / SLOTS, 2),
            each.records, each.records_s, each.busy, each.is_held,
        )
        for (begin, end), each in zip(pairwise(ends), found.intervals, strict=True)
    ]  # fmt: skip


def sums_of(status: Any) -> Sums:
    """Return what has come in, and what became of it."""
    source, first = status.sources["queries"], status.computations["counter"]
    return Sums(
        source.records, first.records, first.late, first.dead, first.repeated, first.waiting
    )


def zeitgeist_stage(
    playback: Playback | None, sums: Sums, now: datetime.datetime, *, is_moving: bool
) -> tuple[Stage, Mapping[str, Hits]]:
    """Return the stage of a playback, and which computations were hit meanwhile."""
    if playback is None or not playback.started_ms:
        seen = incidents(now - TOLD_FOR, path=TASKS)
        return _stage(None, seen, now), {}
    started, ended = playback.started_ms / 1000, (playback.ended_ms or 0) / 1000
    is_over = playback.ended_ms is not None
    time = Timeline(
        started, max(0.0, (ended if is_over else seconds(now)) - started), is_over,
        begin="played", end="played",
    )  # fmt: skip
    seen = incidents(datetime.datetime.fromtimestamp(started, datetime.UTC), path=TASKS)
    own = replace(seen, deliveries=[each for each in seen.deliveries if time.has(each.at)])
    stage = _stage(time, own, now)
    return replace(stage, closing=_closing(sums, stage, time, is_moving=is_moving)), hits_of(own)


def _stage(time: Timeline | None, seen: Incidents, now: datetime.datetime) -> Stage:
    return stage_of(time, seen, switches_of(seen.rules), now=seconds(now), name=_name)


def _name(delivery: Delivery) -> str:
    return delivery_name(delivery)


def _closing(sums: Sums, stage: Stage, time: Timeline, *, is_moving: bool) -> str:
    parts = [
        f"{plural(sums.came, 'record')} in = {number(sums.counted)} counted"
        f" + {number(sums.late)} late + {number(sums.dead)} dead"
        f" + {number(sums.repeated)} repeated + {number(sums.in_flight)} in flight",
        *suffered(stage),
    ]
    if time.is_over and not is_moving:
        parts.append(
            f"played in {duration(time.elapsed_s)}" if sums.adds_up else "it does not add up"
        )
    return ", ".join(parts)
