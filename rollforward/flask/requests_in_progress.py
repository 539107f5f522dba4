"""Requests in progress: the last one waits for the background work of its process.

Cloud Run gives an instance a processor while a request is in progress, and next to none between
requests (request-based billing, its default). Background work after the last response would stop,
and continue with the next request. So the last request in progress waits for that work, with its
response ready. While there are others the processor stays, and none waits.

Lost on failure: time. The sweep creates the tasks of the outbox, and a process that receives
SIGTERM stores its sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rollforward.runtime.process.process_state import ProcessState

# Longer than the calls of a service that answers, and shorter than a visitor's patience.
TIMEOUT_S = 2.0


class RequestsInProgress:
    """The requests that a process has not answered yet."""

    def __init__(self, process_state: ProcessState) -> None:
        self._process_state = process_state
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request until the block ends; the last one then waits for background work."""
        with self._lock:
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                is_last = self._count == 0
            if is_last:
                self._process_state.finish_background_work(TIMEOUT_S)
