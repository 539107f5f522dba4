"""Changes of a topology with a part of the protocol left out: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from rollforward.streams import Computation
from rollforward.streams.graph import plan
from rollforward.streams.model.records import FOREVER
from rollforward.streams.storage.remote_calls import Commit, StoredRow
from rollforward.streams.storage.schema import Head
from rollforward.streams.topology import changes, teardown
from rollforward.streams.watermarks import phases
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.planted import protocol


def calm(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """Nothing is left out: without faults, and late records, no wake needs the sweep."""
    protocol.calm_without_sweep(schedule, patch)
    for client in schedule.clients:
        client.luck = [0.5] * len(client.luck)
    schedule.simulation.machines[0].pipeline = None


def senders_are_not_waited_for(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """A computation has left when it is empty, whoever may send to it still."""
    for module in (phases, teardown):
        patch.setattr(module, "acknowledged_layout", lambda rows: FOREVER)


def silent_ones_stay(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """What is attached begins at a watermark without silent processes, who are not told so."""
    real = changes.published

    def published(environment: Any, cut: Any, **how: Any) -> tuple[Commit, Head]:
        return Commit(), real(environment, cut, **how)[1]

    patch.setattr(changes, "published", published)


def begins_at_what_others_have_read(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """What is attached begins at the watermark of who writes for it, not of what that writes."""
    real = changes.published

    def published(environment: Any, cut: Any, **how: Any) -> tuple[Commit, Head]:
        commit, head = real(environment, cut, **how)
        graph, inputs = cut.plan.graph, dict(head.inputs)
        for name in cut.inputs:
            if name not in cut.stored_head.inputs and graph.upstream[name]:
                inputs[name] = min(inputs[each] for each in graph.upstream[name])
        return commit, head._replace(inputs=inputs)

    patch.setattr(changes, "published", published)


def who_is_not_known_gets_nothing(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """Code sends to those readers that it knows."""

    def route(self: Any, stream: str, value: Any) -> Any:
        found = super(plan.ActiveGraph, self).route(stream, value)
        computations = self.computations
        known = {n for n in computations if not isinstance(computations[n], plan.MissingVersion)}
        return tuple(each for each in found if each.computation in known)

    patch.setattr(plan.ActiveGraph, "route", route)
    patch.setattr(plan.ActiveGraph, "check_readers", lambda self, stream: None)


def workers_keep_their_version(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """A worker runs the version that ran when it took its interval."""

    class Stubborn(Worker):
        def _apply_head(self, head: StoredRow, read_ms: float) -> None:
            before, is_owner = self.computation, bool(self.interval.owner)
            super()._apply_head(head, read_ms)
            if is_owner:
                self.computation = before

    schedule.simulation.worker = Stubborn


def states_have_no_version(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """Each state is read as one of the version that runs."""
    patch.setattr(Computation, "load", lambda self, text, version: self.codec.load(text))


def births_repeat(schedule: Any, patch: pytest.MonkeyPatch) -> None:
    """What is attached again has the inboxes and generations that it had before."""
    real = changes.with_intervals

    def with_intervals(environment: Any, head: Head, new: Iterable[Any], created_in: int) -> Any:
        return real(replace(environment, now_ms=lambda: 0), head, new)

    patch.setattr(changes, "with_intervals", with_intervals)


# What many schedules notice; the others are noticed by tests of their own.
VARIANTS = (
    begins_at_what_others_have_read,
    who_is_not_known_gets_nothing,
    states_have_no_version,
)
