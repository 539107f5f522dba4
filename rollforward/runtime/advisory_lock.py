"""An advisory lock: callers of one name go one after the other, in all processes.

On a service that locks, transactions that read one row and then write it wait for each other until
one gives up. Concurrent updates of a row took 46 s, although each takes some milliseconds. The lock
only avoids contention; nothing depends on it. A caller goes ahead after 2 s, or as long as it asks
for, and at once if memcached is away. It may wait longer for a holder that shows progress, and so
has not died.

The lock is in memcached. In an app without memcached it is one of the instance's, among the
processes of a gunicorn (`runtime/process/processes.py`); other instances have their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from rollforward.runtime.cache import NoCache
from rollforward.runtime.clients import Clients

# Callers do not wait longer than this for the holder.
WAIT_S = 2.0
TTL_S = 10
# A holder shows progress no more often: most are done before, and need not call memcached for it.
PROGRESS_S = 0.25
MIN_PAUSE_S = 0.001
MAX_PAUSE_S = 0.02


class Turn:
    """A caller's turn: it holds the lock, or goes ahead without it.

    Attributes:
        is_beside: Whether another holder, which shows progress, was waited for in vain. A caller
            that can come later had better do so.
    """

    is_beside = False

    def show_progress(self) -> None:
        """Show that this holder gets on, so that others wait for it."""

    def end(self) -> None:
        """Release the lock, unless it is another's."""


class InstanceTurn(Turn):
    """A turn among the processes of this instance."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._unlock = partial(clients.processes.unlock, name)

    def end(self) -> None:
        self._unlock()


class MemcachedTurn(Turn):
    """A turn among all processes."""

    def __init__(self, clients: Clients, name: str, token: bytes, *, is_beside: bool) -> None:
        self.is_beside = is_beside
        self._clients = clients
        self._name = name
        self._token = token
        self._steps = 0
        self._shown = clients.clock.now()

    def show_progress(self) -> None:
        now_utc = self._clients.clock.now()
        if 0 <= (now_utc - self._shown).total_seconds() < PROGRESS_S:
            return
        self._shown, self._steps = now_utc, self._steps + 1
        if self._is_owner():
            value = b"%s.%d" % (self._token, self._steps)
            self._clients.cache.set(self._name, value, TTL_S)

    def end(self) -> None:
        if self._is_owner():
            self._clients.cache.delete(self._name)

    def _is_owner(self) -> bool:
        held = self._clients.cache.get(self._name)
        return held is not None and held.partition(b".")[0] == self._token


@contextlib.contextmanager
def advisory_lock(
    clients: Clients, name: str, *, wait_s: float = WAIT_S, max_wait_s: float | None = None
) -> Iterator[Turn]:
    """Hold the lock of a name while the block runs, or run it without the lock.

    Args:
        wait_s: How long to wait for a holder that shows no progress.
        max_wait_s: How long to wait in all; None: no longer than that.
    """
    if isinstance(clients.cache, NoCache):
        turn = _turn_on_instance(clients, name, wait_s)
    else:
        turn = _turn_of_all(clients, name, wait_s, wait_s if max_wait_s is None else max_wait_s)
    try:
        yield turn
    finally:
        turn.end()


def _turn_on_instance(clients: Clients, name: str, wait_s: float) -> Turn:
    for pause_s in pauses(wait_s):
        if clients.processes.try_lock(name):
            return InstanceTurn(clients, name)
        clients.clock.sleep(pause_s)
    return Turn()


def _turn_of_all(clients: Clients, name: str, wait_s: float, max_wait_s: float) -> Turn:
    token = clients.new_id().encode()
    is_beside = _wait(clients, name, token, wait_s, max_wait_s)
    return MemcachedTurn(clients, name, token, is_beside=is_beside)


def _wait(clients: Clients, name: str, token: bytes, wait_s: float, max_wait_s: float) -> bool:
    """Wait until a lock is taken, or until it is time to go ahead without it.

    Returns:
        Whether a holder that shows progress has it still.
    """
    began = changed = clients.clock.now()
    seen: bytes | None = None
    for pause_s in pauses(max_wait_s):
        held, now_utc = _take(clients, name, token), clients.clock.now()
        if held is None:
            return False
        if held != seen:
            seen, changed = held, now_utc
        # The calls take time, too; and a clock that was put back makes nobody wait.
        unchanged_s = (now_utc - changed).total_seconds()
        waited_s = (now_utc - began).total_seconds()
        if not 0 <= unchanged_s < wait_s:
            return False
        if not 0 <= waited_s < max_wait_s:
            break
        clients.clock.sleep(pause_s)
    return (clients.clock.now() - changed).total_seconds() < wait_s


def _take(clients: Clients, name: str, token: bytes) -> bytes | None:
    """Take a lock; return the holder's value, None: to go ahead, with it or without memcached."""
    if clients.cache.add(name, token, TTL_S):
        return None
    if (held := clients.cache.get(name)) is not None:
        return held
    # Its holder has just released it, or memcached does not answer.
    return None if clients.cache.add(name, token, TTL_S) else clients.cache.get(name)


def pauses(timeout_s: float) -> Iterator[float]:
    """Return growing pauses, `timeout_s` seconds in all."""
    pause_s, waited_s = MIN_PAUSE_S, 0.0
    while waited_s < timeout_s:
        yield pause_s
        waited_s += pause_s
        pause_s = min(MAX_PAUSE_S, pause_s * 1.5)
