"""A thread that stores the buffer of its process periodically.

It starts with the first item to store and ends when the buffer is empty: an idle process has none.

If a process has a processor during requests alone, the last request in progress flushes, too
(rollforward/flask/requests_in_progress.py).

Lost on failure: the unflushed items of a killed process. A failed flush is retried after the next
period, and a process that receives SIGTERM flushes once more.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from google.api_core import exceptions as rpc_errors

from rollforward.runtime.clients import Clients
from rollforward.runtime.process.bounded_wait import BoundedWait
from rollforward.runtime.process.daemons import start_daemon

log = logging.getLogger(__name__)

# The period after SIGTERM.
LAST_PERIOD_S = 0.01


class Buffer(Protocol):
    """Items that a process has gathered and not stored yet."""

    def is_empty(self) -> bool:
        """Return whether everything is stored."""
        ...

    def store(self) -> None:
        """Store the items. Those that the service does not accept stay for the next call."""
        ...


class PeriodicFlusher:
    """Stores a buffer every `period_s` seconds, from one thread at a time."""

    def __init__(self, clients: Clients, owner: str, buffer: Buffer, period_s: float) -> None:
        self._clients = clients
        self._owner = owner
        self._buffer = buffer
        self._period_s = period_s
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._is_awake = False
        self._is_hurried = threading.Event()  # The next flush comes before its time.
        self._stored = BoundedWait(self._lock)
        self._has_ended = False
        clients.process_state.on_shutdown(owner, self._end)
        clients.process_state.on_last_request(owner, self._finish)

    def wake(self) -> None:
        """Schedule a flush within a period; call it after adding to the buffer."""
        with self._lock:
            if self._is_awake:
                return
            self._is_awake = start_daemon(self._run, self._owner)

    def flush(self) -> None:
        """Store the buffer now."""
        with self._flushing:  # One thread retries a failed flush.
            self._buffer.store()

    def _run(self) -> None:
        while True:
            self._is_hurried.wait(LAST_PERIOD_S if self._has_ended else self._period_s)
            self._is_hurried.clear()
            try:
                with self._clients.context():
                    self.flush()
            except rpc_errors.GoogleAPICallError as error:
                log.warning("%s: a flush failed and is retried: %s", self._owner, error)
            except Exception:
                log.exception("%s: a flush failed and is retried", self._owner)
            with self._lock:
                if self._buffer.is_empty():
                    self._is_awake = False
                    self._stored.notify()
                    return

    def _finish(self, timeout_s: float) -> None:
        """Let the thread flush now, and wait for it."""
        with self._lock:
            if self._is_awake:
                self._is_hurried.set()
                self._stored.wait(lambda: not self._is_awake, timeout_s)

    def _end(self) -> None:
        self._has_ended = True
        self._is_hurried.set()
        with self._clients.context():
            self.flush()
