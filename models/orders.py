"""Orders: sales, their orders and stock, and the bank that stands for a service outside.

OrderSale
    Key: the id of the form that opened it. What was asked for.
    Queries: newest first, by `created`. Single-property index.
    Growth: one row for each sale, of which the newest 20 are kept; a new one deletes the others.

OrderCard
    Key: "<sale>|<number>", fixed width. Inserted with its flow, and written by the flow's steps.
    Queries: a range of keys: the orders of a sale. Growth: one row for each order of each sale.

OrderShelf
    Key: "<sale>|<number>". A part of a sale's stock, so that no row is written by all orders.
    Queries: none; read by key. Growth: ten rows for each sale.

OrderCharge
    Key: "<sale>|<idempotency key of a call>". What the bank remembers of a call, so that it charges
    once for a key. Written in the bank's own transactions, which know nothing of orders.
    Queries: a range of keys: the bank's statement of a sale. Growth: one row for each order.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

# The bank's word for a call.
HELD, REFUNDED, DECLINED = "held", "refunded", "declined"


class OrderSale(ndb.Model):
    """Orders that one form asked for."""

    created = ndb.DateTimeProperty(required=True)
    orders = ndb.IntegerProperty(indexed=False, required=True)
    stock = ndb.IntegerProperty(indexed=False, required=True)
    patience_s = ndb.IntegerProperty(indexed=False, required=True)  # Until the courier is late.
    courier = ndb.TextProperty(required=True)
    pace = ndb.TextProperty(required=True)


class OrderCard(ndb.Model):
    """An order, as its steps have left it."""

    number = ndb.IntegerProperty(indexed=False, required=True)
    stage = ndb.TextProperty(required=True)
    reason = ndb.TextProperty()  # Why it went backwards.
    payment = ndb.TextProperty()
    # Calls to the bank of which nobody knew whether they had taken effect.
    doubts = ndb.IntegerProperty(indexed=False, default=0)
    changed = ndb.DateTimeProperty(indexed=False, required=True)


class OrderShelf(ndb.Model):
    """A part of the stock: how much there was, and how much is reserved."""

    stock = ndb.IntegerProperty(indexed=False, required=True)
    reserved = ndb.IntegerProperty(indexed=False, required=True)


class OrderCharge(ndb.Model):
    """The bank's memory of a key."""

    number = ndb.IntegerProperty(indexed=False, required=True)  # The order, as the caller says.
    state = ndb.TextProperty(required=True)
    asked = ndb.IntegerProperty(indexed=False, required=True)  # Calls to charge by this key.
    refunds = ndb.IntegerProperty(indexed=False, required=True)  # Calls to refund by this key.


def sale_key(sale: str) -> Any:
    """Return the key of a sale."""
    return ndb.Key(OrderSale, sale)


def order_key(sale: str, number: int) -> Any:
    """Return the key of an order."""
    return ndb.Key(OrderCard, f"{sale}|{number:03d}")


def shelf_key(sale: str, number: int) -> Any:
    """Return the key of a shelf."""
    return ndb.Key(OrderShelf, f"{sale}|{number}")


def charge_key(sale: str, key: str) -> Any:
    """Return the key of what the bank remembers of a call."""
    return ndb.Key(OrderCharge, f"{sale}|{key}")


def newest_sales() -> Any:
    """Return the query for sales, newest first."""
    return OrderSale.query().order(-OrderSale.created)


def orders_of(sale: str) -> Any:
    """Return the query for the orders of a sale, by number."""
    return _of_sale(OrderCard, sale)


def charges_of(sale: str) -> Any:
    """Return the query for the bank's statement of a sale."""
    return _of_sale(OrderCharge, sale)


def _of_sale(kind: Any, sale: str) -> Any:
    lower, upper = ndb.Key(kind, f"{sale}|"), ndb.Key(kind, f"{sale}}}")
    return kind.query(kind._key > lower, kind._key < upper).order(kind._key)
