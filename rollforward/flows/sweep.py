"""The sweep of flows: due flows are woken, and flows that ended long ago are deleted."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.batched import batched
from rollforward.datastore.expiry import delete_expired, expired, expiry
from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import transact
from rollforward.flows.rows.entities import FlowRun, due_by, values_of
from rollforward.flows.wakes import GRACE, FlowArgs
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import Task

MAX_WOKEN = 1_000
MAX_PER_COMMIT = 20
MAX_DELETED = 500
MAX_PAUSE = datetime.timedelta(hours=1)


def wake_due(clients: Clients, tasks: Mapping[str, Task[FlowArgs]]) -> int:
    """Enqueue the flows that are due; return their number, at most 1,000.

    Each is due again later, ever more rarely, until a delivery has changed it: the sweep neither
    floods a queue that is slow, nor loses a flow whose task was lost.
    """
    now_utc = naive_utc(clients.clock.now())
    keys = due_by(now_utc).fetch(MAX_WOKEN, keys_only=True)
    declared = [key for key in keys if key.id().partition("|")[0] in tasks]
    return sum(_wake(clients, tasks, part, now_utc) for part in batched(declared, MAX_PER_COMMIT))


def _wake(
    clients: Clients,
    tasks: Mapping[str, Task[FlowArgs]],
    keys: Sequence[Any],
    now_utc: datetime.datetime,
) -> int:
    try:
        due = transact(lambda: _postpone(keys, now_utc))
    except rpc_errors.Aborted:
        return 0  # Deliveries are at work. The next sweep comes soon.
    for name, task in tasks.items():
        run_ids = [run_id for run_id in due if run_id.partition("|")[0] == name]
        task.enqueue_many(clients, [FlowArgs(run_id) for run_id in run_ids])
    return len(due)


def _postpone(keys: Sequence[Any], now_utc: datetime.datetime) -> list[str]:
    """Let flows be due later, in a transaction; return the ids of the due ones."""
    rows = [row for row in ndb.get_multi(keys) if row is not None]
    due = [row for row in rows if row.due is not None and row.due <= now_utc]
    for row in due:
        row.due = now_utc + min(MAX_PAUSE, GRACE * 2 ** min(row.sweeps, 10))
        row.sweeps += 1
    ndb.put_multi(due)
    return [row.key.id() for row in due]


def remove_expired(clients: Clients) -> int:
    """Delete flows that ended long ago, with their values; return how many rows went.

    One partition in each minute: a query when nothing is due.
    """
    now_utc = naive_utc(clients.clock.now())
    partition = PARTITIONS[now_utc.minute % len(PARTITIONS)]
    end = expiry(partition, now_utc)
    keys = expired(FlowRun, partition, end).fetch(MAX_DELETED, keys_only=True)
    chunks = [chunk for key in keys for chunk in values_of(key.id()).fetch(keys_only=True)]
    ndb.delete_multi(chunks)
    delete_expired(keys, end)
    return len(chunks) + len(keys)
