"""The protocol with a part of it left out or turned round: what the schedules have to notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollforward.streams import coordinator, sweep
from rollforward.streams.exchange import outgoing, pulling
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.execution import bundle_runner
from rollforward.streams.graph.environment import Environment
from rollforward.streams.inspection.dead_letters import replay
from rollforward.streams.model.key_state import SlabBody
from rollforward.streams.storage import dedup, state_store
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Pause,
    Read,
    Scan,
    ScanKeys,
    ScanKeysMany,
    Snapshot,
)
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    INTERVAL,
    LATE,
    ON_TIME,
    SLAB,
    SOURCE,
    Interval,
    Slab,
)
from rollforward.streams.watermarks import cut, cut_reader
from rollforward.streams.workers import worker
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.scenarios import full_pipeline
from tests.rollforward.streams.scenarios.full_pipeline import Mixed
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.schedules import Schedule
from tests.rollforward.streams.simulator.store import Steps, answered

CALM = Chances(0, 0, 0.01, 0, 0, 0, purge=0)


def calm_without_sweep(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Nothing is left out: without faults but delays, no wake is lost, so none needs a sweep."""
    no_sweep(schedule, patch)
    schedule.simulation.chances = CALM


def no_sweep(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Neither a tick nor the sweep wakes what has work and no worker."""
    schedule.simulation.sweeps = False
    patch.setattr(cut.Cut, "to_wake", lambda cut, environment, now_ms: cut.due_only(now_ms))
    patch.setattr(cut.Cut, "due_only", _due_only, raising=False)


def _due_only(cut: Any, now_ms: int) -> list[tuple[str, int]]:
    return [
        place
        for place, interval in cut.intervals.items()
        if interval.due <= cut.inputs[place[0]] and not interval.is_leased(now_ms)
    ]


def same_generation(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Who takes an interval does not raise its generation."""

    class Kept(Worker):
        def commit(self, commit: Commit, interval: Interval) -> Steps:
            return (yield from super().commit(commit, interval._replace(gen=self.interval.gen)))

    calm_without_sweep(schedule, patch)
    schedule.simulation.worker = Kept


def scan_before_raise(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """The inbox is looked at before the generation rises, and not again."""

    class EarlyScan(Worker):
        chunks: Any = ()

        def acquire(self) -> Steps:
            inbox = self.names.inbox(self.name, self.lo)
            self.chunks = yield Scan(CHUNK, inbox, f"{inbox}2", 20)
            return (yield from super().acquire())

        def step(self) -> Steps:
            return (yield from answered(super().step(), self._answer))

        def _answer(self, call: Any) -> Iterator[Any]:
            yield from ()
            if not isinstance(call, Scan):
                return None
            chunks, self.chunks = self.chunks, ()
            return (chunks,)

        def release(self) -> Steps:
            yield from self._release()
            return True

    calm_without_sweep(schedule, patch)
    schedule.simulation.worker = EarlyScan


def no_last_look(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Who has given an interval up does not look into its inbox once more."""

    class Hasty(Worker):
        def release(self) -> Steps:
            yield from self._release()
            return True

    calm_without_sweep(schedule, patch)
    schedule.simulation.worker = Hasty


def hands_on_to_nobody(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Who gives way, or has run for long, wakes nobody who goes on."""

    class Silent(Worker):
        def _yield_interval(self) -> Steps:
            if self.interval.owner:
                yield from self._release()

    calm_without_sweep(schedule, patch)
    schedule.simulation.worker = Silent


def forgotten_ring(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """The ring that a push has put off, for its readers are at work, is never rung."""
    calm_without_sweep(schedule, patch)
    real = schedule.simulation.environment
    patch.setattr(
        schedule.simulation,
        "environment",
        lambda machine: replace(real(machine), run_in_background=lambda steps: None),
    )


def no_fence(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """No write names a version."""
    schedule.simulation.store.unguarded = frozenset([INTERVAL, SLAB, CHUNK, "StreamState"])


def unguarded_lease(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """The rows of states are guarded, the interval is not."""
    schedule.simulation.store.unguarded = frozenset([INTERVAL])


def unguarded_take(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """What is taken out of an inbox is deleted whether it is still there or not."""

    class Careless(Worker):
        def commit(self, commit: Commit, interval: Interval) -> Steps:
            commit.deletes[:] = [(key, None) for key, _ in commit.deletes]
            return (yield from super().commit(commit, interval))

    schedule.simulation.worker = Careless


def two_commits(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """States first, then what was consumed and produced."""

    class Torn(Worker):
        def commit(self, commit: Commit, interval: Interval) -> Steps:
            first = Commit(
                [each for each in commit.puts if each[0].kind == SLAB],
                [each for each in commit.inserts if each[0].kind == SLAB],
            )
            if first.puts or first.inserts:
                try:
                    versions = yield first
                except Exception:
                    yield from self._reload()
                    return False
                self.store.committed(first, versions)
                commit.puts = [each for each in commit.puts if each not in first.puts]
                commit.inserts = [each for each in commit.inserts if each not in first.inserts]
            return (yield from super().commit(commit, interval))

    schedule.simulation.worker = Torn


def used_values(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """A batch that is run again has the values that its first run has changed."""
    patch.setattr(
        bundle_runner._CarefulRunner, "_decoded_value", lambda self, source, argument: argument
    )


def never_gives_up(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """What nobody can work on is tried again and again."""
    patch.setattr(worker, "quarantine", lambda *args: None)


def no_dedup(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """What is pushed again counts again."""
    real = worker.gather
    patch.setattr(
        worker, "gather", lambda chunks, known, *how, **more: real(chunks, (), *how, **more)
    )


def downstream_first(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """A tick without snapshots reads the last computation first, and the sources last."""
    schedule.simulation.has_snapshots = False
    schedule.simulation.tick = lambda *args: _tick_by(_reversed, *args)


def timers_first(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """A tick without snapshots reads a computation's timers a moment before its inbox.

    Only a commit just between the two shows it: a fault would rather keep it from coming.
    """
    schedule.simulation.has_snapshots = False
    schedule.simulation.chances = CALM
    schedule.simulation.tick = lambda *args: _tick_by(None, *args)


def _tick_by(early: Any, environment: Environment, *why: str | int) -> Steps:
    known: dict[Any, Any] = {}

    def answer(call: Any) -> Iterator[Any]:
        if isinstance(call, Snapshot):
            known.clear()
            if early is not None:
                yield from early(environment, known)
            return None
        if isinstance(call, ScanKeysMany):
            if early is None:
                yield from _read_timers(environment, call.scans[0].low.split(":")[1], known)
                yield Pause(0.01)
                return None
            return ([known[each.low[:-20]] for each in call.scans],)
        key = call.keys[0] if isinstance(call, Read) else getattr(call, "low", "")[:-20]
        return (known[key],) if key in known else None

    return (yield from answered(coordinator.tick(environment, *why), answer))


def _read_timers(environment: Environment, name: str, known: dict[Any, Any]) -> Steps:
    keys = [environment.names.interval(name, lo) for lo in (0, 2**15)]
    if keys[0] not in known:
        known[keys[0]] = yield Read(keys)


def _reversed(environment: Environment, known: dict[Any, Any]) -> Steps:
    names = environment.names
    [head] = yield Read([names.head])
    for name in reversed(environment.pipeline.graph.order if head else []):
        for lo in (0, 2**15):
            low, high = names.inbox_range(name, lo, head.body.inputs.get(name, 0))
            known[low[:-20]] = yield ScanKeys(CHUNK, low, high)
        yield from _read_timers(environment, name, known)


def no_marks(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Late records travel with those in time, and inboxes are read from the watermark on."""
    patch.setattr(outgoing, "LATE", ON_TIME)


def late_first(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Late chunks are taken before those in time."""

    class LateFirst(Worker):
        def step(self) -> Steps:
            return (yield from answered(super().step(), self._answer))

        def _answer(self, call: Any) -> Iterator[Any]:
            if not isinstance(call, Scan):
                return None
            late = f"{self.names.inbox(self.name, self.lo)}{LATE}"
            first = yield Scan(CHUNK, late, call.high, call.limit)
            then = yield Scan(CHUNK, call.low, late, call.limit)
            return ([*first, *then][: call.limit],)

    schedule.simulation.worker = LateFirst


def free_return(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """A process that was left out goes on from its own watermark."""
    real = cut_reader._add_source

    def unmarked(environment: Any, cut: Any, stream: str, rows: Any) -> None:
        real(environment, cut, stream, rows)
        cut.idle_puts.clear()

    patch.setattr(cut_reader, "_add_source", unmarked)


def cut_answers(schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """A part of the store's answer to a query is taken for the whole."""
    store = schedule.simulation.store
    patch.setattr(store, "first_names", lambda *query: store.ask(*query)[0])


# Of what only `Mixed` has


def no_wall_hold(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """A timer of the clock does not hold the watermark back."""
    real = state_store.summary

    def unheld(lo: int, body: SlabBody) -> Slab:
        keys = {
            key: state._replace(
                timers={
                    tag: timer._replace(is_late=timer.is_late or timer.is_processing_time)
                    for tag, timer in state.timers.items()
                }
            )
            for key, state in body.keys.items()
        }
        return real(lo, SlabBody(keys, body.large))

    patch.setattr(state_store, "summary", unheld)


def short_horizon(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """Ids are forgotten by the next commit that brings some."""
    patch.setattr(dedup.KnownIds, "_current", lambda self, interval, now_ms: [])


def torn_pull(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """The records of a pull source are committed first, then its position."""

    def answer(call: Any) -> Iterator[Any]:
        if isinstance(call, Commit) and call.puts and call.puts[0][0].kind == SOURCE:
            yield Commit(inserts=call.inserts)
            return ((yield Commit(puts=call.puts)),)
        return None

    schedule.simulation.pull = lambda environment, stream: answered(
        pull(environment, stream), answer
    )


def deaf_pull(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """Who finds that somebody else has read a source takes it that they go on with it.

    And the sweep does not look after it, which would make up for that.
    """
    patch.setattr(sweep, "has_doubled", lambda minutes: False)
    patch.setattr(pulling, "MAX_PULLED", 1)  # The more commits, the more of them fail.

    def trusting(environment: Environment, stream: str) -> Steps:
        try:
            return (yield from pull(environment, stream))
        except ChangedError:
            return False

    schedule.simulation.pull = trusting


def torn_replay(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """A dead letter is put back first, and deleted then."""

    def answer(call: Any) -> Iterator[Any]:
        if isinstance(call, Commit) and call.deletes and call.deletes[0][0].kind == DEAD:
            yield Commit(inserts=call.inserts)
            return ((yield Commit(deletes=call.deletes)),)
        return None

    patch.setattr(full_pipeline, "replay", lambda *args: answered(replay(*args), answer))


def one_position(schedule: Mixed, patch: pytest.MonkeyPatch) -> None:
    """All partitions go on from the position of one."""
    real = pulling._Gathered.__post_init__
    positions: dict[int, Any] = {}

    def begin(self: Any) -> None:
        real(self)
        self.position = positions.setdefault(self.row.body.seq, self.position)

    patch.setattr(pulling._Gathered, "__post_init__", begin)


OF_PARTED = (one_position,)
OF_BUSY = (timers_first,)
OF_STAGES = (
    no_sweep,
    same_generation,
    scan_before_raise,
    no_last_look,
    hands_on_to_nobody,
    forgotten_ring,
    no_fence,
    unguarded_lease,
    unguarded_take,
    two_commits,
    used_values,
    never_gives_up,
    no_dedup,
    downstream_first,
    no_marks,
    late_first,
    free_return,
    cut_answers,
)
OF_MIXED = (no_wall_hold, short_horizon, torn_pull, deaf_pull, torn_replay)
