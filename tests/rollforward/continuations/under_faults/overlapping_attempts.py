"""Attempts that overlap in the world's time, the same way each time.

Work that lasts sleeps on the clock of its clients. A `Timeline` is that clock: one thread runs, the
others sleep, and time goes on when all do. So two attempts at one page may interleave for minutes,
within milliseconds, and always alike. It also is the heart: beats come when they are due.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.infra.world import World


@dataclass
class _Event:
    """Something that happens at a time: a sleeper wakes, or a heart beats."""

    at_s: float
    number: int
    happen: Callable[[], None]


class Timeline:
    """The clock and the heart of a world's clients, and its dispatcher."""

    def __init__(self, world: World, *, has_heart: bool = True) -> None:
        self.world = world
        self.has_heart = has_heart
        self.answers: list[int | None] = []
        self._events: list[_Event] = []
        self._numbers = itertools.count()
        self._paused = threading.Semaphore(0)
        object.__setattr__(world.clients, "clock", self)
        object.__setattr__(world.clients, "heart", self)

    # The clock

    @property
    def time_s(self) -> float:
        return self.world.clock.time_s

    def now(self) -> datetime.datetime:
        return self.world.clock.now()

    def sleep(self, seconds: float) -> None:
        """Let the others run until this much time has passed."""
        wake = threading.Event()
        self._add(seconds, lambda: self._let_run(wake.set))
        self._paused.release()
        wake.wait()

    # The heart

    @contextlib.contextmanager
    def heartbeat(self, beat: Callable[[], None], every_s: float) -> Iterator[None]:
        is_over = []

        def happen() -> None:
            if not is_over:
                self._add(every_s, happen)
                self._run(beat)

        if self.has_heart:
            self._add(every_s, happen)
        try:
            yield
        finally:
            is_over.append(True)

    # The dispatcher

    def at(self, in_s: float, happen: Callable[[], None]) -> None:
        """Let something happen so many seconds from now."""
        self._add(in_s, happen)

    def play(self, until_s: float) -> None:
        """Deliver what is due, and let time pass, until nothing is left to happen.

        Raises:
            AssertionError: it goes on for more than `until_s` seconds.
        """
        ends_s = self.time_s + until_s
        while (at_s := self._next()) is not None:
            assert at_s < ends_s, f"still going on after {until_s} s: {self.answers}"
            if at_s > self.time_s:
                self.world.clock.sleep(at_s - self.time_s)
            self._deliver_due()
            for event in [event for event in self._events if event.at_s <= self.time_s]:
                self._events.remove(event)
                event.happen()

    def _next(self) -> float | None:
        engine = self.world.engine
        times = [event.at_s for event in self._events]
        if engine.due():
            times.append(self.time_s)
        elif (wake_at := engine.wake_at()) is not None:
            times.append(wake_at + 0.001)
        return min(times, default=None)

    def _deliver_due(self) -> None:
        while due := self.world.engine.due():
            attempt = self.world.engine.begin_attempt(due[0].task_name)
            self._run(lambda attempt=attempt: self._answer(attempt))

    def _answer(self, attempt: Any) -> None:
        status = self.world.answer(attempt)
        self.answers.append(status)
        self.world.end(attempt, status)

    def _run(self, body: Callable[[], None]) -> None:
        """Run something on a thread of its own until it sleeps or ends."""

        def run() -> None:
            try:
                body()
            finally:
                self._paused.release()

        self._let_run(threading.Thread(target=run, daemon=True).start)

    def _let_run(self, begin: Callable[[], None]) -> None:
        begin()
        assert self._paused.acquire(timeout=60), "a thread neither sleeps nor ends"

    def _add(self, in_s: float, happen: Callable[[], None]) -> None:
        self._events.append(_Event(self.time_s + in_s, next(self._numbers), happen))
        self._events.sort(key=lambda event: (event.at_s, event.number))
