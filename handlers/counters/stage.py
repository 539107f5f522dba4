"""The stage of the counters: their last load, and what its deliveries suffered."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from handlers.counters.charts import Chart, by_second
from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Cell, Stage, Timeline, flushed, seconds, stage_of, suffered
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


@dataclass(frozen=True)
class Counts:
    """What each way has counted, and what it was asked to count."""

    sums: Sums
    accepted: Mapping[str, int]

    def off(self, way: str) -> int:
        """Return how many more a way has counted than it should; negative: fewer."""
        return self.sums.by_way[way] - self.accepted[way]

    @property
    def waiting(self) -> int:
        """How many gathered clicks are accepted and not folded yet."""
        return max(0, -self.off("gathered"))


def counter_stage(
    under: LoadStatus,
    counts: Counts,
    names: Mapping[str, tuple[str, str]],
    reads: int,
    now: datetime.datetime,
) -> tuple[Stage, Chart | None]:
    """Return the stage of the last load, and its clicks by second over the same time."""

    def name(delivery: Delivery) -> str:
        return _name(delivery, names)

    if under.load is None:
        seen = _own(incidents(now - datetime.timedelta(seconds=30), path="counters"))
        stage = stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=name)
        return replace(stage, cost=_cost(under, names, reads)), None
    started = datetime.datetime.fromtimestamp(under.load.started_ms / 1000, datetime.UTC)
    seen = _own(incidents(started, path="counters"))
    time = Timeline(
        seconds(started),
        _elapsed_s(under, now),
        is_over=not under.is_moving,
        begin="started",
        end="all accepted",
    )
    stage = stage_of(
        time,
        replace(seen, deliveries=[each for each in seen.deliveries if time.has(each.at)]),
        switches_of(seen.rules),
        now=seconds(now),
        name=name,
        closing=lambda stage: _closing(under, counts, stage),
        cost=_cost(under, names, reads),
    )
    return stage, by_second(under, time.length_s)


def _own(seen: Incidents) -> Incidents:
    """Leave out deliveries of other demos."""
    own = [each for each in seen.deliveries if each.path.startswith(tuple(WORDS))]
    return replace(seen, deliveries=own)


def _name(delivery: Delivery, names: Mapping[str, tuple[str, str]]) -> str:
    body: Any = delivery.body or {}
    if delivery.path.startswith(WRITERS) and body.get("way") in names:
        return f"writer {int(body.get('writer', 0)) + 1}, {names[body['way']][0].lower()}"
    return next((word for path, word in WORDS.items() if delivery.path.startswith(path)), "a task")


def _elapsed_s(under: LoadStatus, now: datetime.datetime) -> float:
    """Return how long a load has lasted, or until its last writer was done."""
    if under.load is None:
        return 0.0
    ended = max((way.ended_ms for way in under.ways.values()), default=0)
    until_ms = now.timestamp() * 1000 if under.is_moving else ended
    # Of a load that was given up nobody knows when it ended.
    lasted_s = (until_ms - under.load.started_ms) / 1000
    return lasted_s if lasted_s > 0 else float(under.load.seconds)


def _closing(under: LoadStatus, counts: Counts, stage: Stage) -> str:
    ways = under.ways
    clicked = sum(way.accepted for way in ways.values())
    parts = [plural(clicked, "click") + (f" in {len(ways)} ways" if len(ways) > 1 else "")]
    parts += [*suffered(stage), *flushed(stage)]
    if under.is_moving and under.load:
        wanted = under.load.clicks * len(ways)
        return ", ".join([*parts, f"{number(max(0, wanted - clicked))} to come"])
    return ", ".join([*parts, *_balance(counts)])


def _balance(counts: Counts) -> list[str]:
    """Return in words what was lost and what counted twice; of memory, by itself."""
    exact = [counts.off(way) for way in counts.accepted if way not in (INEXACT, "gathered")]
    exact.append(max(0, counts.off("gathered")))
    if counts.waiting:
        return [f"{number(counts.waiting)} waiting to be folded"]
    lost, twice = sum(max(0, -off) for off in exact), sum(max(0, off) for off in exact)
    said = [f"{number(lost)} lost", f"{number(twice)} twice"]
    in_memory = counts.off(INEXACT)
    if in_memory < 0:
        said.append(f"of those in memory {number(-in_memory)} wait or were lost")
    elif in_memory > 0:
        said.append(f"of those in memory {number(in_memory)} came twice")
    return said


def _cost(under: LoadStatus, names: Mapping[str, tuple[str, str]], reads: int) -> list[Cell]:
    """Return a cell for each way: how fast it was, what a click took and what it wrote."""
    cells = []
    for way, found in under.ways.items():
        rate = f"{number(under.rate(way))} / s"
        writes = number(found.writes / found.accepted, 1) if found.accepted else "–"
        p95 = duration(None if found.p95_ms is None else found.p95_ms / 1000)
        value = number(found.accepted) if under.is_moving else rate
        cells.append(Cell(names[way][0], value, f"p95 {p95}, {writes} writes"))
    return [*cells, Cell("This page", plural(reads, "read"), "however many clicks")]
