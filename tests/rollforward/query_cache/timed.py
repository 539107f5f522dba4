"""Processes without services: a memcached in memory, and clocks that tests move."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from rollforward.runtime import Clients, Meter, NoCache, open_datastore

START_S = 1_900_000_000.0


@dataclass
class Time:
    """A time that stands still until somebody sleeps."""

    now_s: float = START_S
    on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_sleep()


@dataclass(frozen=True)
class TimedClock:
    """The clock of a process, which may be ahead of the time."""

    time: Time
    ahead_s: float = 0.0

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time.now_s + self.ahead_s, datetime.UTC)

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)


class TimedCache(NoCache):
    """A memcached in memory: what it holds ends by the time of a test."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.values: dict[str, tuple[bytes, float]] = {}
        self.calls: list[str] = []
        self._lock = threading.RLock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            self.calls.append("get")
            value, ends_s = self.values.get(key, (None, 0.0))
            return value if self.time.now_s < ends_s else None

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        with self._lock:
            self.calls.append("set")
            assert ttl_s > 0
            self.values[key] = (value, self.time.now_s + ttl_s)
            return True

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        with self._lock:
            self.calls.append("add")
            _, ends_s = self.values.get(key, (b"", 0.0))
            if self.time.now_s < ends_s:
                return False
            self.values[key] = (value, self.time.now_s + ttl_s)
            return True

    def delete(self, key: str) -> bool:
        with self._lock:
            self.calls.append("delete")
            return self.values.pop(key, None) is not None

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        with self._lock:
            self.calls.append("incr")
            old, ends_s = self.values.get(key, (b"0", 0.0))
            is_there = self.time.now_s < ends_s
            number = delta + (int(old) if is_there else 0)
            end_s = ends_s if is_there else self.time.now_s + ttl_s
            self.values[key] = (str(number).encode(), end_s)
            return number

    def ending(self, suffix: str) -> list[str]:
        """Return the keys that hold something and end so."""
        return [key for key in self.values if key.endswith(suffix)]


@dataclass
class TimedHeart:
    """Beats when a test says so."""

    beats: list[Callable[[], None]] = field(default_factory=list)

    def heartbeat(self, beat: Callable[[], None], every_s: float) -> AbstractContextManager[None]:
        self.beats.append(beat)
        return nullcontext()

    def beat(self) -> None:
        for beat in self.beats:
            beat()


def process(
    cache: Any, *, clock: TimedClock | None = None, namespace: str | None = None, heart: Any = None
) -> Clients:
    """Return the clients of a process of its own; no service is there but memcached."""
    time = getattr(cache, "time", None) or Time()
    nowhere = open_datastore("demo-tests", emulator="127.0.0.1:1", namespace=namespace)
    return Clients(
        nowhere,
        cast(Any, None),
        cache,
        Meter(),
        cast(Any, None),
        clock=clock or TimedClock(time),
        heart=heart or TimedHeart(),
    )
