"""A lazy proxy: an object that is made on first use, so that it does not delay the start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Lazy:
    """A proxy that makes its object when an attribute is first read, once.

    Concurrent threads wait for one of them. If it fails, it raises, and the next reader tries
    again.

    >>> events = []
    >>> text = Lazy(lambda: events.append("made") or "text")
    >>> events
    []
    >>> text.upper(), text.title(), events
    ('TEXT', 'Text', ['made'])
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._object: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if not self._object:
            with self._lock:
                if not self._object:
                    self._object.append(self._make())
        return getattr(self._object[0], name)
