"""Wakes: tasks by which the queue delivers a flow.

A flow's row says when it is due. A task only makes that come soon: one that is lost costs a round
of the sweep, and one too many finds nothing to do. So no row keeps it, and no commit waits for it.
"""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass, field
from typing import Annotated

import pydantic

from rollforward.datastore.transactions import current_transaction
from rollforward.flows.rows.entities import FlowRun
from rollforward.outbox import create_later
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.declaration import Task

log = logging.getLogger(__name__)

# After its task should have come, a flow waits so long for the sweep.
GRACE = datetime.timedelta(seconds=30)
# A longer sleep needs no task: the sweep wakes it. Cloud Tasks takes tasks for 30 days.
LONGEST_TASK = datetime.timedelta(days=25)

_HOOK = "flows"


@dataclass(frozen=True)
class FlowArgs:
    """Arguments of the task that delivers a flow.

    Attributes:
        run_id: The flow's name and id.
        lane: The key of a lane whose turn this is, "<lane>|<key>"; "": a wake.
        run: The run of the flow that it was enqueued for (`FlowRun.run`); "": an older version
            has enqueued it. It delivers the flow in any run, and fails it in this one alone.
    """

    run_id: Annotated[str, pydantic.Field(min_length=3, max_length=300)]
    lane: Annotated[str, pydantic.Field(max_length=1_000)] = ""
    run: Annotated[str, pydantic.Field(max_length=100)] = ""


def due_at(clients: Clients, at: datetime.datetime | None = None) -> datetime.datetime:
    """Return when the sweep is to wake a flow that has a task for some time; None: for now.

    A flow that has none, because its time is far away, is due then.
    """
    now_utc = clients.clock.now()
    if at is None or at <= now_utc:
        return naive_utc(now_utc + GRACE)
    return naive_utc(at if at - now_utc > LONGEST_TASK else at + GRACE)


def args_of(row: FlowRun, lane: str = "") -> FlowArgs:
    """Return the arguments of a task that delivers a flow."""
    return FlowArgs(row.key.id(), lane, row.run)


def wake(
    clients: Clients, task: Task[FlowArgs], row: FlowRun, at: datetime.datetime | None = None
) -> None:
    """Enqueue the delivery of a flow whose row is committed."""
    now_utc = clients.clock.now()
    if at is not None and at - now_utc > LONGEST_TASK:
        return
    due = at if at is not None and at > now_utc else None
    create_later(clients, [task.message(args_of(row), at=due)])


def wake_after_commit(clients: Clients, task: Task[FlowArgs], row: FlowRun) -> None:
    """Enqueue the delivery of a flow once the transaction that this code runs in is committed."""
    transaction = current_transaction()
    transaction.hook(_HOOK, lambda: _Wakes(clients)).tasks[row.key.id()] = task, args_of(row)


@dataclass
class _Wakes:
    """The flows that a transaction changes."""

    clients: Clients
    tasks: dict[str, tuple[Task[FlowArgs], FlowArgs]] = field(default_factory=dict)

    def on_retry(self, cause: Exception) -> None:
        """Keep the flows: a delivery too many does no harm."""

    def on_commit(self) -> None:
        messages = [task.message(args) for task, args in self.tasks.values()]
        create_later(self.clients, messages)

    def on_outcome_unknown(self) -> None:
        """Wake flows that may be committed anyway."""
        if current := list(self.tasks):
            log.info("%d flows may have been changed", len(current))
            self.on_commit()
