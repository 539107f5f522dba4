"""Reads of Datastore that take longer than a page may wait.

The Firestore emulator reads a whole kind for each query, also for one key of it: with 100,000
entities that takes two to twelve seconds. The page answers without the rows, and asks again.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

ANSWER_S = 0.2
MAX_READS = 4
KEPT_S = 60.0  # A result that no page has fetched by then is dropped.

T = TypeVar("T")


@dataclass
class _Read:
    task: asyncio.Task[Any]
    ended_s: float = math.inf


class SlowReads:
    """Reads in progress, by their subject, and results that no page has fetched yet."""

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
        self._drop_unfetched(key)
        if key not in self._reads:
            if sum(not each.task.done() for each in self._reads.values()) >= MAX_READS:
                return None
            self._reads[key] = _start(read)
        current = self._reads[key]
        done, _ = await asyncio.wait({current.task}, timeout=ANSWER_S)
        if not done:
            return None
        if self._reads.get(key) is current:  # Not one that another page has begun since.
            del self._reads[key]
        result: T = current.task.result()
        return result

    def _drop_unfetched(self, wanted: Hashable) -> None:
        """Drop results whose pages are closed, but not results that are asked for now."""
        oldest_s = time.monotonic() - KEPT_S
        for key, read in [*self._reads.items()]:
            if key != wanted and read.ended_s <= oldest_s:
                del self._reads[key]


def _start(read: Callable[[], Any]) -> _Read:
    begun = _Read(asyncio.create_task(asyncio.to_thread(read)))

    def end(task: asyncio.Task[Any]) -> None:
        begun.ended_s = time.monotonic()
        if not task.cancelled():
            task.exception()  # asyncio would log an error that no page fetches as forgotten.

    begun.task.add_done_callback(end)
    return begun
