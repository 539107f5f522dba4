"""Memory of a process between requests: always a hint, never relied on.

A process may die at any moment, and there may be many. Its memory may only save work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessState:
    """One object for each owner, made on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Any] = {}
        self._last_acts: dict[str, Callable[[], None]] = {}
        self._finishing_acts: dict[str, Callable[[float], None]] = {}

    def get_or_create(self, owner: str, make: Callable[[], T]) -> T:
        """Return the object of an owner; make it if there is none."""
        state = self._objects.get(owner)
        if state is None:
            with self._lock:
                # Made once: it may register an act for the shutdown, which has one owner.
                state = self._objects.get(owner)
                if state is None:
                    state = self._objects[owner] = make()
        return cast(T, state)

    def on_shutdown(self, owner: str, act: Callable[[], None]) -> None:
        """Register an act for the shutdown of the process, one for each owner."""
        self._last_acts[owner] = act

    def shutdown(self) -> None:
        """Run the acts before the process ends. A killed process runs none."""
        _run_all(self._last_acts, "could not end well")

    def on_last_request(self, owner: str, act: Callable[[float], None]) -> None:
        """Register an act that waits for an owner's background work, for some seconds at most."""
        self._finishing_acts[owner] = act

    def finish_background_work(self, timeout_s: float) -> None:
        """Run these acts, before a process that has no request in progress loses its processor.

        The last one comes first: it may leave work to one that was there before it.
        """
        ends_at = time.monotonic() + timeout_s
        acts = {
            owner: partial(_run_until, ends_at, act)
            for owner, act in reversed(self._finishing_acts.items())
        }
        _run_all(acts, "has not finished its background work")

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._objects, self._last_acts, self._finishing_acts = {}, {}, {}


def _run_all(acts: Mapping[str, Callable[[], None]], complaint: str) -> None:
    for owner, act in list(acts.items()):
        try:
            act()
        except Exception:
            log.exception("%s %s", owner, complaint)


def _run_until(ends_at: float, act: Callable[[float], None]) -> None:
    act(max(0.0, ends_at - time.monotonic()))
