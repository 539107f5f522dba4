"""Weak productions with a part of the protocol left out: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.streams.exchange import ingest, inline
from rollforward.streams.exchange.inline import InlineRun
from rollforward.streams.execution import bundle_runner
from rollforward.streams.execution.bundle_runner import run_bundle
from rollforward.streams.model.bundle import Target
from rollforward.streams.storage.inbox import inputs_of
from rollforward.streams.storage.remote_calls import Attempt, Commit
from rollforward.streams.storage.schema import CHUNK, InboxRecord
from rollforward.streams.watermarks import inbox_scan
from rollforward.streams.workers import sink_worker
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.scenarios.weak import Weak
from tests.rollforward.streams.simulator import schedules
from tests.rollforward.streams.simulator.store import Steps, answered


def straggler_is_released(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """What a weak sink has not done in time is not put into its inbox."""
    patch.setattr(InlineRun, "spill", lambda self, handed: None)


def acked_before_done(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """What was given to a weak sink counts as done."""
    real = ingest.call_effects

    def trusting(environment: Any, inline: InlineRun) -> Steps:
        yield from real(environment, inline)
        return frozenset(inline.effects)

    patch.setattr(ingest, "call_effects", trusting)


def late_passes(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """Late records pass, too, and may overtake themselves, sent in time, in an inbox."""
    real = InlineRun.send

    def send(self: InlineRun, target: Target, letter: InboxRecord, *, late_at: int) -> None:
        stage = self._graph.computations[target.computation]
        if not late_at or target.computation not in self._weak or stage in (*_sinks(self),):
            real(self, target, letter, late_at=late_at)
            return
        inputs = inputs_of([letter], late_at=1)
        effects = run_bundle(stage, {}, inputs, watermark=0, now_ms=0, route=self._graph.route)
        if effects.failures:
            real(self, target, letter, late_at=1)
        for production in effects.productions:
            self.produce([production])

    patch.setattr(InlineRun, "send", send)
    schedule.client.luck = [0.1] * len(schedule.client.luck)  # Many come late.


def _sinks(inline: InlineRun) -> Iterator[Any]:
    yield from inline._environment.pipeline.sinks


def results_have_no_names(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """What follows from a record with an id has none."""
    patch.setattr(bundle_runner._BundleRunner, "_output_id", lambda self: "")


def results_follow(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """A worker takes records out first, and then commits what came of them behind weak stages."""

    class Torn(Worker):
        def run(self) -> Steps:
            return (yield from answered(super().run(), _chunks_last))

    schedule.simulation.worker = Torn


def released_before_durable(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """A source goes on first, and then commits what came of its records behind weak stages."""
    real = schedules.ingest
    patch.setattr(schedules, "ingest", lambda *args: answered(real(*args), _chunks_last))


def _chunks_last(call: Any) -> Iterator[Any]:
    """Make a commit in two: the chunks that it inserts come last."""
    if not isinstance(call, Commit) or call.delivery is not None:
        return None
    taken = {key.name.split(":")[1] for key, _ in call.deletes if key.kind == CHUNK}
    chunks = [each for each in call.inserts if each[0].kind == CHUNK]
    if not chunks or any(key.name.split(":")[1] in taken for key, _ in chunks):
        return None  # Nothing is written, or it is forwarded.
    rest = [each for each in call.inserts if each[0].kind != CHUNK]
    versions = yield Commit(puts=call.puts, inserts=rest, deletes=call.deletes)
    return ([*versions, *(yield Commit(inserts=chunks))],)


def weak_inbox_unseen(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """A tick takes it that nothing waits for a weak computation: it keeps nothing."""
    real, names = inbox_scan.inboxes_of, schedule.simulation.pipeline.graph.weak
    patch.setattr(
        inbox_scan, "inboxes_of", lambda head, name: [] if name in names else real(head, name)
    )


def failed_are_dropped(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """What a hook raises at on its way through is left out."""
    real = inline.run_bundle

    def quiet(*args: Any, **more: Any) -> Any:
        effects = real(*args, **more)
        effects.failures.clear()
        return effects

    patch.setattr(inline, "run_bundle", quiet)


def durable_by_another_name(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """A record that a weak sink gets from its inbox is named by its place there."""
    real = sink_worker._records
    strong = SimpleNamespace(weak=False)
    patch.setattr(sink_worker, "_records", lambda bundle, sink: real(bundle, strong))


def attempts_are_forgotten(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """Each attempt of a source to pass records is its first one."""
    schedule.simulation.acts[Attempt] = lambda call: 1


def nobody_is_suspected(schedule: Weak, patch: pytest.MonkeyPatch) -> None:
    """Deaths count against whatever stands first in the inbox by then."""

    def suspect(self: Worker, *args: Any) -> Steps:
        return True
        yield

    patch.setattr(Worker, "_note_suspect", suspect)


VARIANTS = (
    straggler_is_released,
    acked_before_done,
    late_passes,
    results_have_no_names,
    results_follow,
    released_before_durable,
    weak_inbox_unseen,
    failed_are_dropped,
    durable_by_another_name,
)
