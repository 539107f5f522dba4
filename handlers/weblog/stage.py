"""The stage of the web log: its last run, and the incidents of its deliveries."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, flushed, suffered
from handlers.shared.stream_stage import delivery_name
from pipelines.weblog.progress import Progress

TASKS = "/tasks/streams/weblog/"
NAMES = {"pull": "the reading of the log"}


@dataclass(frozen=True)
class WeblogStage(DemoStage):
    """The last run of the web log; `reads`: reads of the page so far."""

    progress: Progress
    reads: int

    path = TASKS

    @property
    def began(self) -> datetime.datetime | None:
        return self.progress.started

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        is_over = not self.progress.is_moving
        elapsed_s = self.progress.elapsed_s
        return Timeline(started, elapsed_s, is_over, begin="started", end="all counted")

    def name(self, delivery: Delivery) -> str:
        return delivery_name(delivery, NAMES)

    def closing(self, stage: Stage) -> str:
        reader = self.progress.worst
        counted = reader.counted
        parts = [
            f"{plural(reader.received, 'record')} in = {number(counted.records)} in windows"
            f" + {number(counted.late)} late + {number(counted.dead)} dead"
            f" + {number(reader.waiting)} in flight",
            *suffered(stage),
            *flushed(stage),
        ]
        if self.progress.is_moving:
            return ", ".join(parts)
        if not reader.is_complete:
            parts.append(f"{reader.name} does not add up")
        parts.append(f"counted in {duration(self.progress.elapsed_s)}")
        return ", ".join([*parts, *self._books().words])

    def balance(self) -> Balance | None:
        return self._books() if self.began else None

    def _books(self) -> Balance:
        """Return the books of the run: its lines, and the counts of the shown reader."""
        run, reader = self.progress, self.progress.worst
        counted, results = reader.counted, reader.in_results
        books = Balance(
            is_moving=run.is_moving,
            asked=run.totals.requests + run.totals.bad,
            made_count=run.totals.requests,
            refused=run.totals.bad,
            found_count=counted.records + counted.late + counted.dead,
            in_flight=reader.waiting,
        )
        if results is None:
            return books
        written = Balance(is_moving=run.is_moving, earlier=counted.records, found_count=results)
        return replace(books, parts=(books, written))

    def cost(self) -> list[Cell]:
        if self.began is None:
            return []
        totals, elapsed_s = self.progress.totals, self.progress.elapsed_s
        written = Counter({part.name: part.counted.written for part in self.progress.parts})
        records = sum(part.counted.records for part in self.progress.parts)
        results = sum(written[name] for name in ("hits", "sessions", "error-rates", "top-paths"))
        rate = totals.requests / elapsed_s if elapsed_s else 0.0
        return [
            Cell("Records a second", number(rate), "from line to result"),
            Cell("Records", number(records), "of all computations"),
            Cell("Results", number(results), "hits, visits, rates, tops"),
            Cell("Unreadable", plural(totals.bad, "line"), "skipped; all others are read"),
            Cell("This page", plural(self.reads, "read"), "however long the log"),
        ]
