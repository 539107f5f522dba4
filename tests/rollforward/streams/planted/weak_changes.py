"""Changes around weak computations with a part of the protocol left out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from rollforward.streams.exchange import inline, outgoing
from rollforward.streams.exchange.inline import InlineRun, PendingEffect
from rollforward.streams.execution import bundle_runner
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.model.bundle import derived_id
from rollforward.streams.model.sources import PushSource
from rollforward.streams.storage.layout import interval_of
from rollforward.streams.storage.schema import Head
from rollforward.streams.workers import sink_worker
from tests.rollforward.streams.planted import protocol
from tests.rollforward.streams.scenarios.weak_changes import WeakChanges
from tests.rollforward.streams.simulator.store import Violation


def calm(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """Nothing is left out: without faults, and late records, no wake needs the sweep."""
    protocol.calm_without_sweep(schedule, patch)  # type: ignore[arg-type]
    schedule.client.luck = [0.5] * len(schedule.client.luck)
    schedule.simulation.machines[0].pipeline = None


def handed_by_name(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """A record that one weak sink has acted on counts as done for all of them."""

    def spill(self: InlineRun, handed: Collection[PendingEffect]) -> None:
        done = {each.record for each in handed}
        real(self, {each for each in self.effects if each.record in done})

    real = InlineRun.spill
    patch.setattr(InlineRun, "spill", spill)


def places_of_all_streams(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """An output is named by its place among all that a hook has written."""
    schedule.simulation.tells = False  # So it shows sooner.

    def output_id(self: Any, stream: str) -> str:
        each = self._input
        if each is None or not each.id or not self.computation.weak:
            return ""
        self._hook_outputs[""] = place = self._hook_outputs.get("", 0) + 1
        return derived_id(each.stream, each.id, self.computation.name, place)

    patch.setattr(bundle_runner._BundleRunner, "_output_id", output_id)


def horizon_of_what_runs(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """Ids are forgotten when what they came through has left."""
    schedule.simulation.tells = False  # So it shows sooner.

    def dedup_ms(self: Declaration, computation: str) -> int:
        senders = self.graph.senders.get(computation, ())
        pushed = [each for each in self.sources.values() if isinstance(each, PushSource)]
        return 3_600_000 * any(each.stream in senders for each in pushed)

    patch.setattr(Declaration, "dedup_ms", dedup_ms)


def code_says_what_passes(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """Records pass through what the code declares, not through what runs."""
    real = InlineRun.__init__

    def begin(self: InlineRun, environment: Any, *args: Any, **more: Any) -> None:
        real(self, environment, *args, **more)
        self._graph = environment.pipeline.graph
        self._weak = self._graph.weak if self._weak else ()

    def interval(head: Head, computation: str, slot: int) -> int:
        if computation not in head.intervals:
            raise Violation(f"{computation} gets a record, and does not run")
        return interval_of(head, computation, slot)

    patch.setattr(InlineRun, "__init__", begin)
    patch.setattr(outgoing, "interval_of", interval)


def one_id_at_all_sinks(schedule: WeakChanges, patch: pytest.MonkeyPatch) -> None:
    """A record has the same id at all weak sinks."""
    for module in (inline, sink_worker):
        patch.setattr(module, "sink_id", lambda sink, stream, id_: derived_id(stream, id_))


# Each with the seed from which on it is searched, for the time's sake.
VARIANTS = (
    (handed_by_name, 0),
    (places_of_all_streams, 129),
    (horizon_of_what_runs, 2_340),
    (code_says_what_passes, 4_000),
    (one_id_at_all_sinks, 0),
)
