"""The stage of a quilt: its squares, and what the deliveries that paint them suffered."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Cell, Stage, Timeline, seconds, stage_of, suffered
from pipelines.quilt.progress import QuiltProgress, Square

TASKS = "/tasks/batches/quilt"


@dataclass(frozen=True)
class Hits:
    """How often the deliveries of a square were hit, and whether its task is done since."""

    count: int
    is_open: bool


def quilt_stage(
    found: QuiltProgress | None, now: datetime.datetime
) -> tuple[Stage, Mapping[int, Hits]]:
    """Return the stage of a quilt, and which of its squares were hit."""
    if found is None:
        seen = incidents(now - datetime.timedelta(seconds=30), path=TASKS)
        return stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name), {}
    seen = incidents(found.created, path=TASKS, text=found.id)
    time = Timeline(
        seconds(found.created),
        found.elapsed_s,
        is_over=not found.is_moving,
        begin="made",
        end="finished" if found.is_finished else "unfinished",
        is_complete=found.is_finished,
    )
    stage = stage_of(
        time,
        seen,
        switches_of(seen.rules),
        now=seconds(now),
        name=_name,
        closing=lambda stage: _closing(found, stage),
        cost=_cost(found),
    )
    return stage, hits_of(seen)


def hits_of(seen: Incidents) -> dict[int, Hits]:
    """Return which squares were hit."""
    hits: dict[int, Hits] = {}
    for each in seen.deliveries:
        square = number_of(each)
        if square is not None and each.is_hit:
            before = hits.get(square, Hits(0, is_open=False))
            hits[square] = Hits(before.count + 1, before.is_open or not each.is_repaired)
    return hits


def number_of(delivery: Delivery) -> int | None:
    """Return which square a delivery was to paint; None: none, or that is not known."""
    try:
        return int(json.loads((delivery.body or {})["args"])["number"])
    except (KeyError, TypeError, ValueError):
        return None


def picture_of(found: QuiltProgress, hits: Mapping[int, Hits]) -> str:
    """Return what the script draws: when each square was painted, and what it suffered."""
    squares = [
        0 if square.painted_s is None else _painted(square, square.painted_s)
        for square in found.squares
    ]
    picture: dict[str, Any] = {
        "finished": found.is_finished,
        "squares": squares,
        "hits": {str(number): [each.count, int(each.is_open)] for number, each in hits.items()},
    }
    return json.dumps(picture, separators=(",", ":"))


def _painted(square: Square, after_s: float) -> list[int | str]:
    after_ms = round(after_s * 1000)
    return [after_ms, square.took_ms, square.worker, square.deliveries, square.task]


def _name(delivery: Delivery) -> str:
    if delivery.path.endswith("/completed"):
        return "the end"
    square = number_of(delivery)
    return "a piece" if square is None else f"square {square + 1}"


def _closing(found: QuiltProgress, stage: Stage) -> str:
    parts = [f"{number(found.painted)} of {plural(found.count, 'square')} painted"]
    parts += suffered(stage)
    if found.is_finished:
        parts.append(f"{number(found.count - found.painted)} blank")
        parts.append("one completion")
    return ", ".join(parts)


def _cost(found: QuiltProgress) -> list[Cell]:
    took = sorted(square.took_ms for square in found.squares if square.painted_s is not None)
    each = f"by {plural(len(found.workers), 'worker')}" if found.workers else "so far"
    rate = found.painted / found.elapsed_s if found.elapsed_s else 0.0
    return [
        Cell("Squares", number(found.painted), each),
        Cell("A second", number(rate, 1), "from made to finished"),
        Cell("Delivered again", number(found.again), "and painted once"),
        Cell("A square", _time(took, 0.5), f"median; p95 {_time(took, 0.95)}"),
        Cell("This page", plural(found.count, "read"), "one for each square"),
    ]


def _time(took_ms: list[int], share: float) -> str:
    if not took_ms:
        return duration(None)
    return duration(took_ms[min(len(took_ms) - 1, int(share * len(took_ms)))] / 1000)
