"""An answer that the callers of this process share for some seconds, as all pages that are open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Answer(NamedTuple, Generic[T]):
    value: T
    since_s: float


class RecentAnswer(Generic[T]):
    """The last answer to one question."""

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        self.elapsed_s = elapsed_s
        self._answer: _Answer[T] | None = None
        self._changes = 0  # An answer from before the last one is not kept.
        self._lock = threading.Lock()

    def get(self, ask: Callable[[], T], kept_s: float) -> T:
        """Return the answer of the last seconds, or ask.

        While another caller asks, this returns the answer before, so no caller waits in line for a
        slow service; without an earlier one it waits.

        Raises: as `ask`.
        """
        answer = self._answer
        if not self._lock.acquire(blocking=answer is None):
            assert answer is not None
            return answer.value
        try:
            answer = self._answer
            if answer is None or self.elapsed_s() - answer.since_s >= kept_s:
                changes = self._changes
                answer = _Answer(ask(), self.elapsed_s())
                self._answer = answer if changes == self._changes else None
            return answer.value
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Let the next caller ask: the answer has changed."""
        self._changes += 1
        self._answer = None
