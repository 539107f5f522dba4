"""Dead tasks of windows: all calls of a run in one, which a replay adds to their key again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.datastore.versions import commit_of_puts
from rollforward.lanes import hints
from rollforward.lanes.gathered.window import place_in_key
from rollforward.lanes.rows.entities import LaneTask, task_key
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.tasks import dead_tasks
from rollforward.tasks.stored import arguments
from rollforward.tasks.stored.names import MAX_BODY_BYTES

if TYPE_CHECKING:
    from rollforward.lanes.gathered.declaration import Gathered


@dataclass(frozen=True)
class DeadCall:
    """A call of a dead task.

    Attributes:
        id: The end of the id of its row.
        body: Its arguments, as JSON.
    """

    id: str
    body: str


@dataclass(frozen=True)
class DeadCalls:
    """Arguments of a dead task: the calls of one run, in their order."""

    lane_id: str
    calls: tuple[DeadCall, ...]


def keep_dead(
    clients: Clients,
    gathered: Gathered[Any],
    lane_id: str,
    dead_id: str,
    rows: Sequence[LaneTask],
    reason: str,
) -> None:
    """Keep the calls of a run as one dead task, in the transaction that deletes them."""
    calls = tuple(DeadCall(place_in_key(row.key.id()), row.body) for row in rows)
    # The calls of a run are text within text.
    message = gathered.replay_task.message(DeadCalls(lane_id, calls), max_bytes=MAX_COMMIT_BYTES)
    dead_tasks.dead_letter_in_transaction(
        clients,
        dead_id=dead_id,
        path=message.path,
        queue=message.queue,
        body=arguments.hold(message.body, dead_id, MAX_BODY_BYTES),
        reason=reason,
    )


def replay(gathered: Gathered[Any], clients: Clients, args: DeadCalls) -> None:
    """Add the calls of a dead task to their key again, at their places; then they are due."""
    rows = [
        LaneTask(
            key=task_key(f"{args.lane_id}|{call.id}"),
            place=f"{args.lane_id}|{call.id}",
            path=gathered.path,
            body=call.body,
            added=naive_utc(clients.clock.now()),
        )
        for call in args.calls
    ]
    puts: list[tuple[ndb.Model, int | None]] = [(row, None) for row in rows]
    # A delivery before this one may have added them.
    with contextlib.suppress(rpc_errors.AlreadyExists):
        apply_together(clients, commit_of_puts(clients.datastore, puts))
    hints.hint(clients, gathered.task, args.lane_id)
