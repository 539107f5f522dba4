"""What threads wait for, among the actors of a world: locks, events and conditions.

The library takes each actor for a thread. If one waits for another here, the world lets others go
on until it need not wait any more, or until its virtual time is over.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from tests.simulation.world import World


class Lock:
    """`threading.Lock`, for actors."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        wait_s = None if timeout < 0 else timeout
        if not self._world.wait_for(lambda: not self._is_held, wait_s if blocking else 0.0):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        assert self._is_held, "nobody holds the lock"
        self._is_held = False

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """`threading.Event`, for actors."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.wait_for(self.is_set, timeout)


class Condition:
    """`threading.Condition`, for actors."""

    def __init__(self, world: World, lock: Lock | None = None) -> None:
        self._world = world
        self._lock = lock or Lock(world)
        self._waiting: list[Event] = []

    def wait(self, timeout: float | None = None) -> bool:
        notified = Event(self._world)
        self._waiting.append(notified)
        self._lock.release()
        try:
            return notified.wait(timeout)
        finally:
            self._waiting = [other for other in self._waiting if other is not notified]
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        ends_s = None if timeout is None else self._world.now_s + timeout
        while not (result := predicate()):
            if not self.wait(None if ends_s is None else max(0.0, ends_s - self._world.now_s)):
                return predicate()
        return result

    def notify(self, n: int = 1) -> None:
        for notified in self._waiting[:n]:
            notified.set()
        self._waiting = self._waiting[n:]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Threading:
    """The module `threading`, but for what actors wait for."""

    def __init__(self, world: World) -> None:
        self.Lock = lambda: Lock(world)
        self.Event = lambda: Event(world)
        self.Condition = lambda lock=None: Condition(world, lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextlib.contextmanager
def for_actors(world: World) -> Iterator[None]:
    """Let all that the library makes from now on wait in a world."""
    patched = _Threading(world)
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("rollforward.") and vars(module).get("threading") is threading:
                stack.enter_context(mock.patch.object(module, "threading", patched))
        yield
