"""The parts of the shop that both of its versions have, and those by which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

import rollforward as rf
from rollforward.batches import Completed, TaskBatch
from rollforward.continuations import EntitySource, ItemError
from rollforward.counters import Counter
from rollforward.materialized_views import View, ViewGroup, ViewMaintenance
from rollforward.pull_queues import PullQueue
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import Pipeline
from rollforward.tasks import Task
from tests.simulation.shop.entities import (
    AuditedOrder,
    ClosedDay,
    PackedOrder,
    PlacedOrder,
    Revenue,
    ShippedOrders,
    count_run,
    run_once_more,
)


@dataclass(frozen=True)
class OrderId:
    order: str


@dataclass(frozen=True)
class Shipment:
    order: str
    customer: str


@dataclass(frozen=True)
class Audit:
    """The arguments of an audit of all orders: none."""


@rf.task(queue="fan-out")
def pack_order(clients: Clients, args: OrderId) -> None:
    run_once_more(PackedOrder, args.order)


@rf.task(queue="default")
def ship_order(clients: Clients, args: Shipment) -> None:
    def body() -> None:
        row = ShippedOrders.get_by_id(args.customer) or ShippedOrders(id=args.customer)
        if args.order not in row.shipped:
            row.shipped = [*row.shipped, args.order]
            row.put()

    rf.transact(body)


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


@rf.job("simulated-audit", source=lambda args: EntitySource(PlacedOrder), page_size=2)
def audit_orders(
    clients: Clients, args: Audit, orders: Sequence[PlacedOrder]
) -> Sequence[ItemError | None]:
    for order in orders:
        count_run(AuditedOrder, order.key.id())
    return [None] * len(orders)


def add_to_revenue(key: str, cents: Sequence[int]) -> None:
    """Add the items of a batch of a fork-join queue."""
    row = Revenue.get_by_id(key) or Revenue(id=key)
    row.cents += sum(cents)
    row.orders += len(cents)
    row.put()


PLACED = Counter("simulated-placed", mode="gathered", queue="default")
DAYS = TaskBatch("simulated-days", members=[pack_order], on_complete=close_day)
PICKS = PullQueue("simulated-picks", max_deliveries=100)
BY_CUSTOMER = rf.Lane("simulated-customers", order=True)
COMMON = (PLACED, DAYS, BY_CUSTOMER, ship_order, PICKS, audit_orders)


@dataclass(frozen=True)
class Shop:
    """A version of the app: its parts that differ from those of the other one.

    Attributes:
        revenue: A fork-join queue, whose items `sold` makes of an order and its cents.
        order_id: Makes the arguments of `mail_order`.
        view: The orders of a customer.
        builds: The maintenance of the group of that view.
        looked: A counter of looks, which are no orders.
        sales: The stream.
        fields: Further fields of a value of the stream.
        statement: Further arguments of the flow.
        thank_customer: A task that only one version has.
    """

    version: int
    mail_order: Task[Any]
    order_id: Any
    mailed: Counter
    revenue: Any
    sold: Any
    fulfil: Any
    view: type[View]
    builds: ViewMaintenance
    looked: Counter
    sales: Pipeline
    fields: dict[str, Any] = field(default_factory=dict)
    statement: Sequence[str] = ()
    thank_customer: Task[Any] | None = None

    @property
    def customers(self) -> ViewGroup:
        """The group of the view."""
        return self.builds.views

    def registry(self) -> Registry:
        """Return all parts of this version."""
        parts = [*COMMON, self.mail_order, self.mailed, self.revenue, self.fulfil]
        parts += [self.builds, self.looked, self.sales]
        return Registry(*parts, *([self.thank_customer] if self.thank_customer else []))
