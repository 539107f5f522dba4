"""What a process remembers from one request to the next: always a hint, never relied on.

A process may die at any moment, and there may be many. What is kept here may only save work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProcessState:
    """One object for each owner, made when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}
        self._last_acts: dict[str, Callable[[], None]] = {}

    def get_or_create(self, owner: str, make: Callable[[], T]) -> T:
        """Return what an owner keeps."""
        kept = self._kept.get(owner)
        if kept is None:
            with self._lock:
                # Made once: what is made may act before the end, and an act has one owner.
                kept = self._kept.get(owner)
                if kept is None:
                    kept = self._kept[owner] = make()
        return cast(T, kept)

    def on_shutdown(self, owner: str, act: Callable[[], None]) -> None:
        """Have something done when the process is told to end; one act an owner."""
        self._last_acts[owner] = act

    def shutdown(self) -> None:
        """Do what has to be done before the process ends. A killed process does none of it."""
        for owner, act in list(self._last_acts.items()):
            try:
                act()
            except Exception:
                log.exception("%s could not end well", owner)

    def clear(self) -> None:
        """Forget everything, as a new process would have."""
        self._kept, self._last_acts = {}, {}
