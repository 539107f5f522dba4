"""Heartbeats: work that lasts says now and then that it is alive.

One thread of the process beats for all work under way. It asks nothing of work that is done
before its first beat is due.

Lost on failure: beats. They are hints: what rests on them must be safe without them, and may
only be slower.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

_NEVER = float("inf")


class Heart(Protocol):
    """Beats while something goes on; tests own theirs."""

    def beating(self, beat: Callable[[], None], every_s: float) -> AbstractContextManager[None]:
        """Call `beat` every so many seconds, on another thread, until the block ends.

        A beat may still be under way then. One that raises is logged, and the next one comes.
        """
        ...


class NoHeart:
    """Never beats: for a clock that stands still."""

    def beating(self, beat: Callable[[], None], every_s: float) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass
class _Beating:
    beat: Callable[[], None]
    every_s: float
    due_s: float  # By time.monotonic.


class ThreadedHeart:
    """Beats from one thread, which starts with the first work and sleeps while there is none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beatings: dict[int, _Beating] = {}
        self._thread: threading.Thread | None = None
        self._wakes_s = _NEVER

    @contextlib.contextmanager
    def beating(self, beat: Callable[[], None], every_s: float) -> Iterator[None]:
        mine = _Beating(beat, every_s, time.monotonic() + every_s)
        with self._changed:
            self._beatings[id(mine)] = mine
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
                self._thread.start()
            elif mine.due_s < self._wakes_s:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._beatings[id(mine)]

    def _run(self) -> None:
        while True:
            for due in self._wait():
                try:
                    due.beat()
                except Exception:
                    log.exception("a heartbeat failed; the next one comes")

    def _wait(self) -> list[_Beating]:
        """Sleep until beats are due; return them, each with the time of its next one."""
        with self._changed:
            self._wakes_s = min((each.due_s for each in self._beatings.values()), default=_NEVER)
            self._changed.wait(min(self._wakes_s - time.monotonic(), threading.TIMEOUT_MAX))
            now_s = time.monotonic()
            due = [each for each in self._beatings.values() if each.due_s <= now_s]
            for each in due:
                each.due_s = now_s + each.every_s
            return due
