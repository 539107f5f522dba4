"""The sweep of fork-join queues: it wakes stranded batches.

An idle queue costs one query. The sweep wakes a few stranded batches itself; for many, each
partition of the key space gets a task.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Protocol

import pydantic

from rollforward.datastore.partitions import PARTITIONS
from rollforward.fork_join.entities import (
    EpochId,
    PackId,
    packs_of_queue,
)
from rollforward.fork_join.joiners import Joiners
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.run_all import run_all
from rollforward.runtime.sweeps.sweep_round import SweepRound
from rollforward.tasks.declaration import Task

log = logging.getLogger(__name__)

# The time after its period when a batch counts as stranded.
STALE_S = 10.0
MAX_HERE = 500


@dataclass(frozen=True)
class Drain:
    """A partition of a queue to drain, from a key on, as part of a round of the sweep."""

    partition: Annotated[str, pydantic.Field(pattern="^[0-9a-f]$")]
    minute: Annotated[str, pydantic.Field(max_length=20)]
    after: Annotated[str, pydantic.Field(max_length=300)] = ""
    began: datetime.datetime | None = None
    since: datetime.datetime | None = None
    stale_s: float = STALE_S


@dataclass(frozen=True)
class SweepResult:
    """Batches that a sweep has woken, or partitions handed to tasks."""

    woken: int = 0
    partitions: int = 0

    def __add__(self, other: SweepResult) -> SweepResult:
        return SweepResult(self.woken + other.woken, self.partitions + other.partitions)


# Wake


class Swept(Protocol):
    """A queue as the sweep of all queues sees it."""

    name: str

    def sweep(self, clients: Clients, *, stale_s: float) -> SweepResult: ...


def sweep_all(
    clients: Clients, fork_joins: Sequence[Swept], *, stale_s: float = STALE_S
) -> SweepResult:
    """Sweep queues; one failure does not stop the others.

    Raises:
        Exception: the first error, after all were swept.
    """
    results = run_all(
        (f"the sweep of {queue.name} failed", partial(queue.sweep, clients, stale_s=stale_s))
        for queue in fork_joins
    )
    results.raise_first()
    return sum(results.returned, SweepResult())


def sweep(
    clients: Clients, joiners: Joiners, drain_task: Task[Drain], *, stale_s: float
) -> SweepResult:
    """Wake the stranded batches of a queue."""
    round_ = SweepRound.begin(clients, _round_name(joiners))
    keys = packs_of_queue(joiners.settings.name).fetch(MAX_HERE + 1, keys_only=True)
    if len(keys) <= MAX_HERE:
        swept = SweepResult(woken=_wake(clients, joiners, keys, round_, stale_s))
    else:
        minute = _minute(clients)
        drains = [Drain(p, minute, "", round_.began, round_.since, stale_s) for p in PARTITIONS]
        names = [(minute, drain.partition, "") for drain in drains]
        swept = SweepResult(partitions=sum(drain_task.enqueue_many(clients, drains, names=names)))
    round_.end()
    return swept


def drain(clients: Clients, joiners: Joiners, drain_task: Task[Drain], args: Drain) -> None:
    """Wake the stranded batches of a partition; enqueue another task for the rest."""
    query = packs_of_queue(joiners.settings.name, args.partition, after=args.after)
    keys = query.fetch(MAX_HERE, keys_only=True)
    if len(keys) == MAX_HERE:
        last = keys[-1].id()
        drain_task.enqueue(
            clients, replace(args, after=last), name=(args.minute, args.partition, last)
        )
    began = args.began or naive_utc(clients.clock.now())
    round_ = SweepRound.of(_round_name(joiners), began, args.since)
    _wake(clients, joiners, keys, round_, args.stale_s)


def _wake(
    clients: Clients, joiners: Joiners, keys: Sequence[Any], round_: SweepRound, stale_s: float
) -> int:
    """Create a task for each batch that is due again; the joiner reads its key."""
    period = datetime.timedelta(seconds=joiners.settings.period_s)
    due = [
        epoch.text
        for epoch in dict.fromkeys(_epochs(keys))
        if round_.is_due(epoch.opened + period, stale_s=stale_s)
    ]
    joiners.wake(clients, due, minute=_minute(clients))
    return len(due)


def _epochs(keys: Sequence[Any]) -> Iterator[EpochId]:
    """Return the epochs of packs; skip keys that are not of this code."""
    for key in keys:
        try:
            yield EpochId.parse(PackId.parse(key.id()).epoch)
        except ValueError:
            log.warning("%r is not the key of a pack: no joiner can find it", key.id())


def _round_name(joiners: Joiners) -> str:
    return f"fork-join:{joiners.settings.name}"


def _minute(clients: Clients) -> str:
    return f"{clients.clock.now():%Y%m%dT%H%M}"
