"""Rows of the outbox, as enqueued and as left behind, and what became of them."""

from __future__ import annotations

import importlib
import json
import uuid
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.local.cloudtasks.protocol import messages
from rollforward.outbox.entities import OutboxTask, RowId
from rollforward.outbox.sweep import sweep
from rollforward.runtime import Clients, naive_utc, open_cloud_tasks
from rollforward.tasks.cloud_tasks import CloudTaskQueue
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.testing.services import LOCATION, PROJECT
from tests.infra.world import World
from tests.rollforward.datastore.counters import break_call, no_pause
from tests.rollforward.outbox.order_tasks import Order, Settle, Step, settle, step

SWEEP = importlib.import_module("rollforward.outbox.sweep")

DEPTH = importlib.import_module("rollforward.outbox.depth")


def enqueue(clients: Clients, *steps: str, order: str = "o") -> None:
    """Enqueue some steps in a transaction."""

    def body() -> None:
        Order(id=order).put()
        for step_name in steps:
            outbox.enqueue(clients, step, Step(order, step_name))

    transact(body, sleep=no_pause)


def strand(world: World, count: int, **changes: Any) -> None:
    """Store abandoned rows, as many processes would leave them."""
    with world.context():
        at = naive_utc(world.clock.now())
        Order(id="o").put()
        rows = [
            stranded_row(RowId(uuid.uuid4().hex[:24], at, 0, is_unacked=False), i, changes)
            for i in range(count)
        ]
        for i in range(0, count, 500):
            ndb.put_multi(rows[i : i + 500])


def stranded_row(row: RowId, number: int, changes: dict[str, Any]) -> OutboxTask:
    body = json.dumps({"order": "o", "what": f"s{number}"})
    values = {"path": step.path, "queue": step.queue, "body": body, **changes}
    return OutboxTask(id=row.text, **values)


def sent(world: World, queue: str = "default") -> list[Any]:
    """Return the arguments of the tasks that wait in a queue."""
    [match] = [
        candidate for candidate in world.engine.queues.all() if candidate.name.endswith(f"/{queue}")
    ]
    specs = [messages.Task.FromString(task.spec) for task in match.tasks.values()]
    return [json.loads(spec.http_request.body) for spec in specs]


def steps_sent(world: World) -> list[str]:
    return sorted(args["what"] for args in sent(world))


def away(world: World) -> CloudTaskQueue:
    """Return Cloud Tasks at an address without a server."""
    client = open_cloud_tasks(emulator="127.0.0.1:9")
    return CloudTaskQueue(client, PROJECT, LOCATION, world.settings.target)


# The relay after the response


def give_up(world: World, clients: Clients, kind: str) -> None:
    """Enqueue in a transaction whose only try ends with an error."""
    break_call(world, "Commit", kind)

    def body() -> None:
        Order(id="o").put()
        outbox.enqueue(clients, step, Step("o", "pack"))

    with world.plan.watched(), pytest.raises(rpc_errors.GoogleAPICallError):
        transact(body, attempts=1)
    assert world.plan.fired


# One bad row


def make_queue(world: World, name: str) -> None:
    place = world.engine.place
    world.engine.create_queue(place.parent, messages.Queue(name=place.queue_name(name)))


def dead_tasks_of(world: World) -> list[Any]:
    with world.context():
        return DeadTask.query().fetch()  # type: ignore[no-any-return]


# The sweep


def spend(world: World) -> Any:
    """Sweep; return the cost."""
    with world.context():
        cost_before = world.clients.meter.cost()
        sweep(world.clients)
        return world.clients.meter.cost() - cost_before


def deliver_drains(world: World) -> int:
    """Deliver the walks through partitions, and nothing else; return how many there were."""
    queue = world.engine.place.queue_name("outbox")
    count = 0
    while due := world.engine.due(queue):
        assert world.deliver(due[0].task_name) == 204
        count += 1
    return count


# Unacked rows


def enqueue_unacked(clients: Clients) -> None:
    Order(id="o").put()
    outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="settle/o")
