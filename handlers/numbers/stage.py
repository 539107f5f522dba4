"""The stage of a run of numbers: what it has measured, and what its deliveries suffered."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from handlers.numbers.charts import times
from handlers.shared.faults import switches_of
from handlers.shared.formatting import number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Cell, Stage, Timeline, seconds, stage_of, suffered
from models.numbers import NumbersRun
from pipelines.numbers.probes import BATCH, PROBES
from pipelines.numbers.results import Finding, last_at_ms

MEASURING, CHAIN = "/tasks/continuations/measure-numbers", "/tasks/numbers/echo"
# What of what, and what both are: each is the quotient of two medians.
RATIOS = (
    ("Write : read", "put", "get", 1, "an entity of 1 kB"),
    ("Datastore : cache", "get", "memcached", 1, "reading 1 kB"),
    ("500 : at once", "put", "put-batch", BATCH, "written one by one, or together"),
    ("1 row : 20 rows", "contended", "sharded", 1, "with four writers"),
)


def number_stage(
    run: NumbersRun | None,
    rows: Sequence[Finding],
    reads: int,
    now: datetime.datetime,
    *,
    is_moving: bool,
    is_complete: bool,
) -> Stage:
    """Return the stage of a run; before the first one it has its switches alone."""
    if run is None:
        seen = _own(incidents(now - datetime.timedelta(seconds=30), path="numbers"))
        stage = stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name)
        return replace(stage, cost=_cost(rows, reads))
    began = seconds(run.started)
    ended = last_at_ms(run) / 1000
    elapsed_s = (seconds(now) if is_moving or ended < began else ended) - began
    time = Timeline(
        began,
        max(0.0, elapsed_s),
        is_over=not is_moving,
        begin="pressed",
        end="all measured" if is_complete else "not finished",
        is_complete=is_complete,
    )
    seen = _own(incidents(run.started, path="numbers"))
    own = [each for each in seen.deliveries if time.has(each.at)]
    return stage_of(
        time,
        replace(seen, deliveries=own),
        switches_of(seen.rules),
        now=seconds(now),
        name=_name,
        closing=lambda stage: _closing(rows, stage, is_complete),
        cost=_cost(rows, reads),
    )


def _own(seen: Incidents) -> Incidents:
    """Leave out deliveries of other demos."""
    own = [each for each in seen.deliveries if each.path in (MEASURING, CHAIN)]
    return replace(seen, deliveries=own)


def _name(delivery: Delivery) -> str:
    body: Any = delivery.body or {}
    return f"task {body.get('number', 0)} of the chain" if delivery.path == CHAIN else "the probes"


def _closing(rows: Sequence[Finding], stage: Stage, is_complete: bool) -> str:
    taken = sum(bool(each.samples_ms or each.note) for each in rows)
    parts = [
        f"{taken} of {len(PROBES)} operations",
        plural(sum(len(each.samples_ms) for each in rows), "sample"),
    ]
    parts += suffered(stage)
    return ", ".join([*parts, "all measured"] if is_complete else parts)


def _cost(rows: Sequence[Finding], reads: int) -> list[Cell]:
    """Return what follows from the numbers, and what this page reads to show them."""
    medians = {each.probe.name: each.p50_ms for each in rows}
    cells = []
    for label, one, other, share, each in RATIOS:
        above, below = medians.get(one), medians.get(other)
        ratio = share * above / below if above is not None and below else None
        cells.append(Cell(label, times(ratio), each))
    return [*cells, Cell("This page", plural(reads, "read"), f"{number(len(rows))} operations")]
