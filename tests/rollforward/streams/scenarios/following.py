"""Ticks that follow records by the notes of senders, each beside a full cut of the same moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rollforward.streams import coordinator
from rollforward.streams.exchange import ingest_attempt, sent
from rollforward.streams.graph.environment import Environment
from rollforward.streams.storage.remote_calls import Read, ScanKeysMany, Snapshot
from rollforward.streams.watermarks import cut_reader
from rollforward.streams.watermarks import following as following_
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.workers import lease
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Steps, Violation, answered

# What a following cut must know of an interval: all but its lease and its load.
KNOWN = (
    "hold", "due", "processing_due", "timers", "records", "late", "dead", "repeated", "fired",
    "produced",
)  # fmt: skip


@contextmanager
def following(schedule: Any, *, old_machine: bool = False) -> Iterator[Counter[str]]:
    """Let all commits of a schedule note where they send, and judge each cut of its ticks.

    Args:
        old_machine: One machine has code that notes nothing.

    Yields:
        How many cuts have followed, and how many were full.
    """
    simulation: Simulation = schedule.simulation
    for each in (simulation, getattr(schedule, "reader", simulation)):
        each.has_snapshots, each.tears = True, False
        each.config = replace(each.config, follow_from=0)
    counts: Counter[str] = Counter()
    read_changes, with_sent = cut_reader.read_changes, sent.with_sent

    def counted(environment: Environment, cut: Any, view: Any, *others: Any) -> Steps:
        changes = yield from read_changes(environment, cut, view, *others)
        if view is not None:  # The process has ticked before.
            counts["full" if changes is None else "followed"] += 1
        return changes

    def noted(environment: Environment, head: Any, before: Any, after: Any, rows: Any) -> Any:
        if environment.caches is simulation.machines[1].caches:
            return after
        return sent.with_sent(environment, head, before, after, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_reader, "read_changes", counted)
        patch.setattr(
            following_, "_due_intervals", lambda view: []
        )  # It would hide what is missed.
        patch.setattr(coordinator, "read_cut", partial(judged, simulation, cut_reader.read_cut))
        for module in (ingest_attempt, lease):
            patch.setattr(module, "with_sent", noted if old_machine else _latest(with_sent))
        yield counts


def _latest(with_sent: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the module's one, which a broken variant may replace."""
    return lambda *args: sent.with_sent(*args)


def judged(
    simulation: Simulation, read_cut: Callable[..., Steps], environment: Environment
) -> Steps:
    """Read a cut, and compare it with a full one of the same moment.

    Raises:
        Violation: they differ.
    """
    moments: list[tuple[Any, int]] = []

    def note(call: Any) -> Generator[Any, Any, tuple[Any] | None]:
        if type(call) is not Snapshot:
            return None
        reply = yield call
        moments.append((reply[0], environment.now_ms()))
        return (reply,)

    cut = yield from answered(read_cut(environment), note)
    if cut is not None:
        moment, now_ms = moments[-1]
        alone = replace(environment, caches={}, now_ms=lambda: now_ms)
        full = _answered_at(simulation, read_cut(alone), moment)
        if (found := facts(cut)) != (truth := facts(full)):
            wrong = {
                name: (found[name], truth[name]) for name in truth if found[name] != truth[name]
            }
            raise Violation(f"a tick has read what is not there, or not what is: {wrong}")
    return cut


def _answered_at(simulation: Simulation, steps: Steps, moment: Any) -> Cut:
    """Run the reads of a cut at a moment."""
    store, reply = simulation.store, None
    while True:
        try:
            call = steps.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if type(call) is Snapshot:
            reply = moment, store.read(call.keys, moment)
        elif type(call) is Read:
            reply = store.read(call.keys, moment)
        else:
            assert type(call) is ScanKeysMany
            reply = [simulation.acts[type(scan)](scan) for scan in call.scans]


def facts(cut: Cut) -> dict[str, Any]:
    """Return what a tick does by a cut."""
    names = ("inputs", "lower_bounds", "sources", "percentile_watermarks", "backlogs", "paused",
             "pending", "filled", "idle", "retired", "published")  # fmt: skip
    intervals = {
        place: tuple(getattr(body, name) for name in KNOWN) for place, body in cut.intervals.items()
    }
    return {name: getattr(cut, name) for name in names} | {"intervals": intervals}
