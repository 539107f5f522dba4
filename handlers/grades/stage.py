"""The stage of a school: its last list on the way to the bars, and what that suffered."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from handlers.shared.faults import switches_of
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery, Incidents, incidents
from handlers.shared.stage import Cell, Stage, Timeline, seconds, stage_of, suffered
from rollforward.continuations.entities import RUNNING
from rollforward.continuations.progress import Progress
from rollforward.materialized_views import Verification
from rollforward.runtime import Cost

LATE_AFTER, LATE_AFTER_S = 2.0, 30.0
WORDS = {
    "/tasks/continuations/import-students": "a page of the list",
    "/tasks/continuations/add-students": "a page of the list",
    "/tasks/materialized-views/grades/": "an update of a bar",
}


def school_stage(
    last: Progress | None,
    waiting: int,
    verified: Verification | None,
    cost: list[Cell],
    now: datetime.datetime,
) -> Stage:
    """Return the stage of a school: of its last list, until its last change is in its bar."""
    if last is None or last.started is None:
        seen = _own(incidents(now - datetime.timedelta(seconds=30), path="/tasks/"))
        switches = switches_of(seen.rules)
        stage = stage_of(None, seen, switches, now=seconds(now), name=_name)
        return replace(stage, cost=cost)
    began = seconds(last.started)
    age_s = max(0.0, seconds(now) - began)
    # What waits long after a list is of something else.
    is_late = age_s > LATE_AFTER * last.elapsed_s + LATE_AFTER_S
    is_moving = last.state == RUNNING or (waiting > 0 and not is_late)
    seen = _own(incidents(last.started, path="/tasks/"))
    ends = [each.task_ended_at for each in seen.deliveries if each.task_ended_at]
    # An update that was struck while the list was added may be the last to reach its bar.
    lengths = [at - began for at in ends]
    longest = LATE_AFTER * last.elapsed_s + LATE_AFTER_S
    over_s = max([last.elapsed_s, *(each for each in lengths if each <= longest)])
    elapsed_s = age_s if is_moving else over_s
    time = Timeline(began, elapsed_s, is_over=not is_moving, begin="list sent", end="added")
    own = [each for each in seen.deliveries if time.has(each.at)]
    return stage_of(
        time,
        replace(seen, deliveries=own),
        switches_of(seen.rules),
        now=seconds(now),
        name=_name,
        closing=lambda stage: _closing(last, waiting, verified, stage),
        cost=cost,
    )


def _own(seen: Incidents) -> Incidents:
    own = [each for each in seen.deliveries if each.path.startswith(tuple(WORDS))]
    return replace(seen, deliveries=own)


def _name(delivery: Delivery) -> str:
    return next((word for path, word in WORDS.items() if delivery.path.startswith(path)), "a task")


def _closing(last: Progress, waiting: int, verified: Verification | None, stage: Stage) -> str:
    parts = [f"{plural(last.totals.done, 'student')} added"]
    parts += suffered(stage)
    if last.state == RUNNING or waiting:
        parts.append(f"{number(waiting)} changes on their way")
        return ", ".join(parts)
    if last.totals.failed:
        parts.append(f"{number(last.totals.failed)} not readable")
    parts.append(f"{number(stage.lost)} lost")
    if verified is None or verified.state == RUNNING:
        parts.append("press Verify to count again")
    else:
        parts.append(f"drift {len(verified.differences)}")
    return ", ".join(parts)


def costs(read: Cost, count: int, saved: Mapping[str, Any] | None) -> list[Cell]:
    """Return what reading the chart costs, and what the visitor's last save did."""
    cells = [
        Cell("This chart", plural(read.reads, "read"), "however many students"),
        Cell("Counting", plural(count, "read"), "one for each student"),
    ]
    if saved:
        tasks = "one for each bar that changes" if saved["tasks"] else "no bar changes"
        cells += [
            Cell("Your save", duration(saved["took_s"]), saved["message"]),
            Cell("Writes", number(saved["writes"]), "student, receipt, updates"),
            Cell("Tasks", number(saved["tasks"]), tasks),
        ]
    return cells
