"""The shop, version 2. What has changed since version 1, all in one deployment:

MailedOrderId.greeting  a new field with a default, of a task's arguments
Sold.currency           as of a fork-join queue's items
MAILED                  begins with four shards
LOOKED                  gathers its increments, and has no shards
NewOrdersOfCustomer     the view's next version, which somebody has to rebuild
insure                  a new step of the flow, before the others
fulfil.statement        a new argument of the flow, which is sent to the payment service
thank-customer          a new task
the stream's values     have one more field
OrdersHeldById          the next version of its computation, by which somebody has to replace it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rollforward as rf
from rollforward.counters import Counter
from rollforward.flows import Steps
from rollforward.fork_join import Batch, fork_join
from rollforward.materialized_views import ViewGroup, ViewMaintenance
from rollforward.runtime import Clients
from tests.simulation.shop import payments, receipts
from tests.simulation.shop.common import OrderId, Shop, add_to_revenue
from tests.simulation.shop.entities import (
    InsuredOrder,
    MailedOrder,
    NewOrdersOfCustomer,
    ThankedOrder,
    count_run,
    run_once_more,
)
from tests.simulation.shop.stream import SHOP, OrdersHeldById, sales_of

MAILED = Counter("simulated-mailed", queue="default", min_shards=4)
LOOKED = Counter("simulated-looked", mode="gathered", queue="default")


@dataclass(frozen=True)
class GreetedOrderId:
    order: str
    greeting: str = "Hello"


@dataclass(frozen=True)
class Sold:
    order: str
    cents: int
    currency: str = "EUR"


@rf.task(queue="default")
def mail_order(clients: Clients, args: GreetedOrderId) -> None:
    receipts.send_receipt(clients, args.order)
    run_once_more(MailedOrder, args.order)
    MAILED.increment(clients, SHOP, idempotency_key=args.order)


@rf.task(queue="default")
def thank_customer(clients: Clients, args: OrderId) -> None:
    run_once_more(ThankedOrder, args.order)


@fork_join("simulated-revenue", queue="fork-join", period_s=1)
def add_revenue(clients: Clients, batch: Batch, items: Sequence[Sold]) -> None:
    add_to_revenue(batch.key, [item.cents for item in items])


def insure(order: str) -> None:
    count_run(InsuredOrder, order)


@rf.flow("simulated-fulfilments")
def fulfil(step: Steps, order: str, cents: int, statement: str = "") -> None:
    step.commit("insure", insure, order)
    charge = payments.pay(step, order, cents, statement)
    step.sleep("rest", seconds=2)
    step.commit("finish", payments.finish, order, charge)


SECOND = Shop(
    *(2, mail_order, GreetedOrderId, MAILED, add_revenue, Sold, fulfil, NewOrdersOfCustomer),
    ViewMaintenance(ViewGroup("simulated-customers", NewOrdersOfCustomer)),
    LOOKED,
    sales_of(OrdersHeldById),
    fields={"note": "new"},
    statement=["the new shop"],
    thank_customer=thank_customer,
)
