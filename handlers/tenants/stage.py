"""The stage of a rush: its tenants' tasks, and the incidents of their deliveries."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage, name_by_path
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from pipelines.tenants.progress import RushProgress, reads_of

LANES, WORK = "/tasks/lanes/tenants", "/tasks/tenants/work"
WORDS = {"/tasks/tenants/flood": "the flood"}


@dataclass(frozen=True)
class TenantsStage(DemoStage):
    """A rush; None: there is none."""

    rush: RushProgress | None

    path = "tenants"
    paths = (LANES, WORK, *WORDS)

    @property
    def text(self) -> str:
        return self.rush.id if self.rush else ""

    @property
    def began(self) -> datetime.datetime | None:
        return self.rush.created if self.rush else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.rush is not None
        return timeline(self.rush, started)

    def name(self, delivery: Delivery) -> str:
        body = delivery.body or {}
        if delivery.path.startswith(WORK):
            return f"task {int(body.get('number', 0)) + 1} of {body.get('tenant', '?')}"
        if delivery.path.startswith(LANES):
            return f"a turn of {str(body.get('lane_id', '?'))[-1]}"
        return name_by_path(delivery, WORDS)

    def closing(self, stage: Stage) -> str:
        assert self.rush is not None
        rush = self.rush
        parts = [f"{number(rush.done)} of {plural(rush.asked, 'task')} done", *suffered(stage)]
        if rush.dead:
            parts.append(f"{number(rush.dead)} dead")
        parts.append(f"{number(rush.repeats)} redelivered")
        parts += books_of(rush).words
        waited = rush.longest_s
        return ", ".join(parts) + (
            f". Longest wait behind the flood: {duration(waited)}." if waited is not None else "."
        )

    def balance(self) -> Balance | None:
        return books_of(self.rush) if self.rush else None

    def cost(self) -> list[Cell]:
        if self.rush is None:
            return []
        rush = self.rush
        per_s = rush.done / rush.elapsed_s if rush.elapsed_s > 0 else 0.0
        return [
            Cell("Tasks a second", number(per_s), "four deliveries at a time"),
            Cell("Redelivered", number(rush.repeats), "noted once", rush.repeats > 0),
            Cell("This page", plural(reads_of(rush), "read"), "however long the flood"),
        ]


def books_of(rush: RushProgress) -> Balance:
    """Return the books of a rush; in one queue nothing counts the tasks that wait."""
    return Balance(
        is_moving=rush.is_moving,
        asked=rush.asked,
        made_count=rush.asked - rush.unsent,
        found_count=rush.done + rush.dead,
        in_flight=rush.waiting,
        missing_count=rush.missing,
        doubled=sum(max(0, line.done + line.dead - line.asked) for line in rush.lines),
    )


def timeline(rush: RushProgress, started: float) -> Timeline:
    """Return the time of a rush, from a beginning in seconds since 1970."""
    return Timeline(
        started,
        rush.elapsed_s,
        is_over=not rush.is_moving,
        begin="flooded",
        end="all done" if rush.is_over else "unfinished",
        is_complete=rush.is_over,
    )
