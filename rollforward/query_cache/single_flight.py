"""Single flight: of the threads of a process that need the same value, one computes it.

Lost on failure: nothing. When the computation fails, the waiting threads get its error; when its
thread is killed, one of them computes. They wait without a timeout, because their own computation
would be as slow.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait

from rollforward.query_cache.envelope import Envelope


class Flight:
    """One computation that is in progress."""

    def __init__(self) -> None:
        self._future: Future[Envelope | None] = Future()

    def resolve(self, envelope: Envelope | None) -> None:
        """Give the value to the waiting threads; None: there is none, they have to compute."""
        self._future.set_result(envelope)

    def crash(self, error: BaseException) -> None:
        """Give an error to the waiting threads. The death of this thread is not theirs."""
        if isinstance(error, Exception):
            self._future.set_exception(error)
        else:
            self._future.set_result(None)

    def follow(self) -> Envelope | None:
        """Wait for the value; None: compute it yourself.

        Raises:
            Exception: what the computation raised.
        """
        return self._future.result()

    def wait(self) -> None:
        """Wait for the end, with or without a value."""
        wait([self._future])


class Flights:
    """The computations of a process that are in progress, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[str, Flight] = {}

    def join(self, key: str) -> tuple[Flight, bool]:
        """Return the computation for a key, and whether the caller has to make it."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = Flight()
            return flight, True

    def end(self, key: str) -> None:
        """Let the next caller compute; the flight has landed or crashed."""
        with self._lock:
            self._flights.pop(key, None)
