"""The shop, version 1."""

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
from tests.simulation.shop.entities import MailedOrder, OrdersOfCustomer, run_once_more
from tests.simulation.shop.stream import SHOP, sales_of

MAILED = Counter("simulated-mailed", queue="default")
LOOKED = Counter("simulated-looked", queue="default")


@dataclass(frozen=True)
class Sold:
    order: str
    cents: int


@rf.task(queue="default")
def mail_order(clients: Clients, args: OrderId) -> None:
    receipts.send_receipt(clients, args.order)
    run_once_more(MailedOrder, args.order)
    MAILED.increment(clients, SHOP, idempotency_key=args.order)


@fork_join("simulated-revenue", queue="fork-join", period_s=1)
def add_revenue(clients: Clients, batch: Batch, items: Sequence[Sold]) -> None:
    add_to_revenue(batch.key, [item.cents for item in items])


@rf.flow("simulated-fulfilments")
def fulfil(step: Steps, order: str, cents: int) -> None:
    charge = payments.pay(step, order, cents)
    step.sleep("rest", seconds=2)
    step.commit("finish", payments.finish, order, charge)


FIRST = Shop(
    *(1, mail_order, OrderId, MAILED, add_revenue, Sold, fulfil, OrdersOfCustomer),
    ViewMaintenance(ViewGroup("simulated-customers", OrdersOfCustomer)),
    LOOKED,
    sales_of(),
)
