"""The stage of a sum: its last load, and what the deliveries of its writers and folds suffered."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Cell, Stage, Timeline, flushed, seconds, stage_of, suffered
from handlers.sums.charts import Gantt, gantt
from pipelines.sums.load import LoadStatus
from pipelines.sums.reconciliation import Reconciliation

WRITERS, FOLDS = "/tasks/sums/", "/tasks/fork-join/sums/"


def sum_stage(
    found: Reconciliation, reads: int, now: datetime.datetime
) -> tuple[Stage, Gantt | None]:
    """Return the stage of a sum's last load, and its writers and batches over the same time."""
    under = found.load
    if under.load is None:
        seen = _own(incidents(now - datetime.timedelta(seconds=30), path="/tasks/"))
        return stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name), None
    started = datetime.datetime.fromtimestamp(under.load.started_ms / 1000, datetime.UTC)
    elapsed_s = _elapsed_s(found, now)
    time = Timeline(
        seconds(started), elapsed_s, is_over=not found.is_moving, begin="started", end="all folded"
    )
    until = None if found.is_moving else started + datetime.timedelta(seconds=elapsed_s)
    seen = _own(incidents(started, until, path="/tasks/"))
    # What was done since stands on the page, too.
    if until is not None:
        since = _own(incidents(until, path=WRITERS))
        seen = replace(since, deliveries=seen.deliveries, marks=[*seen.marks, *since.marks])
    stage = stage_of(
        time,
        seen,
        switches_of(seen.rules),
        now=seconds(now),
        name=_name,
        closing=lambda stage: _closing(found, stage),
        cost=_cost(found, reads),
    )
    return stage, gantt(under, found.status.recent, now, time.length_s)


def _own(seen: Incidents) -> Incidents:
    """Leave out deliveries of other demos."""
    own = [each for each in seen.deliveries if each.path.startswith((WRITERS, FOLDS))]
    return replace(seen, deliveries=own)


def _name(delivery: Delivery) -> str:
    body: Any = delivery.body or {}
    if delivery.path.startswith(WRITERS) and "writer" in body:
        return f"writer {int(body['writer']) + 1}"
    return "a writer's start" if delivery.path.startswith(WRITERS) else "a fold"


def _elapsed_s(found: Reconciliation, now: datetime.datetime) -> float:
    """Return how long a load has lasted, or until its last item was folded."""
    load = found.load.load
    if load is None:
        return 0.0
    if found.is_moving:
        return max(0.0, now.timestamp() - load.started_ms / 1000)
    steps = [step[1] for writer in found.load.writers for step in writer.steps or []]
    last_ms = max(steps, default=load.seconds * 1000)
    ends = [_ms(batch["folded"]) - load.started_ms for batch in found.status.recent]
    opened = [_ms(batch["opened"]) - load.started_ms for batch in found.status.recent]
    # A batch that was opened after the last step is of something else.
    mine = [end for end, begun in zip(ends, opened, strict=True) if begun <= last_ms]
    return float(max([last_ms, *mine])) / 1000


def _ms(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC).timestamp() * 1000


def _closing(found: Reconciliation, stage: Stage) -> str:
    load: LoadStatus = found.load
    parts = [plural(load.accepted.items, "item")]
    parts += [*suffered(stage), *flushed(stage)]
    if found.is_moving:
        return ", ".join([*parts, f"{number(found.status.waiting)} waiting to be folded"])
    lost, twice = max(0, -found.surplus), max(0, found.surplus)
    return ", ".join([*parts, f"{number(lost)} lost", f"{number(twice)} twice"])


def _cost(found: Reconciliation, reads: int) -> list[Cell]:
    status, load = found.status, found.load
    per_write = number(status.folded.items / status.batches, 1) if status.batches else "–"
    return [
        Cell("Items a write", per_write, "alone it would be 1"),
        Cell("An insert", _time(load.p50_ms), f"median; p95 {_time(load.p95_ms)}"),
        Cell(
            "Writes an item",
            number(load.writes / load.accepted.items, 1) if load.accepted.items else "–",
            "its pack and its receipt",
        ),
        Cell("Sent again", number(load.repeats), "and counted once"),
        Cell("This page", plural(reads, "read"), "however many items"),
    ]


def _time(ms: float | None) -> str:
    return duration(None if ms is None else ms / 1000)
