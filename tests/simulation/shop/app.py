"""The app of the simulator: an order that does everything at once, in one transaction.

It is saved as the source of a view and counts. Further parts are drawn by the seed: it enqueues a
task, inserts into a fork-join queue, is a member of its batch, enqueues another task in a lane,
starts a flow, waits in a pull queue, and is pushed into a stream. The task mails a receipt, and
counts once more, in a sharded counter. The flow bills the order, has its card charged by a payment
service, and takes the bill back if that refuses the card. The callback of the batch notes that it
ran, and what it found. A continuation looks at all orders. Visitors look at the shop, which counts
where the version says; and once a deployment has changed the view and a computation of the stream,
somebody rebuilds the one and replaces the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, request

import rollforward as rf
from rollforward import continuations
from rollforward.flows.rows.entities import failed_flows
from rollforward.runtime import Clients
from tests.simulation.shop.common import (
    BY_CUSTOMER,
    DAYS,
    PICKS,
    PLACED,
    Audit,
    OrderId,
    Shipment,
    Shop,
    audit_orders,
    pack_order,
    ship_order,
)
from tests.simulation.shop.entities import (
    CustomerOrders,
    PickedOrder,
    PlacedOrder,
    run_once_more,
)
from tests.simulation.shop.stream import SHOP, HeldOrders

API = "/api"


def is_placed(order: str) -> bool:
    """Return whether an order was placed before: the guard of its transaction."""
    return PlacedOrder.get_by_id(order) is not None


def place_order(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    """Place an order, and all that follows, or nothing; a second time nothing."""
    id_, customer = order["order"], order["customer"]

    def body() -> None:
        if is_placed(id_):
            return
        names = ("customer", "cents", "batch", "parts")
        fields = {name: order[name] for name in names}
        row = PlacedOrder(id=id_, version=shop.version, **fields)
        shop.customers.save_in_transaction(clients, row)
        PLACED.increment_in_transaction(clients, {SHOP: 1})
        theirs = CustomerOrders.get_by_id(customer) or CustomerOrders(id=customer)
        theirs.placed = [*theirs.placed, id_]
        theirs.put()
        for part in order["parts"]:
            FOLLOWS[part](shop, clients, order)

    rf.transact(body)


def _mail(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    rf.enqueue(clients, shop.mail_order, shop.order_id(order["order"]))
    if shop.thank_customer is not None:
        rf.enqueue(clients, shop.thank_customer, OrderId(order["order"]))


def _add_revenue(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    sold = shop.sold(order["order"], order["cents"])
    shop.revenue.insert_in_transaction(clients, SHOP, sold)


def _pack(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    members = [(pack_order, OrderId(order["order"]))]
    key = order["order"]
    DAYS.populate_in_transaction(clients, order["batch"], members, idempotency_key=key)


def _ship(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    shipment = Shipment(order["order"], order["customer"])
    rf.enqueue(clients, ship_order, shipment, lane=BY_CUSTOMER(order["customer"]))


def _fulfil(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    arguments = order["order"], order["cents"], *shop.statement
    shop.fulfil.start(clients, order["order"], *arguments)


def _let_pick(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    PICKS.add_in_transaction(clients, order["order"])


def _stream(shop: Shop, clients: Clients, order: Mapping[str, Any]) -> None:
    value = {name: order[name] for name in ("order", "customer", "cents")} | shop.fields
    shop.sales.push_in_transaction(clients, "orders", value, order["at_ms"])


FOLLOWS: Mapping[str, Callable[[Shop, Clients, Mapping[str, Any]], None]] = {
    "flow": _fulfil,
    "mail": _mail,
    "pack": _pack,
    "pick": _let_pick,
    "revenue": _add_revenue,
    "ship": _ship,
    "stream": _stream,
}


def move_order(shop: Shop, clients: Clients, order: str, customer: str) -> None:
    """Give an order to another customer."""

    def body() -> None:
        row = PlacedOrder.get_by_id(order)
        row.customer = customer
        shop.customers.save_in_transaction(clients, row)

    rf.transact(body)


def pick(clients: Clients) -> list[str]:
    """Work on some items of the pull queue; return those that were acknowledged."""
    leases = PICKS.lease(clients, limit=3, lease_s=30)
    for lease in leases:
        run_once_more(PickedOrder, lease.payload)
    lost = PICKS.ack(clients, leases)
    return [lease.payload for lease in leases if lease not in lost]


def retry_undos(shop: Shop, clients: Clients) -> None:
    """Do as the text of a failed flow says that a step of the new version keeps from its undos."""
    for row in failed_flows().fetch():
        if "new_calls=True" in row.failure:
            shop.fulfil.retry(clients, row.flow_id, new_calls=True)


def make(shop: Shop) -> Flask:
    """Return the app of a version without its clients."""
    app = Flask(__name__)
    done = "", 204

    @app.post(f"{API}/orders")
    def place() -> tuple[str, int]:
        place_order(shop, rf.clients(), request.get_json())
        return done

    @app.post(f"{API}/moves")
    def move() -> tuple[str, int]:
        move_order(shop, rf.clients(), **request.get_json())
        return done

    @app.post(f"{API}/looks")
    def look() -> tuple[str, int]:
        shop.looked.increment(rf.clients(), SHOP)
        return done

    @app.post(f"{API}/rebuilds")
    def rebuild() -> tuple[str, int]:
        if shop.view.version == 1:
            return "the next version rebuilds it", 409
        shop.builds.rebuild(rf.clients(), shop.view)
        return done

    @app.post(f"{API}/replacements")
    def replace() -> tuple[str, int]:
        if shop.version == 1:
            return "the next version has what replaces it", 409
        shop.sales.replace(rf.clients(), HeldOrders.name)
        return done

    @app.post(f"{API}/audits")
    def audit() -> tuple[str, int]:
        continuations.start(rf.clients(), audit_orders, Audit(), run_id="audit")
        return done

    @app.post(f"{API}/days/<batch>/end")
    def end_day(batch: str) -> tuple[str, int]:
        DAYS.populate(rf.clients(), batch, [], seal=True)
        return done

    @app.post(f"{API}/sales/end")
    def end_sales() -> tuple[str, int]:
        shop.sales.close(rf.clients(), "orders")
        return done

    @app.post(f"{API}/fulfilments/retries")
    def retry() -> tuple[str, int]:
        retry_undos(shop, rf.clients())
        return done

    @app.post(f"{API}/picks")
    def picks() -> list[str]:
        return pick(rf.clients())

    return app
