"""The sweep of the outbox: it relays abandoned rows.

An idle outbox costs one query. The sweep itself relays the oldest hundred rows. If there are more,
each of their partitions gets a task that drains it, under a lease. A row that Cloud Tasks has
refused for ten minutes becomes a dead task.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import transact
from rollforward.outbox.entities import (
    OutboxLease,
    OutboxTask,
    RowId,
    lease_key,
    outbox_rows,
)
from rollforward.outbox.relay import RelayResult, age_s, relay, row_id
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sweeps.sweep_round import SweepRound
from rollforward.tasks import dead_tasks
from rollforward.tasks.cloud_tasks import MAX_PER_CALL
from rollforward.tasks.declaration import hashed_name, task

# The age at which a row counts as abandoned by its own process.
STALE_S = 15.0
# A refusal may come from a running deployment: the queue is created after the code.
REFUSED_FOR_S = 600.0
LEASE_S = 60.0
# The lease of a walk that was enqueued and has not begun: its queue may be paused.
ASKED_S = 600.0
MAX_PER_DRAIN = 1_000
_ROUND = "outbox"


@dataclass(frozen=True)
class SweepResult:
    """Tasks that one call of the sweep has created, and partitions handed to tasks."""

    created: int = 0
    partitions: int = 0


@dataclass(frozen=True)
class Drain:
    """A partition to drain: from a row on, as part of a walk and of a round of the sweep."""

    partition: Annotated[str, pydantic.Field(pattern="^[0-9a-f]$")]
    walk: Annotated[str, pydantic.Field(min_length=1, max_length=64)]
    after: Annotated[str, pydantic.Field(max_length=1500)] = ""
    began: datetime.datetime | None = None
    since: datetime.datetime | None = None
    stale_s: float = STALE_S


def sweep(clients: Clients, *, stale_s: float = STALE_S) -> SweepResult:
    """Relay abandoned rows; hand them to tasks if one call cannot relay all.

    Args:
        stale_s: The age at which a row counts as abandoned by its own process.
    """
    selection = _Selection(SweepRound.begin(clients, _ROUND), stale_s)
    keys = outbox_rows().fetch(MAX_PER_CALL + 1, keys_only=True)
    busy: list[str] = []
    if len(keys) > MAX_PER_CALL:
        keys, busy = selection.oldest()
    relayed = _relay_due(clients, selection, keys)
    partitions = _send(clients, selection, busy)
    # Rows that were neither answered nor handed over are due in the next round, too.
    if not relayed.unanswered and partitions == len(busy):
        selection.round.end()
    return SweepResult(relayed.created, partitions)


@dataclass(frozen=True)
class _Selection:
    """The rules by which a round of the sweep picks rows."""

    round: SweepRound
    stale_s: float

    def is_due(self, row: RowId) -> bool:
        """Return whether the sweep must relay a row.

        The task of an unacked row usually exists and waits in its queue, so the sweep checks it
        less and less often.
        """
        if row.is_unacked:
            return self.round.is_due(row.created, stale_s=self.stale_s)
        return age_s(row, self.round.began) >= self.stale_s

    def is_recent(self, row: RowId) -> bool:
        """Return whether a row, and all newer ones of its partition, belong to their processes."""
        return 0 <= (self.round.began - row.created).total_seconds() < self.stale_s

    def oldest(self) -> tuple[list[Any], list[str]]:
        """Return the keys of the oldest rows that are due, and the partitions that have more."""
        asked = [
            (partition, outbox_rows(partition).fetch_async(MAX_PER_CALL, keys_only=True))
            for partition in PARTITIONS
        ]
        oldest = {partition: future.get_result() for partition, future in asked}
        due = [key for keys in oldest.values() for key in keys if self.is_due(row_id(key))]
        due.sort(key=lambda key: row_id(key).created)
        remaining = set(due[MAX_PER_CALL:])
        return due[:MAX_PER_CALL], [
            partition
            for partition, keys in oldest.items()
            if not remaining.isdisjoint(keys)
            or (len(keys) == MAX_PER_CALL and not self.is_recent(row_id(keys[-1])))
        ]


def _send(clients: Clients, selection: _Selection, partitions: Sequence[str]) -> int:
    """Give each partition a walk, unless it has one; return how many got one."""
    keys = [lease_key(partition) for partition in partitions]
    leases = dict(zip(partitions, ndb.get_multi(keys), strict=True))
    free = [partition for partition, lease in leases.items() if not _is_taken(clients, lease)]
    if not free:
        return 0
    walk, began, since = clients.new_id(), selection.round.began, selection.round.since
    many = [Drain(p, walk, began=began, since=since, stale_s=selection.stale_s) for p in free]
    leases_here = [_lease(clients, args, LEASE_S) for args in many]
    ndb.put_multi(leases_here)  # For a minute, in case this process dies before it has asked.
    try:
        drain.enqueue_many(clients, many, names=[(walk, args.partition, "") for args in many])
    except Exception:
        ndb.delete_multi([lease_key(partition) for partition in free])
        raise
    transact(lambda: _extend(clients, leases_here))
    return len(free)


def _extend(clients: Clients, leases: Sequence[OutboxLease]) -> None:
    """Let leases last as long as a walk may wait for its queue, unless it has begun already."""
    stored = ndb.get_multi([lease.key for lease in leases])
    ends = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=ASKED_S)
    unchanged = [lease for lease in leases if lease in stored]
    for lease in unchanged:
        lease.ends = ends
    ndb.put_multi(unchanged)


@task("/tasks/outbox/drain", queue="outbox")
def drain(clients: Clients, args: Drain) -> None:
    """Relay the rows of a partition, oldest first; enqueue another task for the rest."""
    if not transact(lambda: _take(clients, args)):
        return
    selection = _Selection(
        SweepRound.of(_ROUND, args.began or naive_utc(clients.clock.now()), args.since),
        args.stale_s,
    )
    keys = outbox_rows(args.partition, after=args.after).fetch(MAX_PER_DRAIN, keys_only=True)
    for part in batched(keys, MAX_PER_CALL):
        _relay_due(clients, selection, part)
    if len(keys) < MAX_PER_DRAIN:
        transact(lambda: _release(args))
        return
    newest = str(keys[-1].id())
    drain.enqueue(clients, replace(args, after=newest), name=(args.walk, args.partition, newest))


def _take(clients: Clients, args: Drain) -> bool:
    """Take a partition's lease, in a transaction; False: another walk has it."""
    lease = lease_key(args.partition).get()
    if lease is not None and lease.owner != args.walk and _is_taken(clients, lease):
        return False
    _lease(clients, args, LEASE_S).put()
    return True


def _is_taken(clients: Clients, lease: OutboxLease | None) -> bool:
    at = naive_utc(clients.clock.now())
    # An end far ahead is from a wrong clock, and is ignored.
    longest = at + datetime.timedelta(seconds=2 * ASKED_S)
    return lease is not None and at < lease.ends <= longest


def _lease(clients: Clients, args: Drain, lasts_s: float) -> OutboxLease:
    ends = naive_utc(clients.clock.now()) + datetime.timedelta(seconds=lasts_s)
    return OutboxLease(key=lease_key(args.partition), owner=args.walk, ends=ends)


def _release(args: Drain) -> None:
    lease = lease_key(args.partition).get()
    if lease is not None and lease.owner == args.walk:
        lease.key.delete()


def _relay_due(clients: Clients, selection: _Selection, keys: Sequence[Any]) -> RelayResult:
    at = naive_utc(clients.clock.now())
    due = [key for key in keys if selection.is_due(row_id(key))]
    rows = [row for row in ndb.get_multi(due) if row is not None]
    if not rows:
        return RelayResult(0, [], [])
    relayed = relay(clients, rows)
    for row, error in relayed.refused:
        if age_s(row_id(row.key), at) >= REFUSED_FOR_S:
            _dead_letter(clients, row, error)
    return relayed


def _dead_letter(clients: Clients, row: OutboxTask, error: Exception) -> None:
    """Write a dead task for a row. An unacked row stays, since its work is not done."""
    dead_tasks.dead_letter(
        clients,
        path=row.path or "",
        queue=row.queue or "",
        task_name=row.name or hashed_name("outbox", row.key.id()),
        body=(row.body or "").encode(),
        reason=f"Cloud Tasks refuses it. {type(error).__name__}: {error}",
        error=type(error).__name__,
    )
    if not row_id(row.key).is_unacked:
        row.key.delete()
