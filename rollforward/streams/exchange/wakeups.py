"""Bells: how a process wakes the readers of what it commits, commit after commit.

The first commit wakes its readers at once. While further ones follow, one ring every `wakeup_ms` is
for all of them: most find a worker at its interval anyway. What is owed when the commits end is
rung then. A process that dies before leaves it to the next tick, as between a commit and its ring.

Pushes are commits of many short runs, so they share a bell of their process. One that comes while
workers are known to be at all of its readers has them rung a little later, behind its answer.
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


class WakeupBatcher:
    """Wakes intervals, and the watermarks, now or a little later."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._owed: set[tuple[str, int]] = set()
        self._owes_tick = False
        self._rung_ms = -float(environment.config.wakeup_ms)

    def schedule(self, targets: Iterable[tuple[str, int]], *, tick: bool = False) -> None:
        """Note which intervals are to be woken; with `tick` the watermarks, too."""
        self._owed.update(targets)
        self._owes_tick |= tick

    def flush_if_due(self) -> Steps[None]:
        """Wake those that are owed it, unless the last ring was a moment ago."""
        since_ms = self._environment.elapsed_ms() - self._rung_ms
        if not 0 <= since_ms < self._environment.config.wakeup_ms:
            yield from self.flush()

    def flush(self) -> Steps[None]:
        """Wake those that are owed it."""
        if self._owed or self._owes_tick:
            targets, tick = sorted(self._owed), self._owes_tick
            self._rung_ms = self._environment.elapsed_ms()
            yield from wake_intervals(self._environment, targets, tick=tick)
            self._owed.difference_update(targets)
            self._owes_tick = False


_SHARED = "the bell of all pushes"
_LONG_AGO = -1e15
_Targets = set[tuple[str, int]]


@dataclass
class _SharedWakeups:
    """What the pushes of a process owe to the readers of one pipeline."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    owed: _Targets = field(default_factory=set)
    busy: _Targets = field(default_factory=set)  # Where the last ring has found workers.
    rung_ms: float = _LONG_AGO
    due_ms: float = _LONG_AGO  # When the ring is due that has been put off.

    def defer(
        self, targets: Collection[tuple[str, int]], now_ms: float, wakeup_ms: int
    ) -> float | None:
        """Owe a ring; return in how many ms it is to be rung; 0: somebody else does; None: now."""
        with self.lock:
            self.owed.update(targets)
            left_ms = self.rung_ms + wakeup_ms - now_ms
            if not 0 < left_ms <= wakeup_ms or not self.busy.issuperset(targets):
                return None
            if now_ms < self.due_ms:
                return 0
            self.due_ms = now_ms + left_ms
            return left_ms

    def take(self) -> list[tuple[str, int]]:
        """Return what is owed, to be rung."""
        with self.lock:
            owed, self.owed, self.due_ms = self.owed, set(), _LONG_AGO
        return sorted(owed)

    def rung(self, targets: Collection[tuple[str, int]], idle: _Targets, now_ms: float) -> None:
        """Note what was rung, and where nobody was."""
        with self.lock:
            self.busy, self.rung_ms = set(targets) - idle, now_ms


def wake_for_push(environment: Environment, targets: Collection[tuple[str, int]]) -> Steps[None]:
    """Wake the readers of a push and the watermarks: at once, unless all have workers."""
    wakeups: _SharedWakeups = environment.caches.setdefault(_SHARED, _SharedWakeups())
    wait_ms = wakeups.defer(targets, environment.elapsed_ms(), environment.config.wakeup_ms)
    if wait_ms is None or environment.run_in_background is None:
        yield from _flush_shared(environment, wakeups)
    elif wait_ms:
        environment.run_in_background(_flush_later(environment, wakeups, wait_ms))


def _flush_later(environment: Environment, wakeups: _SharedWakeups, wait_ms: float) -> Steps[None]:
    yield Pause(wait_ms / 1000)
    yield from _flush_shared(environment, wakeups)


def _flush_shared(environment: Environment, wakeups: _SharedWakeups) -> Steps[None]:
    """Wake who is owed it. If that fails what was let in stays in: the sweep wakes them, too."""
    targets, now_ms = wakeups.take(), environment.elapsed_ms()
    try:
        idle = yield from wake_intervals(environment, targets, tick=True)
    except Exception as error:
        environment.warn(f"{environment.pipeline.name} is woken by its sweep: {error}")
    else:
        wakeups.rung(targets, idle, now_ms)


MAX_TICK_S = 1.0


# Cloud Tasks takes a task for up to 30 days ahead; a timer for later is found by the sweep.
MAX_DELAY_S = 29 * 24 * 3600.0


def wake_intervals(
    environment: Environment, destinations: Iterable[tuple[str, int]], *, tick: bool = False
) -> Steps[set[tuple[str, int]]]:
    """Wake intervals that nobody works on; with `tick` have the watermarks looked at, too.

    A task that this process has created for the same version of a row exists: no call asks for it.

    Returns:
        The intervals that nobody was working on.
    """
    targets = list(destinations)
    if not targets and not tick:
        return set()
    names, now_ms = environment.names, environment.now_ms()
    keys = [names.interval(computation, lo) for computation, lo in targets]
    found = yield Read([*keys, names.head] if tick else keys)
    wakes = {
        (key, row.version): wake(environment, target, row.body.gen)
        for key, target, row in zip(keys, targets, found, strict=False)
        if row is not None and not environment.is_worked_on(row.body, now_ms)
    }
    if tick and found[-1] is not None:
        head = found[-1]
        wakes[names.head, head.version] = tick_wake(environment, head.body._replace(idle_ticks=0))
    yield from _create(environment, wakes)
    rows = list(zip(targets, found, strict=False))
    gone = [target for target, row in rows if row is None]
    if gone:
        yield from _wake_successors(environment, gone)
    return {target for target, row in rows if row is None or not row.body.is_leased(now_ms)}


def _wake_successors(environment: Environment, gone: Iterable[tuple[str, int]]) -> Steps[None]:
    """Wake the intervals that have taken the place of others, by a merge."""
    [head] = yield Read([environment.names.head])
    # A computation that was detached has none.
    successors = {
        (name, interval_of(head.body, name, lo)) for name, lo in gone if name in head.body.intervals
    }
    yield from wake_intervals(environment, sorted(successors.difference(gone)))


def _create(environment: Environment, wakes: Mapping[tuple[Key, int], Wake]) -> Steps[None]:
    """Create tasks that wake rows of a version, but not again for the same one."""
    caches = environment.caches
    new = {row: wake for row, wake in wakes.items() if caches.get(("woken", row[0])) != row[1]}
    if new:
        yield CreateTasks(list(new.values()))
        caches.update({("woken", key): version for key, version in new})


def wake(environment: Environment, target: tuple[str, int], gen: int, *why: str | int) -> Wake:
    """Return the task that wakes an interval, of one generation of it.

    Args:
        why: Makes it another task than the one that each sender asks for.
    """
    return Wake(target, (environment.pipeline.name, *target, gen, *why))


def schedule_wakeup(
    environment: Environment, target: tuple[str, int], processing_due: int
) -> Steps[None]:
    """Have an interval woken at a time of day, for its next timer of the clock."""
    if processing_due < NEVER:
        delay_s = max(0.0, (processing_due - environment.now_ms()) / 1000)
        name = (environment.pipeline.name, *target, "wall", processing_due)
        yield CreateTasks([Wake(target, name, min(delay_s, MAX_DELAY_S))])


def tick_wake(environment: Environment, head: Head) -> Wake:
    """Return the task of the next tick: ever later while nothing moves, up to a second."""
    delay_s = environment.config.tick_s * 2 ** min(head.idle_ticks, 10)
    return Wake(("", 0), (environment.pipeline.name, head.gen), min(delay_s, MAX_TICK_S))
