"""The stage of a run of numbers: its results, and the incidents of its deliveries."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from handlers.numbers.charts import times
from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage
from handlers.shared.formatting import number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from models.numbers import NumbersRun
from pipelines.numbers.probes import BATCH, PROBES
from pipelines.numbers.results import Finding, last_at_ms

MEASURING, CHAIN = "/tasks/continuations/measure-numbers", "/tasks/numbers/echo"
# What of what, and what both are: each is the quotient of two medians.
RATIOS = (
    ("Write : read", "put", "get", 1, "an entity of 1 kB"),
    ("Datastore : cache", "get", "memcached", 1, "reading 1 kB"),
    ("500 : at once", "put", "put-batch", BATCH, "one by one : together"),
    ("1 row : 20 rows", "contended", "sharded", 1, "with four writers"),
)


@dataclass(frozen=True)
class NumberStage(DemoStage):
    """The last run of the probes; None: there was none.

    Attributes:
        findings: A row for each probe.
        reads: Reads of the page so far.
    """

    run: NumbersRun | None
    findings: Sequence[Finding]
    reads: int
    is_moving: bool
    is_complete: bool

    path = "numbers"
    paths = (MEASURING, CHAIN)

    @property
    def began(self) -> datetime.datetime | None:
        return self.run.started if self.run else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.run is not None
        ended = last_at_ms(self.run) / 1000
        has_no_end = self.is_moving or ended < started
        return Timeline(
            started,
            age_s if has_no_end else ended - started,
            is_over=not self.is_moving,
            begin="started",
            end="all measured" if self.is_complete else "not finished",
            is_complete=self.is_complete,
        )

    def name(self, delivery: Delivery) -> str:
        body: Any = delivery.body or {}
        is_chain = delivery.path == CHAIN
        return f"task {body.get('number', 0)} of the chain" if is_chain else "the probes"

    def closing(self, stage: Stage) -> str:
        measured = sum(bool(finding.samples_ms or finding.note) for finding in self.findings)
        parts = [
            f"{measured} of {len(PROBES)} operations measured",
            plural(sum(len(finding.samples_ms) for finding in self.findings), "sample"),
            *suffered(stage),
        ]
        books = self.balance()
        remainder = books.words if books and books.not_attempted else []
        return ", ".join([*parts, *remainder])

    def balance(self) -> Balance | None:
        if self.run is None:
            return None
        refused = sum(bool(finding.note and not finding.samples_ms) for finding in self.findings)
        measured = sum(bool(finding.samples_ms) for finding in self.findings)
        return Balance(
            is_moving=self.is_moving, asked=len(PROBES), made_count=measured, refused=refused
        )

    def cost(self) -> list[Cell]:
        """Return ratios of the numbers, and the reads of this page."""
        medians = {finding.probe.name: finding.p50_ms for finding in self.findings}
        cells = []
        for label, one, other, share, purpose in RATIOS:
            above, below = medians.get(one), medians.get(other)
            ratio = share * above / below if above is not None and below else None
            cells.append(Cell(label, times(ratio), purpose))
        shown = f"{number(len(self.findings))} operations"
        return [*cells, Cell("This page", plural(self.reads, "read"), shown)]
