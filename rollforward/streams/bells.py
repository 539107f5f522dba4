"""Bells: how a process wakes the readers of what it commits, commit after commit.

The first commit wakes its readers at once. While further ones follow, one ring every `ring_ms` is
for all of them: most find a worker at its interval anyway. What is owed when the commits end is
rung then. A process that dies before leaves it to the next tick, as between a commit and its ring.

Pushes are commits of many short runs, so they share a bell of their process. One that comes while
workers are known to be at all of its readers has them rung a little later, behind its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rollforward.streams.calls import Pause, Steps
from rollforward.streams.environment import Environment
from rollforward.streams.mail import ring


class Bell:
    """Wakes intervals, and the watermarks, now or a little later."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._owed: set[tuple[str, int]] = set()
        self._owes_tick = False
        self._rung_ms = -float(environment.pace.ring_ms)

    def owe(self, targets: Iterable[tuple[str, int]], *, tick: bool = False) -> None:
        """Note which intervals are to be woken; with `tick` the watermarks, too."""
        self._owed.update(targets)
        self._owes_tick |= tick

    def ring_in_time(self) -> Steps[None]:
        """Wake those that are owed it, unless the last ring was a moment ago."""
        since_ms = self._environment.elapsed_ms() - self._rung_ms
        if not 0 <= since_ms < self._environment.pace.ring_ms:
            yield from self.ring()

    def ring(self) -> Steps[None]:
        """Wake those that are owed it."""
        if self._owed or self._owes_tick:
            targets, tick = sorted(self._owed), self._owes_tick
            self._rung_ms = self._environment.elapsed_ms()
            yield from ring(self._environment, targets, tick=tick)
            self._owed.difference_update(targets)
            self._owes_tick = False


_SHARED = "the bell of all pushes"
_LONG_AGO = -1e15
_Targets = set[tuple[str, int]]


@dataclass
class _SharedBell:
    """What the pushes of a process owe to the readers of one pipeline."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    owed: _Targets = field(default_factory=set)
    busy: _Targets = field(default_factory=set)  # Where the last ring has found workers.
    rung_ms: float = _LONG_AGO
    due_ms: float = _LONG_AGO  # When the ring is due that has been put off.

    def put_off(
        self, targets: Collection[tuple[str, int]], now_ms: float, ring_ms: int
    ) -> float | None:
        """Owe a ring; return in how many ms it is to be rung; 0: somebody else does; None: now."""
        with self.lock:
            self.owed.update(targets)
            left_ms = self.rung_ms + ring_ms - now_ms
            if not 0 < left_ms <= ring_ms or not self.busy.issuperset(targets):
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


def ring_for_push(environment: Environment, targets: Collection[tuple[str, int]]) -> Steps[None]:
    """Wake the readers of a push and the watermarks: at once, unless all have workers."""
    bell: _SharedBell = environment.memories.setdefault(_SHARED, _SharedBell())
    wait_ms = bell.put_off(targets, environment.elapsed_ms(), environment.pace.ring_ms)
    if wait_ms is None or environment.later is None:
        yield from _ring_shared(environment, bell)
    elif wait_ms:
        environment.later(_ring_later(environment, bell, wait_ms))


def _ring_later(environment: Environment, bell: _SharedBell, wait_ms: float) -> Steps[None]:
    yield Pause(wait_ms / 1000)
    yield from _ring_shared(environment, bell)


def _ring_shared(environment: Environment, bell: _SharedBell) -> Steps[None]:
    """Wake who is owed it. If that fails what was let in stays in: the sweep wakes them, too."""
    targets, now_ms = bell.take(), environment.elapsed_ms()
    try:
        idle = yield from ring(environment, targets, tick=True)
    except Exception as error:
        environment.complain(f"{environment.pipeline.name} is woken by its sweep: {error}")
    else:
        bell.rung(targets, idle, now_ms)
