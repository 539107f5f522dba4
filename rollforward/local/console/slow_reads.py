"""Reads of Datastore that take longer than a page may wait.

The Firestore emulator reads a whole kind for each query, also for one key of it: with 100,000
entities that takes two to twelve seconds. The page answers without the rows, and asks again.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

ANSWER_S = 0.2
MAX_READS = 4
KEPT_S = 60.0  # A result that no page has fetched by then is dropped.

T = TypeVar("T")


@dataclass(frozen=True)
class _Read:
    task: asyncio.Task[Any]
    began: float


class SlowReads:
    """Reads in progress, by what they read."""

    def __init__(self) -> None:
        """Begin without any."""
        self._reads: dict[Hashable, _Read] = {}

    async def result(self, key: Hashable, read: Callable[[], T]) -> T | None:
        """Return the result of a read, or None if it takes longer than ANSWER_S.

        A later call with the same key waits for the same read, and a result is returned once.
        Beyond MAX_READS in progress no read begins.

        Raises:
            Exception: the read raised it.
        """
        self._drop_unfetched()
        if key not in self._reads:
            if len(self._reads) >= MAX_READS:
                return None
            task = asyncio.create_task(asyncio.to_thread(read))
            task.add_done_callback(_note_error)
            self._reads[key] = _Read(task, time.monotonic())
        current: asyncio.Task[T] = self._reads[key].task
        done, _ = await asyncio.wait({current}, timeout=ANSWER_S)
        if not done:
            return None
        self._reads.pop(key, None)
        return current.result()

    def _drop_unfetched(self) -> None:
        oldest = time.monotonic() - KEPT_S
        for key, read in [*self._reads.items()]:
            if read.task.done() and read.began < oldest:
                del self._reads[key]


def _note_error(task: asyncio.Task[Any]) -> None:
    """Take the error of a read that no page fetches: asyncio would log it as forgotten."""
    if not task.cancelled():
        task.exception()
