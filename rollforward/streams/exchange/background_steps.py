"""Steps that run after their caller, on threads of their own: the deferred wake-ups of pushes.

The last request in progress has them run at once, and waits for them: a processor may go with its
response (rollforward/flask/requests_in_progress.py).

Lost on failure: wake-ups of a process that dies. The next tick wakes the readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from rollforward.runtime.process.bounded_wait import BoundedWait
from rollforward.runtime.process.daemons import start_daemon
from rollforward.runtime.process.process_state import ProcessState

_OWNER = "streams background steps"


class BackgroundSteps:
    """The background steps of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._is_hurried = threading.Event()  # Pauses end before their time.
        self._ended = BoundedWait(self._lock)

    @classmethod
    def of(cls, state: ProcessState) -> BackgroundSteps:
        """Return the background steps of a process."""

        def make() -> BackgroundSteps:
            background = cls()
            state.on_last_request(_OWNER, background.finish)
            return background

        return state.get_or_create(_OWNER, make)

    def start(self, run: Callable[[], object]) -> bool:
        """Run steps on a thread that dies with the process; return whether one starts."""
        with self._lock:
            self._running += 1
        is_started = start_daemon(partial(self._run, run), "streams")
        if not is_started:
            self._end()
        return is_started

    def pause(self, seconds: float) -> None:
        """Wait, in one of the steps."""
        self._is_hurried.wait(seconds)

    def finish(self, timeout_s: float) -> None:
        """Let paused steps continue, and wait until all have ended, for some seconds at most."""
        with self._lock:
            if self._running:
                self._is_hurried.set()
                self._ended.wait(lambda: not self._running, timeout_s)

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._is_hurried.clear()
                self._ended.notify()
