"""The rows of the shop: orders, and what its parts note of them."""

from __future__ import annotations

from google.cloud import ndb

import rollforward as rf
from rollforward.materialized_views import Contributions, View

ALL = "all customers"


class PlacedOrder(ndb.Model):
    """An order. Key: its id.

    Attributes:
        version: The version of the app that placed it.
    """

    customer = ndb.TextProperty()
    cents = ndb.IntegerProperty(indexed=False)
    batch = ndb.TextProperty()
    parts = ndb.JsonProperty(default=[])
    version = ndb.IntegerProperty(indexed=False, default=1)


class _Runs(ndb.Model):
    """How often a piece of work has committed. Key: the order's id."""

    runs = ndb.IntegerProperty(indexed=False, default=0)


class MailedOrder(_Runs):
    """The task of an order has worked."""


class RefusedReceipt(_Runs):
    """The mail relay will never take the receipt of an order."""


class ThankedOrder(_Runs):
    """The task of an order that only the second version has."""


class PackedOrder(_Runs):
    """The member of a batch has worked."""


class PickedOrder(_Runs):
    """A worker has leased the order."""


class FinishedOrder(_Runs):
    """The last step of an order's flow has run, and the card was charged with so much."""

    charge = ndb.TextProperty()
    cents = ndb.IntegerProperty(indexed=False)


class RefusedOrder(_Runs):
    """The card of an order was refused: its flow was undone."""


class InsuredOrder(_Runs):
    """The step of an order's flow that only the second version has."""


class AuditedOrder(_Runs):
    """A continuation has applied its job to the order."""


class StreamedOrder(_Runs):
    """The order has come out of the stream."""


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


class BilledOrders(ndb.Model):
    """What the flows have billed. Key: the shop."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    bills = ndb.IntegerProperty(indexed=False, default=0)


class Revenue(ndb.Model):
    """The sum that a fork-join queue keeps. Key: the shop."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    orders = ndb.IntegerProperty(indexed=False, default=0)


class StreamedRevenue(ndb.Model):
    """The sum of what has come out of the stream. Key: the shop."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    orders = ndb.IntegerProperty(indexed=False, default=0)


class OrdersOfCustomer(View):
    """The orders of a customer."""

    source = PlacedOrder

    @staticmethod
    def contributions(order: PlacedOrder) -> Contributions:
        return {order.customer: {"cents": order.cents}}


class NewOrdersOfCustomer(View):
    """The same view of the second version: one more measure, and a row of all customers."""

    name = OrdersOfCustomer.name
    version = 2
    source = PlacedOrder

    @staticmethod
    def contributions(order: PlacedOrder) -> Contributions:
        return {key: {"cents": order.cents, "orders": 1} for key in (order.customer, ALL)}


def count_run(kind: type[_Runs], order: str) -> None:
    """Note one more run; in a transaction."""
    row = kind.get_by_id(order) or kind(id=order)
    row.runs += 1
    row.put()


def run_once_more(kind: type[_Runs], order: str) -> None:
    """Note one more run."""
    rf.transact(lambda: count_run(kind, order))
