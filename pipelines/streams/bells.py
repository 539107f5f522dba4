"""Bells: how a process wakes the readers of what it commits, commit after commit.

The first commit wakes its readers at once. While further ones follow, one ring every `ring_ms` is
for all of them: most find a worker at its interval anyway. What is owed when the commits end is
rung then. A process that dies before leaves it to the next tick, as between a commit and its ring.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipelines.streams.calls import Steps
from pipelines.streams.environment import Environment
from pipelines.streams.mail import ring


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
