"""The measured app: additions to one sum, in several designs.

fork-join  through the queue, with a period of one second
at-once    the same with period 0
in-memory  folded in the process, flushed every quarter of a second
inline     (a) one transaction for each addition, on the sum itself
slides     (b) the talk's code, taken literally
put        (c) a bare put of the addition and nothing else: the upper bound
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pymemcache
from flask import Flask
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.datastore.transactions import transact
from rollforward.fork_join import Accumulator, Batch, ForkJoin, fork_join
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import Retry, Task

SUMS = ("fork-join", "at-once", "in-memory", "inline", "slides")


class BenchSum(ndb.Model):
    """The sum of the additions."""

    total = ndb.IntegerProperty(indexed=False, default=0)
    items = ndb.IntegerProperty(indexed=False, default=0)
    batches = ndb.IntegerProperty(indexed=False, default=0)


class BareAddition(ndb.Model):
    """An addition that is never folded."""

    amount = ndb.IntegerProperty(indexed=False)


@dataclass(frozen=True)
class Addition:
    """An addition, or the sum of `items` additions."""

    amount: int
    items: int = 1


def add_up(clients: Clients, batch: Batch, items: Sequence[Addition]) -> None:
    """Add a batch to its sum."""
    _add(batch.key, sum(item.amount for item in items), sum(item.items for item in items))


def _add(name: str, amount: int, items: int) -> None:
    row = BenchSum.get_by_id(name) or BenchSum(id=name)
    row.total += amount
    row.items += items
    row.batches += 1
    row.put()


FORK_JOIN: ForkJoin[Addition] = fork_join("bench", queue="bench", period_s=1.0)(add_up)
AT_ONCE: ForkJoin[Addition] = fork_join("bench-at-once", queue="bench", period_s=0)(add_up)
FLUSHED: ForkJoin[Addition] = fork_join("bench-flushed", queue="bench", period_s=0)(add_up)


def _combined(one: Addition, other: Addition) -> Addition:
    return Addition(one.amount + other.amount, one.items + other.items)


IN_MEMORY = Accumulator("bench", FLUSHED, _combined)


# The talk's code


class SlideWork(ndb.Model):
    """An item of the talk's queue."""

    delta = ndb.IntegerProperty(indexed=False)
    work_index = ndb.StringProperty()


@dataclass(frozen=True)
class SlideJoin:
    """The batch to join, and its index."""

    index: int
    cursor: str = ""


class Slides:
    """The talk's fork-join queue: an index and a lock in memcached, work items queried by index."""

    page = 200

    def __init__(self) -> None:
        host, _, port = os.environ["MEMCACHE_HOSTS"].rpartition(":")
        self.memcache = pymemcache.PooledClient(
            (host, int(port)), default_noreply=False, max_pool_size=64
        )

    def insert(self, clients: Clients, delta: int) -> bool:
        """Insert an item, or return False if this batch is closed and the caller must retry."""
        index = self._index()
        lock = f"slides-lock-{index}"
        self.memcache.add(lock, str(2**16))
        if self.memcache.incr(lock, 1) < 2**16:
            self.memcache.decr(lock, 1)
            return False
        SlideWork(delta=delta, work_index=_hashed(index)).put()
        name = ("slides", int(time.time() / 30), index)
        SLIDES_JOIN.enqueue(clients, SlideJoin(index), name=name, delay_s=1)
        self.memcache.decr(lock, 1)
        return True

    def _index(self) -> int:
        index = self.memcache.get("slides-index")
        if index is None:
            self.memcache.add("slides-index", "1")
            index = self.memcache.get("slides-index")
        return int(index)

    def join(self, args: SlideJoin) -> None:
        """Close a batch, wait for its writers, sum its items up, and delete them."""
        if not args.cursor:
            self.memcache.incr("slides-index", 1)
            lock = f"slides-lock-{args.index}"
            self.memcache.decr(lock, 2**15)
            for _ in range(20):
                if int(self.memcache.get(lock) or 0) <= 2**15:
                    break
                time.sleep(0.25)
        query = SlideWork.query(SlideWork.work_index == _hashed(args.index))
        works = query.order(SlideWork._key).fetch(self.page)
        if not works:
            return
        delta = sum(work.delta for work in works)
        transact(lambda: _add("slides", delta, len(works)))
        ndb.delete_multi([work.key for work in works])
        if len(works) == self.page:
            raise Retry("there are more")


def _hashed(index: int) -> str:
    return f"slides-{index * 2654435761 % 2**32}"


SLIDES_JOIN: Task[SlideJoin] = Task(
    "/tasks/slides/join", "bench", SlideJoin, lambda clients, args: _slides().join(args)
)
_opened: list[Slides] = []


def _slides() -> Slides:
    if not _opened:
        _opened.append(Slides())
    return _opened[0]


# The app


def serve() -> Flask:
    """Return the app."""
    registry = Registry(SLIDES_JOIN, FORK_JOIN, AT_ONCE, FLUSHED)
    app, clients = app_for(registry)
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: BareAddition(amount=1).put(),
        "inline": lambda: transact(lambda: _add("inline", 1, 1)),
        "fork-join": lambda: FORK_JOIN.insert(clients, "fork-join", Addition(1)),
        "at-once": lambda: AT_ONCE.insert(clients, "at-once", Addition(1)),
        "in-memory": lambda: IN_MEMORY.add(clients, "in-memory", Addition(1)),
    }

    @app.get("/bench/<design>")
    def bench(design: str) -> Any:
        if design == "slides":
            return "", 204 if _slides().insert(clients, 1) else 409
        acts[design]()
        return "", 204

    return app
