"""The stage of the web log: its last run, and what its deliveries suffered."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, incidents
from handlers.shared.stage import Cell, Stage, Timeline, flushed, seconds, stage_of, suffered
from handlers.shared.stream_stage import Hits, delivery_name, hits_of
from handlers.weblog.charts import Second, by_second
from pipelines.weblog.progress import Progress

TASKS = "/tasks/streams/weblog/"
NAMES = {"pull": "the reading of the log"}


def weblog_stage(
    found: Progress, reads: int, now: datetime.datetime
) -> tuple[Stage, Sequence[Second], Mapping[str, Hits]]:
    """Return the stage of the last run, its results by second, and the boxes that were hit."""
    if found.started is None:
        seen = incidents(now - datetime.timedelta(seconds=30), path=TASKS)
        return stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name), [], {}
    time = Timeline(
        seconds(found.started),
        found.elapsed_s,
        is_over=not found.is_moving,
        begin="given",
        end="all counted",
    )
    seen = incidents(found.started, path=TASKS)
    own = [each for each in seen.deliveries if time.has(each.at)]
    stage = stage_of(
        time,
        replace(seen, deliveries=own),
        switches_of(seen.rules),
        now=seconds(now),
        name=_name,
        closing=lambda stage: _closing(found, stage),
        cost=_cost(found, reads),
    )
    return stage, by_second(found.results, time.length_s), hits_of(replace(seen, deliveries=own))


def _name(delivery: Delivery) -> str:
    return delivery_name(delivery, NAMES)


def _closing(found: Progress, stage: Stage) -> str:
    reader = found.worst
    counted = reader.counted
    parts = [
        f"{plural(reader.came, 'record')} in = {number(counted.records)} in windows"
        f" + {number(counted.late)} late + {number(counted.dead)} dead"
        f" + {number(reader.waiting)} in flight"
    ]
    parts += [*suffered(stage), *flushed(stage)]
    if found.is_moving:
        return ", ".join(parts)
    if not reader.is_complete:
        return ", ".join([*parts, f"{reader.name} does not add up"])
    return ", ".join([*parts, f"counted in {duration(found.elapsed_s)}"])


def _cost(found: Progress, reads: int) -> list[Cell]:
    rate = found.totals.requests / found.elapsed_s if found.elapsed_s else 0.0
    written = Counter({each.name: each.counted.written for each in found.parts})
    bad = plural(found.totals.bad, "line")
    results = sum(written[name] for name in ("hits", "sessions", "error-rates", "top-paths"))
    return [
        Cell("Records a second", number(rate), "from line to result"),
        Cell("Steps", number(sum(each.counted.records for each in found.parts)), "of all stages"),
        Cell("Results", number(results), "hits, visits, rates, tops"),
        Cell("Not readable", bad, "costs that line alone"),
        Cell("This page", plural(reads, "read"), "however long the log"),
    ]
