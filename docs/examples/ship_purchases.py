"""A task that is enqueued in a transaction: each purchase is shipped, and nothing else.

    .venv/bin/python -m docs.examples.ship_purchases

It makes three purchases: one succeeds, one fails in the middle, and the process of the third one
dies right after its commit. The program starts its own services: see raise_prices.py.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import replace

from google.cloud import ndb

from docs.examples.raise_prices import ROOT, open_clients
from rollforward import outbox
from rollforward.datastore import transact
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients, SystemClock
from rollforward.tasks import task


# howto: from here
class Purchase(ndb.Model):
    is_shipped = ndb.BooleanProperty(indexed=False, default=False)


@task("/tasks/purchases/ship")
def ship(clients: Clients, what: str) -> None:
    def body() -> None:
        purchase = Purchase.get_by_id(what)
        if not purchase.is_shipped:  # The guard: otherwise this was delivered before.
            purchase.is_shipped = True
            purchase.put()

    transact(body)


def buy(clients: Clients, what: str, *, in_stock: bool = True) -> None:
    def body() -> None:
        if Purchase.get_by_id(what) is not None:
            return  # The guard: this ran before, and its task is enqueued.
        Purchase(id=what).put()
        outbox.enqueue(clients, ship, ship.bind(what))
        if not in_stock:
            raise LookupError(f"there is no {what}")

    transact(body)


# howto: to here


class Dying:
    """The relay of a process that dies after its commit."""

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass

    def resolve(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        pass


class NextMinute(SystemClock):
    """The clock of the next sweep."""

    def now(self) -> datetime.datetime:
        return super().now() + datetime.timedelta(minutes=1)


def play(clients: Clients, queue: RunningEmulator) -> str:
    """Buy three things; return the purchases before the next sweep and after it."""
    with clients.context():
        buy(clients, "chair")
        with contextlib.suppress(LookupError):
            buy(clients, "lamp", in_stock=False)
        buy(replace(clients, relay=Dying()), "table")
        deliver_all(clients, queue)
        before = states()
        outbox.sweep(replace(clients, clock=NextMinute()))
        deliver_all(clients, queue)
        return f"{before}; after the sweep: {states()}"


def states() -> str:
    found = sorted(Purchase.query(), key=lambda purchase: purchase.key.id())
    return ", ".join(
        f"{purchase.key.id()} {'shipped' if purchase.is_shipped else 'bought'}"
        for purchase in found
    )


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: deliver due tasks, each twice."""
    while due := queue.engine.due():
        attempt = queue.engine.begin_attempt(due[0].task_name)
        for _ in range(2):
            ship.work(clients, ship.read(attempt.body))
        queue.engine.end_attempt(attempt.id, status=204)


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print(play(open_clients(datastore, queue), queue))  # noqa: T201


if __name__ == "__main__":
    main()
