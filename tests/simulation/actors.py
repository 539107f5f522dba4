"""Actors: pieces of work of the simulated processes, of which one runs at a time.

Each is a greenlet: it is resumed, and goes on until it ends or pauses. So a schedule is the order
in which actors are resumed, and the same each time. The library takes each for a thread: what it
keeps by thread is put away while an actor pauses. Actors wait for each other by the locks of
`threads.py`; if one waits for a lock of Python's that a paused one holds, the watch ends the
schedule.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from rollforward.batches import members
from rollforward.datastore import transactions
from rollforward.testing.injection import Crash

# What is kept by thread, but for the meters of the processes.
LOCALS: list[threading.local] = [members._local, transactions._local]


class Actor:
    """A piece of work that may pause.

    Attributes:
        process: The process that it belongs to: it dies with it.
        wakes_at_s: In virtual time; it is not resumed before.
        delivery: The attempt whose request it handles, if it does.
        is_awaited: Whether the queue waits for its answer.
        status: Its answer.
        is_acknowledged: Whether the queue got an answer by which its task is done.
        is_beside: Whether its process serves requests meanwhile.
    """

    def __init__(self, name: str, process: Any, work: Callable[[], None], now_s: float) -> None:
        self.name = name
        self.process = process
        self.incarnation = process.incarnation
        self.wakes_at_s = now_s
        self.has_ended = False
        self.delivery: Any = None
        self.is_awaited = False
        self.status: int | None = None
        self.is_acknowledged = False
        self.is_beside = False
        self._is_abandoned = False
        self._waits_for: Callable[[], bool] | None = None
        self._error: BaseException | None = None
        self._work = work
        self._greenlet: Any = None
        self._kept: list[dict[str, Any]] = [{} for _ in self._locals()]

    @property
    def is_dead(self) -> bool:
        """Whether its process is not the one that it began in."""
        return self._is_abandoned or bool(self.process.incarnation != self.incarnation)

    @property
    def frame(self) -> FrameType | None:
        """Where it has paused."""
        return None if self._greenlet is None else self._greenlet.gr_frame

    def resume(self) -> None:
        """Run until it ends or pauses; raise its error."""
        if self._greenlet is None:
            self._greenlet = greenlet(self._run)
            self._greenlet.gr_context = contextvars.Context()
        self._swap()
        self._greenlet.switch()
        self._swap()
        if self._error is not None:
            raise self._error

    def pause(self, until_s: float) -> None:
        """Let others run, until a time; called by itself.

        Raises:
            Crash: its process has died meanwhile.
        """
        self.wakes_at_s = until_s
        getcurrent().parent.switch()
        if self.is_dead:
            raise Crash

    def wait(self, is_true: Callable[[], bool], until_s: float) -> None:
        """Let others run until something is true, or until a time; called by itself.

        Raises:
            Crash: its process has died meanwhile.
        """
        self._waits_for = is_true
        try:
            self.pause(until_s)
        finally:
            self._waits_for = None

    def is_ready(self, now_s: float) -> bool:
        """Return whether it can go on now."""
        return self.wakes_at_s <= now_s or (self._waits_for is not None and self._waits_for())

    def abandon(self) -> None:
        """Let it die as soon as it is resumed."""
        self._is_abandoned = True

    def __str__(self) -> str:
        return f"{self.process.name} {self.name}"

    def _locals(self) -> list[threading.local]:
        return [*LOCALS, self.process.clients.meter._local]

    def _swap(self) -> None:
        """Put away what is kept by thread, and take what was put away before."""
        for number, local in enumerate(self._locals()):
            there = local.__dict__
            kept, self._kept[number] = self._kept[number], dict(there)
            there.clear()
            there.update(kept)

    def _run(self) -> None:
        try:
            if not self.is_dead:
                self._work()
        except Crash:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.has_ended = True
