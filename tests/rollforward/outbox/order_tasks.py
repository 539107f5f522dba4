"""Orders whose tasks are enqueued with them: shared by the tests of the outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flask import request
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients
from rollforward.tasks import task
from tests.infra.world import World


class Order(ndb.Model):
    """An entity that the transaction writes besides its tasks."""


class Ran(ndb.Model):
    """That a task ran: a row for each task that was created, however often it was delivered."""

    saw_order = ndb.BooleanProperty(indexed=False)


@dataclass(frozen=True)
class Step:
    """A step of an order."""

    order: str
    what: str


@dataclass(frozen=True)
class Settle:
    """A step of an order that acks its row."""

    order: str
    row: str


@task("/tasks/tests/step", queue="default")
def step(clients: Clients, args: Step) -> None:
    """Note that it ran."""
    transact(lambda: note(args.order, args.what))


@task("/tasks/tests/settle", queue="fan-out")
def settle(clients: Clients, args: Settle) -> None:
    """Note that it ran, and ack the row in the same commit."""

    def body() -> None:
        note(args.order, "settle")
        outbox.ack(args.row)

    transact(body)


class Never:
    """A relay of a process that dies right after its commits."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass

    def resolve(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass


def dying(world: World) -> Clients:
    """Return clients of a process that relays nothing."""
    return replace(world.clients, relay=Never())


TASKS = (step, settle)
STEPS = ("pack", "print", "bill", "remind", "settle")


def note(order: str, what: str) -> None:
    name = request.headers["X-CloudTasks-TaskName"]
    saw_order = Order.get_by_id(order) is not None
    Ran(id=f"{order}/{what}/{name}", saw_order=saw_order).put()


def place(clients: Clients, order: str) -> None:
    """Be the body of a transaction: an order, and every kind of task."""
    Order(id=order).put()
    outbox.enqueue(clients, step, Step(order, "pack"))
    outbox.enqueue(clients, step, Step(order, "print"))
    outbox.enqueue(clients, step, Step(order, "bill"), name=("bill", order))
    outbox.enqueue(clients, step, Step(order, "remind"), delay_s=30)
    outbox.enqueue_with_ack(clients, settle, lambda row: Settle(order, row), tag=f"settle/{order}")


def ran_here(order: str) -> Counter[str]:
    """Return how many tasks ran of each step; asks that all of them saw the order."""
    start, beyond = ndb.Key(Ran, f"{order}/"), ndb.Key(Ran, f"{order}0")
    rows = Ran.query(Ran._key > start, Ran._key < beyond).fetch()
    assert all(row.saw_order for row in rows), "a task ran before its order could be read"
    return Counter(row.key.id().split("/")[1] for row in rows)


def ran(world: World, order: str) -> Counter[str]:
    """Do the same in a context of its own."""
    with world.context():
        return ran_here(order)


def rows_here() -> list[OutboxTask]:
    """Return the rows that wait."""
    return OutboxTask.query().fetch()  # type: ignore[no-any-return]


def waiting(world: World) -> list[OutboxTask]:
    """Do the same in a context of its own."""
    with world.context():
        return rows_here()
