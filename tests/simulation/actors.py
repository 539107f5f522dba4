"""Actors: pieces of work of the simulated processes, of which one runs at a time.

Each has a thread, since the library keeps a transaction by its thread. But a thread runs only while
the scheduler waits for it: it is resumed, and goes on until it ends or pauses. So a schedule is the
order in which actors are resumed, and the same each time.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from rollforward.testing.injection import Crash

STUCK_AFTER_S = 60


class StuckError(AssertionError):
    """An actor neither ends nor pauses: it waits for what a paused one holds."""


class Actor:
    """A piece of work that may pause.

    Attributes:
        process: The process that it belongs to: it dies with it.
        wakes_at_s: In virtual time; it is not resumed before.
        delivery: The attempt whose request it handles, if it does.
        is_awaited: Whether the queue waits for its answer.
        status: Its answer.
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
        self._is_abandoned = False
        self._error: BaseException | None = None
        self._work = work
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_dead(self) -> bool:
        """Whether its process is not the one that it began in."""
        return self._is_abandoned or self.process.incarnation != self.incarnation

    def resume(self) -> None:
        """Run until it ends or pauses; raise its error.

        Raises:
            StuckError: it does neither.
        """
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._turn.release()
        if not self._back.acquire(timeout=STUCK_AFTER_S):
            raise StuckError(self.name)
        if self._error is not None:
            raise self._error

    def pause(self, until_s: float) -> None:
        """Let others run, until a time; called by its own thread.

        Raises:
            Crash: its process has died meanwhile.
        """
        self.wakes_at_s = until_s
        self._back.release()
        self._turn.acquire()
        if self.is_dead:
            raise Crash

    def abandon(self) -> None:
        """Let it die as soon as it is resumed."""
        self._is_abandoned = True

    def __str__(self) -> str:
        return f"{self.process.name} {self.name}"

    def _run(self) -> None:
        try:
            if not self.is_dead:
                contextvars.Context().run(self._work)
        except Crash:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.has_ended = True
            self._back.release()
