"""The stage of a sum: its last load, and the incidents of its writers and folds."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage
from handlers.shared.formatting import duration, number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, flushed, moment_of, suffered
from handlers.sums.charts import ms_of
from pipelines.sums.reconciliation import Reconciliation

WRITERS, FOLDS = "/tasks/sums/", "/tasks/fork-join/sums/"


@dataclass(frozen=True)
class SumStage(DemoStage):
    """The last load of a sum, until its last item was folded; `reads`: reads of the page so far."""

    reconciliation: Reconciliation
    reads: int

    path = "/tasks/"
    paths = (WRITERS, FOLDS)

    @property
    def began(self) -> datetime.datetime | None:
        load = self.reconciliation.load.load
        return moment_of(load.started_ms) if load else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        is_moving = self.reconciliation.is_moving
        elapsed_s = age_s if is_moving else self._lasted_s()
        return Timeline(started, elapsed_s, not is_moving, begin="started", end="all folded")

    def _lasted_s(self) -> float:
        """Return how long a load lasted, until its last item was folded."""
        writers, load = self.reconciliation.load.writers, self.reconciliation.load.load
        assert load is not None
        steps = [step[1] for writer in writers for step in writer.steps or []]
        last_ms = max(steps, default=load.seconds * 1000)
        batches = [
            (ms_of(batch["opened"]) - load.started_ms, ms_of(batch["folded"]) - load.started_ms)
            for batch in self.reconciliation.status.recent
        ]
        # A batch that was opened after the last step is of something else.
        ends = [folded for opened, folded in batches if opened <= last_ms]
        return float(max([last_ms, *ends])) / 1000

    def name(self, delivery: Delivery) -> str:
        body: Any = delivery.body or {}
        if delivery.path.startswith(WRITERS) and "writer" in body:
            return f"writer {int(body['writer']) + 1}"
        return "a writer's start" if delivery.path.startswith(WRITERS) else "a fold"

    def closing(self, stage: Stage) -> str:
        parts = [plural(self.reconciliation.load.accepted.items, "item")]
        return ", ".join([*parts, *suffered(stage), *flushed(stage), *self.balance().words])

    def balance(self) -> Balance:
        both, load = self.reconciliation, self.reconciliation.load
        expected = load.load.items if load.load else 0
        return Balance(
            is_moving=load.is_moving,
            asked=expected if load.load else None,
            made_count=load.accepted.items,
            earlier=both.accepted.items - load.accepted.items,
            found_count=both.found - both.status.waiting,
            in_flight=both.status.waiting,
            # A step that died may have inserted items that its writer has not recorded.
            unconfirmed=0 if load.is_over else max(0, expected - load.accepted.items),
        )

    def cost(self) -> list[Cell]:
        status, load = self.reconciliation.status, self.reconciliation.load
        if load.load is None:
            return []
        per_write = number(status.folded.items / status.batches, 1) if status.batches else "–"
        items = load.accepted.items
        return [
            Cell("Items per write", per_write, "1 without batches"),
            Cell("An insert", _time(load.p50_ms), f"median; p95 {_time(load.p95_ms)}"),
            Cell(
                "Writes per item",
                number(load.writes / items, 1) if items else "–",
                "a pack and a receipt",
            ),
            Cell("Repeated", number(load.repeats), "discarded as duplicates"),
            Cell("This page", plural(self.reads, "read"), "however many items"),
        ]


def _time(ms: float | None) -> str:
    return duration(None if ms is None else ms / 1000)
