"""The app of the simulator: an order that does everything at once, in one transaction.

It is saved as the source of a view, enqueues a task, counts, inserts into a fork-join queue, is a
member of its batch, enqueues another task in a lane, starts a flow, and waits in a pull queue. The
task counts once more, in a sharded counter. The callback of the batch notes that it ran, and what
it found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flask import Flask, request
from google.cloud import ndb

import rollforward as rf
from rollforward.batches import Completed, TaskBatch
from rollforward.counters import Counter
from rollforward.flows import Steps
from rollforward.fork_join import Batch, fork_join
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry
from rollforward.runtime import Clients

API = "/api"
SHOP = "shop"


class PlacedOrder(ndb.Model):
    """An order. Key: its id."""

    customer = ndb.TextProperty()
    cents = ndb.IntegerProperty(indexed=False)
    batch = ndb.TextProperty()


class MailedOrder(ndb.Model):
    """The task of an order has worked. Key: the order's id."""

    runs = ndb.IntegerProperty(indexed=False, default=0)


class PackedOrder(ndb.Model):
    """The member of a batch has worked. Key: the order's id."""

    runs = ndb.IntegerProperty(indexed=False, default=0)


class ClosedDay(ndb.Model):
    """The callback of a batch has run. Key: the batch."""

    runs = ndb.IntegerProperty(indexed=False, default=0)
    members = ndb.IntegerProperty(indexed=False)
    packed = ndb.IntegerProperty(indexed=False)


class CustomerOrders(ndb.Model):
    """The orders of a customer in the order of their commits. Key: the first customer of each."""

    placed = ndb.JsonProperty(default=[])


class ShippedOrders(ndb.Model):
    """The orders of a customer in the order in which their lane ran. Key: as above."""

    shipped = ndb.JsonProperty(default=[])


class PickedOrder(ndb.Model):
    """A worker has leased the order. Key: its id."""

    runs = ndb.IntegerProperty(indexed=False, default=0)


class BilledOrders(ndb.Model):
    """What the flows have billed. Key: the shop."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    bills = ndb.IntegerProperty(indexed=False, default=0)


class FinishedOrder(ndb.Model):
    """The last step of an order's flow has run. Key: the order's id."""

    runs = ndb.IntegerProperty(indexed=False, default=0)


class Revenue(ndb.Model):
    """The sum that a fork-join queue keeps. Key: the shop."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    orders = ndb.IntegerProperty(indexed=False, default=0)


class OrdersOfCustomer(View):
    """The orders of a customer."""

    source = PlacedOrder

    @staticmethod
    def contributions(order: PlacedOrder) -> Contributions:
        return {order.customer: {"cents": order.cents}}


@dataclass(frozen=True)
class OrderId:
    order: str


@dataclass(frozen=True)
class Shipment:
    order: str
    customer: str


@dataclass(frozen=True)
class Sold:
    order: str
    cents: int


@rf.task(queue="default")
def mail_order(clients: Clients, args: OrderId) -> None:
    _run_once_more(MailedOrder, args.order)
    MAILED.increment(clients, SHOP, idempotency_key=args.order)


@rf.task(queue="fan-out")
def pack_order(clients: Clients, args: OrderId) -> None:
    _run_once_more(PackedOrder, args.order)


def _run_once_more(kind: type[ndb.Model], order: str) -> None:
    def body() -> None:
        row = kind.get_by_id(order) or kind(id=order)
        row.runs += 1
        row.put()

    rf.transact(body)


@rf.task(queue="default")
def ship_order(clients: Clients, args: Shipment) -> None:
    def body() -> None:
        row = ShippedOrders.get_by_id(args.customer) or ShippedOrders(id=args.customer)
        if args.order not in row.shipped:
            row.shipped = [*row.shipped, args.order]
            row.put()

    rf.transact(body)


def bill(cents: int) -> None:
    """Bill an order: the flow sees to it that this commits once."""
    row = BilledOrders.get_by_id(SHOP) or BilledOrders(id=SHOP)
    row.cents += cents
    row.bills += 1
    row.put()


def finish(order: str) -> None:
    row = FinishedOrder.get_by_id(order) or FinishedOrder(id=order)
    row.runs += 1
    row.put()


@rf.flow("simulated-fulfilments")
def fulfil(step: Steps, order: str, cents: int) -> None:
    step.commit("bill", bill, cents)
    step.sleep("rest", seconds=2)
    step.commit("finish", finish, order)


@rf.task(queue="default")
def close_day(clients: Clients, args: Completed) -> None:
    def body() -> None:
        row = ClosedDay.get_by_id(args.batch_id) or ClosedDay(id=args.batch_id)
        row.runs += 1
        row.members, row.packed = args.done, len(packed)
        row.put()

    members = [key.id() for key in PlacedOrder.query().fetch(keys_only=True)]
    rows = ndb.get_multi([ndb.Key(PackedOrder, order) for order in members])
    placed = ndb.get_multi([ndb.Key(PlacedOrder, order) for order in members])
    packed = [
        order.key.id()
        for order, row in zip(placed, rows, strict=True)
        if order is not None and order.batch == args.batch_id and row is not None
    ]
    rf.transact(body)


@fork_join("simulated-revenue", queue="fork-join", period_s=1)
def add_revenue(clients: Clients, batch: Batch, items: Sequence[Sold]) -> None:
    row = Revenue.get_by_id(batch.key) or Revenue(id=batch.key)
    row.cents += sum(item.cents for item in items)
    row.orders += len(items)
    row.put()


PLACED = Counter("simulated-placed", mode="gathered", queue="default")
MAILED = Counter("simulated-mailed", queue="default")
DAYS = TaskBatch("simulated-days", members=[pack_order], on_complete=close_day)
CUSTOMERS = ViewGroup("simulated-customers", OrdersOfCustomer)
BUILDS = ViewMaintenance(CUSTOMERS)
PICKS = PullQueue("simulated-picks", max_deliveries=100)
BY_CUSTOMER = rf.Lane("simulated-customers", order=True)
REGISTRY = Registry(
    *(mail_order, PLACED, MAILED, DAYS, BUILDS, add_revenue, BY_CUSTOMER, ship_order, fulfil, PICKS)
)


def is_placed(order: str) -> bool:
    """Return whether an order was placed before: the guard of its transaction."""
    return PlacedOrder.get_by_id(order) is not None


def place_order(clients: Clients, order: str, customer: str, cents: int, batch: str) -> None:
    """Place an order, and all that follows, or nothing; a second time nothing."""

    def body() -> None:
        if is_placed(order):
            return
        row = PlacedOrder(id=order, customer=customer, cents=cents, batch=batch)
        CUSTOMERS.save_in_transaction(clients, row)
        rf.enqueue(clients, mail_order, OrderId(order))
        PLACED.increment_in_transaction(clients, {SHOP: 1})
        add_revenue.insert_in_transaction(clients, SHOP, Sold(order, cents))
        DAYS.populate_in_transaction(
            clients, batch, [(pack_order, OrderId(order))], idempotency_key=order
        )
        theirs = CustomerOrders.get_by_id(customer) or CustomerOrders(id=customer)
        theirs.placed = [*theirs.placed, order]
        theirs.put()
        shipment = Shipment(order, customer)
        rf.enqueue(clients, ship_order, shipment, lane=BY_CUSTOMER(customer))
        fulfil.start(clients, order, order, cents)
        PICKS.add_in_transaction(clients, order)

    rf.transact(body)


def move_order(clients: Clients, order: str, customer: str) -> None:
    """Give an order to another customer."""

    def body() -> None:
        row = PlacedOrder.get_by_id(order)
        row.customer = customer
        CUSTOMERS.save_in_transaction(clients, row)

    rf.transact(body)


def pick(clients: Clients) -> list[str]:
    """Work on some items of the pull queue; return those that were acknowledged."""
    leases = PICKS.lease(clients, limit=3, lease_s=30)
    for lease in leases:
        _run_once_more(PickedOrder, lease.payload)
    lost = PICKS.ack(clients, leases)
    return [lease.payload for lease in leases if lease not in lost]


def make() -> Flask:
    """Return the app without its clients."""
    app = Flask(__name__)

    @app.post(f"{API}/orders")
    def place() -> tuple[str, int]:
        place_order(rf.clients(), **request.get_json())
        return "", 204

    @app.post(f"{API}/moves")
    def move() -> tuple[str, int]:
        move_order(rf.clients(), **request.get_json())
        return "", 204

    @app.post(f"{API}/days/<batch>/end")
    def end_day(batch: str) -> tuple[str, int]:
        DAYS.populate(rf.clients(), batch, [], seal=True)
        return "", 204

    @app.post(f"{API}/picks")
    def picks() -> list[str]:
        return pick(rf.clients())

    return app
