"""Turns: of the folds of a table that a process runs, one works, one waits, the others end at once.

The fold that waits lists the table's updates once it has its turn, so it also takes the updates of
the folds that ended. Without memcached each commit of saves creates a task, and this makes
most of them free. If the process dies, the task of the waiting fold is delivered again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollforward.runtime.advisory_lock import pauses
from rollforward.runtime.clients import Clients

# Longer than a fold takes.
WAIT_S = 6.0


@dataclass
class _Turn:
    """The turn of one table."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: threading.Lock = field(default_factory=threading.Lock)


class FoldTurns:
    """The turns of the tables of a process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    @classmethod
    def of(cls, clients: Clients) -> FoldTurns:
        """Return the turns of this process."""
        return clients.process_state.get_or_create("views:turns", cls)

    @contextmanager
    def take(self, clients: Clients, table: str, leave: Callable[[], None]) -> Iterator[bool]:
        """Wait for the turn of a table, and have it while the block runs.

        Args:
            leave: Called before a fold ends because another one waits. It takes back what tells
                saves that this fold is to come. If none waits any more after that, it stays.

        Yields:
            Whether to fold; False: another fold waits already, and lists the same updates.
        """
        with self._guard:
            turn = self._turns.setdefault(table, _Turn())
        if not turn.waiting.acquire(blocking=False):
            leave()
            if not turn.waiting.acquire(blocking=False):
                yield False
                return
        try:
            has_turn = _wait(clients, turn.lock)
        finally:
            turn.waiting.release()
        try:
            yield True
        finally:
            if has_turn:
                turn.lock.release()


def _wait(clients: Clients, lock: threading.Lock) -> bool:
    """Take a lock; go ahead without it after some seconds, since it only avoids contention."""
    if lock.acquire(blocking=False):
        return True
    for pause_s in pauses(WAIT_S):
        clients.clock.sleep(pause_s)
        if lock.acquire(blocking=False):
            return True
    return False
