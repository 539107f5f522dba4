"""A wait for background work that has a bound, also if the work hangs and many would wait."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BoundedWait:
    """Lets threads wait until some work has ended.

    Work that took longer than one thread would wait is not waited for by the others: during an
    outage a response is late now and then, and not each.

    All methods are called with the lock held.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._is_overdue = False

    def wait(self, has_ended: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the work has ended, for some seconds at most."""
        if not self._is_overdue:
            self._is_overdue = not self._changed.wait_for(has_ended, timeout_s)

    def notify(self) -> None:
        """Continue all who wait: the work has ended."""
        self._is_overdue = False
        self._changed.notify_all()
