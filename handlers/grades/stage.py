"""The stage of a school: its last list on the way to the bars, and its incidents."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage, name_by_path
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from rollforward.continuations.entities import FINISHED, RUNNING
from rollforward.continuations.progress import RunProgress
from rollforward.materialized_views import Verification
from rollforward.runtime import Cost

LATE_AFTER, LATE_AFTER_S = 2.0, 30.0
WORDS = {
    "/tasks/continuations/import-students": "a page of the list",
    "/tasks/continuations/add-students": "a page of the list",
    "/tasks/materialized-views/grades/": "an update of a bar",
}


@dataclass(frozen=True)
class SchoolStage(DemoStage):
    """The last list of a school, until its last change is in its bar."""

    latest: RunProgress | None
    waiting: int
    verified: Verification | None
    cells: list[Cell]

    path = "/tasks/"
    paths = tuple(WORDS)

    @property
    def began(self) -> datetime.datetime | None:
        return self.latest.started if self.latest else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.latest is not None
        # A change that waits long after a list is of something else.
        longest_s = LATE_AFTER * self.latest.elapsed_s + LATE_AFTER_S
        is_moving = self.latest.state == RUNNING or (self.waiting > 0 and age_s <= longest_s)
        # An update that was struck while the list was added may be the last to reach its bar.
        ends = [task.task_ended_at - started for task in deliveries if task.task_ended_at]
        over_s = max([self.latest.elapsed_s, *(end_s for end_s in ends if end_s <= longest_s)])
        elapsed_s = age_s if is_moving else over_s
        return Timeline(started, elapsed_s, is_over=not is_moving, begin="list sent", end="added")

    def name(self, delivery: Delivery) -> str:
        return name_by_path(delivery, WORDS)

    def closing(self, stage: Stage) -> str:
        assert self.latest is not None
        totals, verified = self.latest.totals, self.verified
        parts = [f"{plural(totals.done, 'student')} added", *suffered(stage)]
        if self.latest.state == RUNNING or self.waiting:
            pending = f"{plural(self.waiting, 'change')} pending"
            return ", ".join([*parts, *self.balance().words, pending])
        if totals.failed:
            parts.append(f"{number(totals.failed)} unreadable")
        parts += self.balance().words
        if verified is None or verified.state != FINISHED:
            return ", ".join([*parts, "not verified yet"])
        return ", ".join([*parts, f"drift {len(verified.differences)}"])

    def balance(self) -> Balance:
        if self.latest is None:
            return Balance(is_moving=False)
        totals, requested = self.latest.totals, self.latest.requested
        return Balance(
            is_moving=self.latest.state == RUNNING,
            # The rows of a file are counted while it is read.
            asked=self.latest.expected if requested is None else requested,
            made_count=totals.done + totals.skipped,
            refused=totals.failed,
            drift=0 if self.verified is None else len(self.verified.differences),
        )

    def cost(self) -> list[Cell]:
        return self.cells


def costs(read: Cost, count: int, saved: Mapping[str, Any] | None) -> list[Cell]:
    """Return the costs of reading the chart and of the visitor's last save."""
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
