"""The sweep of flows: due flows are woken, and flows that ended long ago are deleted."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.batched import MAX_COMMIT_BYTES, batched, count_within
from rollforward.datastore.conversion.protobufs import protobuf_of
from rollforward.datastore.expiry import expired, expiry
from rollforward.datastore.transactions import transact
from rollforward.flows.rows.entities import FlowRun, due_by, values_of
from rollforward.flows.wakes import GRACE, FlowArgs, args_of
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.run_all import run_all
from rollforward.tasks.declaration import Task
from rollforward.tasks.expiry import Expiry

MAX_WOKEN = 1_000
MAX_PER_COMMIT = 20
MAX_CHUNKS = 200
MAX_PAUSE = datetime.timedelta(hours=1)
MOST_DOUBLINGS = 10


def wake_due(clients: Clients, tasks: Mapping[str, Task[FlowArgs]]) -> int:
    """Enqueue the flows that are due; return their number, at most 1,000.

    Each is due again later, ever more rarely, until a delivery has changed it: the sweep neither
    floods a queue that is slow, nor loses a flow whose task was lost.
    """
    now_utc = naive_utc(clients.clock.now())
    keys = due_by(now_utc).fetch(MAX_WOKEN, keys_only=True)
    parts = batched(keys, MAX_PER_COMMIT)
    actions = (
        ("flows could not be woken", partial(_wake, clients, tasks, part, now_utc))
        for part in parts
    )
    results = run_all(actions)
    results.raise_first()
    return sum(results.returned)


def _wake(
    clients: Clients,
    tasks: Mapping[str, Task[FlowArgs]],
    keys: Sequence[Any],
    now_utc: datetime.datetime,
) -> int:
    """Wake flows that are due; those that this app does not declare are due later, too."""
    try:
        due = transact(lambda: _reschedule(keys, now_utc))
    except rpc_errors.Aborted:
        return 0  # Deliveries are at work. The next sweep comes soon.
    results = run_all(
        (f"flows {name} could not be woken", partial(_enqueue, clients, task, name, due))
        for name, task in tasks.items()
    )
    results.raise_first()
    return sum(results.returned)


def _enqueue(clients: Clients, task: Task[FlowArgs], name: str, due: Sequence[FlowArgs]) -> int:
    """Enqueue the due flows of a name; return their number."""
    own = [args for args in due if args.run_id.partition("|")[0] == name]
    task.enqueue_many(clients, own)
    return len(own)


def _reschedule(keys: Sequence[Any], now_utc: datetime.datetime) -> list[FlowArgs]:
    """Let flows be due later, in a transaction; return the arguments of the due ones' tasks."""
    rows = [row for row in ndb.get_multi(keys) if row is not None]
    due = [row for row in rows if row.due is not None and row.due <= now_utc]
    # The next sweep wakes those that a commit has no room for.
    due = due[: count_within(MAX_COMMIT_BYTES, (protobuf_of(row).ByteSize() for row in due))]
    for row in due:
        # Whose turn waits in a lane is delivered by that: it may be there for days.
        doublings = MOST_DOUBLINGS if row.turn is not None else min(row.sweeps, MOST_DOUBLINGS)
        row.due = now_utc + min(MAX_PAUSE, GRACE * 2**doublings)
        row.sweeps += 1
    ndb.put_multi(due)
    return [args_of(row) for row in due]


class FlowExpiry(Expiry):
    """Deletes flows that ended long ago with their values, each in its own transactions."""

    def delete_page(self, clients: Clients, partition: str) -> int:
        """Delete a page of a partition; return how many flows had expired."""
        end = expiry(partition, naive_utc(clients.clock.now()))
        keys = expired(FlowRun, partition, end).fetch(self.page_size, keys_only=True)
        for key in keys:
            _remove(key, end)
        return len(keys)


def _remove(key: Any, end: str) -> None:
    """Delete a flow with its values, if it has not been retried meanwhile."""
    chunks = values_of(key.id()).fetch(MAX_CHUNKS, keys_only=True)

    def body(keys: Sequence[Any]) -> bool:
        row: FlowRun | None = key.get()
        if row is None or row.expires is None or row.expires >= end:
            return False
        ndb.delete_multi(keys)
        return True

    while len(chunks) == MAX_CHUNKS:
        if not transact(lambda: body(chunks)):  # noqa: B023
            return
        chunks = values_of(key.id()).fetch(MAX_CHUNKS, keys_only=True)
    transact(lambda: body([*chunks, key]))


EXPIRED = FlowExpiry("/tasks/flow-rows/expire", [], page_size=50, max_tasks=100)
