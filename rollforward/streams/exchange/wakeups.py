"""Wake-ups of the readers of a commit, batched over commit after commit.

The first commit wakes its readers at once. While further commits follow, one flush every
`wakeup_ms` serves all of them, since most readers have a worker anyway. The last flush comes when
the commits end. If the process dies before a flush, or between a
commit and its wake-up, the next tick wakes the readers.

Pushes are commits of many short runs, so they share one batch in their process. If workers are
known to be at all readers of a push, their wake-up is deferred until after the answer. A push that
a worker has joined owes only a tick of the watermarks, which is at most `tick_s` late.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.layout import interval_of
from rollforward.streams.storage.remote_calls import CreateTasks, Key, Pause, Read, Steps, Wake
from rollforward.streams.storage.schema import Head

MAX_TICK_S = 1.0
# Cloud Tasks schedules a task up to 30 days ahead; the sweep finds later timers.
MAX_DELAY_S = 29 * 24 * 3600.0


class WakeupBatcher:
    """Wakes intervals, and the coordinator, at once or a little later."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._targets: set[tuple[str, int]] = set()
        self._has_tick = False
        self._flushed_ms = -float(environment.config.wakeup_ms)

    def schedule(self, targets: Iterable[tuple[str, int]], *, tick: bool = False) -> None:
        """Schedule wake-ups of intervals; with `tick`, also a tick of the watermarks."""
        self._targets.update(targets)
        self._has_tick |= tick

    def flush_if_due(self) -> Steps[None]:
        """Wake the scheduled intervals, unless the last flush was a moment ago."""
        since_ms = self._environment.elapsed_ms() - self._flushed_ms
        if not 0 <= since_ms < self._environment.config.wakeup_ms:
            yield from self.flush()

    def flush(self) -> Steps[None]:
        """Wake the scheduled intervals."""
        if self._targets or self._has_tick:
            targets, tick = sorted(self._targets), self._has_tick
            self._flushed_ms = self._environment.elapsed_ms()
            yield from wake_intervals(self._environment, targets, tick=tick)
            self._targets.difference_update(targets)
            self._has_tick = False


_SHARED = "the wake-ups of all pushes"
_LONG_AGO = -1e15
_Targets = set[tuple[str, int]]


@dataclass
class _SharedWakeups:
    """Wake-ups that the pushes of a process owe to the readers of one pipeline."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    targets: _Targets = field(default_factory=set)
    busy: _Targets = field(default_factory=set)  # Intervals that had a worker at the last flush.
    flushed_ms: float = _LONG_AGO  # When intervals were woken last.
    ticked_ms: float = _LONG_AGO  # When a tick was last scheduled.
    due_ms: float = _LONG_AGO  # When the deferred flush is due.

    def defer(
        self, targets: Collection[tuple[str, int]], now_ms: float, period_ms: float
    ) -> float | None:
        """Add wake-ups; return when to flush. 0: another push will; None: now.

        Args:
            targets: The intervals; empty: only the watermarks.
        """
        with self.lock:
            self.targets.update(targets)
            wait_ms = (self.flushed_ms if targets else self.ticked_ms) + period_ms - now_ms
            if not 0 < wait_ms <= period_ms or not self.busy.issuperset(targets):
                return None
            if now_ms < self.due_ms <= now_ms + wait_ms:
                return 0
            self.due_ms = now_ms + wait_ms
            return self.due_ms

    def take(self) -> list[tuple[str, int]]:
        """Remove and return all targets, to be woken."""
        with self.lock:
            targets, self.targets, self.due_ms = self.targets, set(), _LONG_AGO
        return sorted(targets)

    def flushed(self, targets: Collection[tuple[str, int]], idle: _Targets, now_ms: float) -> None:
        """Note a flush, and which of its targets had no worker."""
        with self.lock:
            self.ticked_ms = now_ms
            if targets:
                self.busy, self.flushed_ms = set(targets) - idle, now_ms


def wake_for_push(
    environment: Environment, targets: Collection[tuple[str, int]], *, was_joined: bool = False
) -> Steps[None]:
    """Wake the readers of a push and the watermarks: at once, unless all have workers.

    Args:
        was_joined: A worker has joined the push; the targets are other readers.
    """
    config, now_ms = environment.config, environment.elapsed_ms()
    period_ms = 1000 * config.tick_s if was_joined and not targets else config.wakeup_ms
    wakeups: _SharedWakeups = environment.caches.setdefault(_SHARED, _SharedWakeups())
    due_ms = wakeups.defer(targets, now_ms, period_ms)
    if due_ms is None or environment.run_in_background is None:
        yield from _flush_shared(environment, wakeups)
    elif due_ms:
        environment.run_in_background(_flush_later(environment, wakeups, due_ms))


def _flush_later(environment: Environment, wakeups: _SharedWakeups, due_ms: float) -> Steps[None]:
    yield Pause(max(0.0, due_ms - environment.elapsed_ms()) / 1000)
    if wakeups.due_ms == due_ms:  # Else another flush came before it, or will.
        yield from _flush_shared(environment, wakeups)


def _flush_shared(environment: Environment, wakeups: _SharedWakeups) -> Steps[None]:
    """Wake all targets; if that fails, the records stay accepted and the sweep wakes readers."""
    targets, now_ms = wakeups.take(), environment.elapsed_ms()
    try:
        idle = yield from wake_intervals(environment, targets, tick=True)
    except Exception as error:
        environment.warn(f"{environment.pipeline.name} is woken by its sweep: {error}")
    else:
        wakeups.flushed(targets, idle, now_ms)


def wake_intervals(
    environment: Environment, destinations: Iterable[tuple[str, int]], *, tick: bool = False
) -> Steps[set[tuple[str, int]]]:
    """Wake intervals without a worker; with `tick`, schedule a tick of the watermarks, too.

    A task that this process created for the same version of a row is not created again.

    Returns:
        The intervals that had no worker.
    """
    targets = list(destinations)
    if not targets and not tick:
        return set()
    names, now_ms = environment.names, environment.now_ms()
    keys = [names.interval(computation, lo) for computation, lo in targets]
    rows = yield Read([*keys, names.head] if tick else keys)
    wakes = {
        (key, row.version): wake(environment, target, row.body.gen)
        for key, target, row in zip(keys, targets, rows, strict=False)
        if row is not None and not environment.is_worked_on(row.body, now_ms)
    }
    if tick and rows[-1] is not None:
        head = rows[-1]
        wakes[names.head, head.version] = tick_wake(environment, head.body._replace(idle_ticks=0))
    yield from _create(environment, wakes)
    intervals = list(zip(targets, rows, strict=False))
    deleted = [target for target, row in intervals if row is None]
    if deleted:
        yield from _wake_successors(environment, deleted)
    return {target for target, row in intervals if row is None or not row.body.is_leased(now_ms)}


def _wake_successors(environment: Environment, deleted: Iterable[tuple[str, int]]) -> Steps[None]:
    """Wake the intervals that replaced others in a merge."""
    [head] = yield Read([environment.names.head])
    # A detached computation has no intervals.
    successors = {
        (name, interval_of(head.body, name, lo))
        for name, lo in deleted
        if name in head.body.intervals
    }
    yield from wake_intervals(environment, sorted(successors.difference(deleted)))


def _create(environment: Environment, wakes: Mapping[tuple[Key, int], Wake]) -> Steps[None]:
    """Create the tasks that wake rows at a version, each once in this process."""
    caches = environment.caches
    fresh = {row: wake for row, wake in wakes.items() if caches.get(("woken", row[0])) != row[1]}
    if fresh:
        yield CreateTasks(list(fresh.values()))
        caches.update({("woken", key): version for key, version in fresh})


def wake(environment: Environment, target: tuple[str, int], gen: int, *suffix: str | int) -> Wake:
    """Return the task that wakes one generation of an interval.

    Args:
        suffix: Distinguishes the task from the one that every sender creates.
    """
    return Wake(target, (environment.pipeline.name, *target, gen, *suffix))


def schedule_wakeup(
    environment: Environment, target: tuple[str, int], processing_due: int
) -> Steps[None]:
    """Schedule the wake-up of an interval for its next processing-time timer."""
    if processing_due < NEVER:
        delay_s = max(0.0, (processing_due - environment.now_ms()) / 1000)
        name = (environment.pipeline.name, *target, "wall", processing_due)
        yield CreateTasks([Wake(target, name, min(delay_s, MAX_DELAY_S))])


def tick_wake(environment: Environment, head: Head) -> Wake:
    """Return the task of the next tick, with a delay that grows to a second while idle."""
    delay_s = environment.config.tick_s * 2 ** min(head.idle_ticks, 10)
    return Wake(("", 0), (environment.pipeline.name, head.gen), min(delay_s, MAX_TICK_S))
