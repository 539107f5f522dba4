"""Fork-join queues as an operator sees them: pending batches, and parked items."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.fork_join.entities import EpochId, PackId, packs_of_queue, parked_packs
from rollforward.fork_join.parked import Replay, without_dead_task
from rollforward.fork_join.queue import ForkJoin
from rollforward.runtime.clients import Clients
from rollforward.tasks.runs import RunDetails, RunIssue, RunRefusedError, RunVerb, named_run

PATTERN = "fork-join"
MAX_COUNTED = 1_000
MAX_PARKED = 20
# Of parked items that one command retries; give it again for more.
MAX_RETRIED = 100


def queue_details(queue: ForkJoin[Any]) -> RunDetails:
    """Return the pending items of a queue by their keys, and some parked ones."""
    name = queue.settings.name
    packs = [PackId.parse(key.id()) for key in packs_of_queue(name).fetch(MAX_COUNTED, **_KEYS)]
    parked = parked_packs(name).fetch(MAX_COUNTED, **_KEYS)
    opened = [EpochId.parse(pack.epoch).opened for pack in packs]
    oldest: dict[str, float | str] = {}
    if opened:
        oldest["oldest_at"] = min(opened).replace(tzinfo=datetime.UTC).timestamp()
    numbers = {
        "waiting_items": sum(pack.items for pack in packs),
        "waiting_packs": len(packs),
        **oldest,
        "parked_items": len(parked),
        "counted_up_to": MAX_COUNTED,
        "period_s": queue.settings.period_s,
        "max_batch_size": queue.settings.max_batch_size,
        "shards": queue.settings.shards,
    }
    rows = ndb.get_multi(parked[:MAX_PARKED])
    issues = [
        RunIssue(f"{row.batch_key}: {row.items[:200]}", "failed", "parked: replay its dead task")
        for row in rows
        if row is not None
    ]
    verbs: tuple[RunVerb, ...] = ("retry",) if parked else ()
    return RunDetails(named_run(PATTERN, name, verbs), issues=issues, numbers=numbers)


def retry_parked(clients: Clients, queue: ForkJoin[Any], verb: RunVerb) -> str:
    """Let up to 100 parked items that no dead task brings back be joined again.

    Returns:
        The queue's name.

    Raises:
        RunRefusedError: there are none, or the verb is another one.
    """
    if verb != "retry" or not _retry_parked(clients, queue):
        raise RunRefusedError("each of its parked items comes back by its dead task: replay that")
    return queue.settings.name


def _retry_parked(clients: Clients, queue: ForkJoin[Any]) -> int:
    retried = 0
    keys = parked_packs(queue.settings.name).fetch(MAX_COUNTED, **_KEYS)
    for part in batched(keys, MAX_RETRIED):
        for pack in without_dead_task(part)[: MAX_RETRIED - retried]:
            place = replace(PackId.parse(pack.key.id()), queue=queue.settings.name)
            queue.replay_task.work(clients, Replay(place.text, pack.batch_key, ""))
            retried += 1
        if retried == MAX_RETRIED:
            break
    return retried


_KEYS = {"keys_only": True}
