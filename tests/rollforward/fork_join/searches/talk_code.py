"""The fork-join queue of the talk, line by line, with its losses and duplicates.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Fork-join queue example". Its memcache's `incr` with a first value is one call, as it was there.
"Already exists" means a pending or a finished task, as in Cloud Tasks.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from google.cloud import ndb

from rollforward.runtime.messages import Message
from tests.infra.model_checking import stepwise

TRIES = 3


class TalkSum(ndb.Model):
    total = ndb.IntegerProperty(default=0)


class TalkWork(ndb.Model):
    work_index = ndb.StringProperty()
    delta = ndb.IntegerProperty(indexed=False)


def insert(clients: Any, name: str, delta: int) -> bool:
    """Insert, and again while the talk's insert says that it failed."""
    return any(insert_once(clients, name, delta) for _ in range(TRIES))


def insert_once(clients: Any, name: str, delta: int) -> bool:
    cache = clients.cache
    index = cache.get(f"index-{name}")
    if index is None:
        cache.add(f"index-{name}", b"1")
        index = cache.get(f"index-{name}")
    index = int(index)  # Of None, as there: an error.

    lock = f"{name}-lock-{index}"
    writers = cache.incr_existing(lock, 1, 2**16)
    if writers < 2**16:
        cache.incr_existing(lock, -1)
        return False
    TalkWork(id=clients.new_id(), delta=delta, work_index=_work_index(name, index)).put()

    at = clients.clock.now()
    try:
        clients.tasks.create(
            Message(
                path="/work",
                queue="default",
                body=json.dumps([name, index]).encode(),
                name=f"{name}-{int(at.timestamp() / 30)}-{index}",
                at=at + datetime.timedelta(seconds=1),
            )
        )
    finally:
        cache.incr_existing(lock, -1)
    return True


def deliver(clients: Any, task: Message) -> None:
    join(clients, *json.loads(task.body))


def join(clients: Any, name: str, index: int) -> None:
    cache = clients.cache
    cache.incr_existing(f"index-{name}", 1)
    lock = f"{name}-lock-{index}"
    cache.incr_existing(lock, -(2**15))
    for pause_s in stepwise.pauses(5.0):
        counter = cache.get(lock)
        if counter is None or int(counter) <= 2**15:
            break
        clients.clock.sleep(pause_s)

    results = works(_work_index(name, index))
    delta = sum(work.delta for work in results)

    def add() -> None:
        row = TalkSum.get_by_id(name) or TalkSum(id=name)
        row.total += delta
        row.put()

    stepwise.transact(add)
    delete([work.key for work in results])


def works(work_index: str) -> list[Any]:
    """Query the work of an index."""
    return stepwise.rows(
        "query",
        lambda memory: [
            memory.get(key)
            for key in sorted(memory.facts, key=str)
            if key.kind() == "TalkWork" and memory.get(key).work_index == work_index
        ],
    )


def delete(keys: list[Any]) -> None:
    """Delete entities with one call."""
    stepwise.rows("delete", lambda memory: [memory.delete(key) for key in keys])


def _work_index(name: str, index: int) -> str:
    return f"{name}-{knuth_hash(index)}"


def knuth_hash(number: int) -> int:
    return number * 2654435761 % 2**32
