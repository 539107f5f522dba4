"""An object that is made when it is first used: what takes long to load does not delay a start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Lazy:
    """Stands for an object until something is asked of it; then makes it, once.

    Threads that ask at the same time wait for one of them. A failure is the asker's: the next one
    tries again.

    >>> made = []
    >>> text = OnFirstUse(lambda: made.append("made") or "text")
    >>> made
    []
    >>> text.upper(), text.title(), made
    ('TEXT', 'Text', ['made'])
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return getattr(self._made[0], name)
