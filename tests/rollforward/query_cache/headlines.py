"""A query to cache: the newest headlines of a tag, and how often it was computed."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.query_cache import CachedQuery, cached
from rollforward.query_cache.entry import CacheEntry
from rollforward.runtime import Clients, Clock
from rollforward.runtime.cache import MemcachedCache
from rollforward.runtime.process.process_state import ProcessState
from tests.infra.world import World

TTL_S, STALE_S = 60, 30


class Story(ndb.Model):
    """What the headlines are of. One row per tag."""

    title = ndb.TextProperty(required=True)


@dataclass(frozen=True)
class Headline:
    title: str
    tags: tuple[str, ...]


@dataclass
class Newsroom:
    """A cached query of its own, with eyes on how it is computed."""

    meanwhile: Callable[[], None] = lambda: None  # Happens after the read, before the result.
    computed: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    most_in_flight: int = 0
    beta: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        @cached("headlines", ttl_s=TTL_S, stale_s=STALE_S, beta=self.beta)
        def headlines(clients: Clients, tag: str, limit: int = 10) -> list[Headline]:
            with self._lock:
                self.computed += 1
                of_process = self.in_flight.get(id(clients.process_state), 0) + 1
                self.in_flight[id(clients.process_state)] = of_process
                self.most_in_flight = max(self.most_in_flight, of_process)
            try:
                story = Story.get_by_id(tag)
                self.meanwhile()
                return [Headline(story.title, (tag,))] if story else []
            finally:
                with self._lock:
                    self.in_flight[id(clients.process_state)] -= 1

        self.headlines: CachedQuery[Any, list[Headline]] = headlines

    def titles(self, clients: Clients, tag: str = "news") -> list[str]:
        return [headline.title for headline in self.headlines(clients, tag)]


def publish(title: str, tag: str = "news") -> None:
    """Put another story in the place of a tag's."""
    Story(id=tag, title=title).put()


def another_process(clients: Clients) -> Clients:
    """Return the clients of a process that remembers nothing of this one."""
    return replace(clients, process_state=ProcessState())


@dataclass(frozen=True)
class RealPauses:
    """A world's clock for threads that wait for each other: a pause lets the others go on."""

    clock: Clock

    def now(self) -> datetime.datetime:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def crowded(world: World) -> Clients:
    """Return the clients of another process, with more threads than an app has."""
    if world.services.memcached is None:
        pytest.skip("there is no memcached on this machine")
    cache = MemcachedCache(world.services.memcached, timeout_s=30, pool_size=200)
    world.services.closers.append(cache.close)
    clock = RealPauses(world.clients.clock)
    return replace(another_process(world.clients), cache=cache, clock=clock)


def entry_of(room: Newsroom, clients: Clients, tag: str = "news") -> CacheEntry:
    """Return the place of a tag's headlines."""
    entry = room.headlines._call(clients, tag).entry()
    assert entry is not None
    return entry
