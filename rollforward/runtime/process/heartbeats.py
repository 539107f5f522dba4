"""Heartbeats: long work reports periodically that it is alive.

One thread of the process beats for all running work. Work that ends before its first beat is due
costs nothing.

Lost on failure: beats. They are hints: code that uses them must be safe without them, if slower.
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

from rollforward.datastore.transactions import TRANSIENT
from rollforward.runtime.process.daemons import start_daemon

log = logging.getLogger(__name__)

_NEVER = float("inf")


class Heart(Protocol):
    """Beats while work runs; tests replace it."""

    def heartbeat(self, beat: Callable[[], None], every_s: float) -> AbstractContextManager[None]:
        """Call `beat` every `every_s` seconds, on another thread, until the block ends.

        A beat may still be running then. A beat that raises is logged, and the next one is made.
        """
        ...


class NoHeart:
    """A heart that never beats, for a clock that a test controls."""

    def heartbeat(self, beat: Callable[[], None], every_s: float) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass
class _Heartbeat:
    beat: Callable[[], None]
    every_s: float
    due_s: float  # By time.monotonic.


class ThreadedHeart:
    """Beats from one thread, which starts with the first work and sleeps if there is none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heartbeats: dict[int, _Heartbeat] = {}
        self._has_thread = False
        self._wakes_s = _NEVER

    @contextlib.contextmanager
    def heartbeat(self, beat: Callable[[], None], every_s: float) -> Iterator[None]:
        heartbeat = _Heartbeat(beat, every_s, time.monotonic() + every_s)
        with self._changed:
            self._heartbeats[id(heartbeat)] = heartbeat
            if not self._has_thread:
                self._has_thread = start_daemon(self._run, "heart")
            elif heartbeat.due_s < self._wakes_s:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                del self._heartbeats[id(heartbeat)]

    def _run(self) -> None:
        while True:
            for heartbeat in self._wait():
                try:
                    heartbeat.beat()
                except TRANSIENT as error:
                    log.warning("a heartbeat failed; the next one comes: %s", error)
                except Exception:
                    log.exception("a heartbeat failed; the next one comes")

    def _wait(self) -> list[_Heartbeat]:
        """Sleep until beats are due; return them, each with the time of its next one."""
        with self._changed:
            heartbeats = self._heartbeats.values()
            self._wakes_s = min((heartbeat.due_s for heartbeat in heartbeats), default=_NEVER)
            self._changed.wait(min(self._wakes_s - time.monotonic(), threading.TIMEOUT_MAX))
            now_s = time.monotonic()
            due = [heartbeat for heartbeat in self._heartbeats.values() if heartbeat.due_s <= now_s]
            for heartbeat in due:
                heartbeat.due_s = now_s + heartbeat.every_s
            return due
