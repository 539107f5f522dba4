"""The model: all that must follow from the orders that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import FINISHED, ContinuationRun
from rollforward.materialized_views.entities import ViewRow
from rollforward.pull_queues.entities import PullItem
from rollforward.runtime import Clients
from tests.simulation.services.payments import Charged, PaymentService
from tests.simulation.services.smtp import Relay
from tests.simulation.shop.common import PLACED, Shop
from tests.simulation.shop.entities import (
    ALL,
    AuditedOrder,
    BilledOrders,
    ClosedDay,
    CustomerOrders,
    FinishedOrder,
    InsuredOrder,
    MailedOrder,
    PackedOrder,
    PickedOrder,
    PlacedOrder,
    RefusedOrder,
    RefusedReceipt,
    Revenue,
    ShippedOrders,
    StreamedOrder,
    StreamedRevenue,
    ThankedOrder,
)
from tests.simulation.shop.first import MAILED
from tests.simulation.shop.stream import SHOP

# Each fact's name, what is, and what must be.
Facts = Iterator[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Look:
    """A look at the totals.

    Attributes:
        orders: All that are there.
        is_purged: A purge takes plain tasks for good: then mails may be missing.
        audited: Orders that were there before an audit; None: none was accepted.
        shop: The version that serves.
        looks: How many were answered, and how many were sent.
        relay: The mail relay, with the mails that it took.
        payments: The payment service, with its charges and refusals.
    """

    clients: Clients
    orders: Sequence[PlacedOrder]
    day: str
    is_purged: bool
    audited: Collection[str] | None
    shop: Shop
    looks: tuple[int, int]
    relay: Relay
    payments: PaymentService

    @property
    def names(self) -> list[str]:
        return [order.key.id() for order in self.orders]

    @property
    def sums(self) -> tuple[int, int]:
        """How many orders there are, and their cents."""
        return len(self.orders), sum(order.cents for order in self.orders)

    @property
    def live_table(self) -> str:
        """The table that readers see."""
        return str(self.shop.builds.tables_of(self.shop.view).live)

    def once(self) -> dict[str, int]:
        """Each order, done once."""
        return dict.fromkeys(self.names, 1)


def wrong_totals(look: Look, parts: Collection[str]) -> list[str]:
    """Return which totals are not those of the orders; in the open context."""
    facts = [*_of_all(look), *(fact for part in sorted(parts) for fact in _OF[part](look))]
    return [f"{name}: {found}, not {must}" for name, found, must in facts if found != must]


def _of_all(look: Look) -> Facts:
    yield "view", _rows_of_view(look), _rows_of_orders(look)
    tables = {key.id().partition(":")[0] for key in ViewRow.query().fetch(keys_only=True)}
    yield "tables of the view", tables, {look.live_table} & tables
    yield "placed", PLACED.total(look.clients, SHOP).value, len(look.orders)


def _rows_of_view(look: Look) -> dict[Any, tuple[float, ...]]:
    shop = look.shop
    rows = [row for row in shop.customers.read(look.clients, shop.view).rows if row.count]
    measures = ("cents",) if shop.version == 1 else ("cents", "orders")
    return {row.name: (row.count, *map(row.sum, measures)) for row in rows}


def _rows_of_orders(look: Look) -> dict[Any, tuple[float, ...]]:
    cents: dict[str, list[int]] = defaultdict(list)
    for order in look.orders:
        for name in [order.customer] if look.shop.version == 1 else [order.customer, ALL]:
            cents[name].append(order.cents)
    if look.shop.version == 1:
        return {name: (len(all_), sum(all_)) for name, all_ in cents.items()}
    return {name: (len(all_), sum(all_), len(all_)) for name, all_ in cents.items()}


def _of_looks(look: Look) -> Facts:
    answered, sent = look.looks
    total = look.shop.looked.total(look.clients, SHOP).value
    yield "looks", total, min(max(total, answered), sent)


def _of_mails(look: Look) -> Facts:
    mailed, counted = _keys(MailedOrder), MAILED.total(look.clients, SHOP).value
    thanked = _keys(ThankedOrder)
    to_thank = {order.key.id() for order in look.orders if order.version > 1}
    if look.is_purged and mailed <= set(look.names) and counted <= len(mailed):
        mailed, counted = set(look.names), len(look.orders)
    if look.is_purged and thanked <= to_thank:
        thanked = to_thank
    yield "mailed", counted, len(look.orders)
    yield "mails", mailed, set(look.names)
    yield "thanks", thanked, to_thank
    yield from _of_receipts(look)


def _of_receipts(look: Look) -> Facts:
    relay, refused = look.relay, _keys(RefusedReceipt)
    copies = {order: {mail.message_id for mail in mails} for order, mails in relay.copies().items()}
    received, names = set(copies) | refused, set(look.names)
    yield "receipts", received, received & names if look.is_purged else names
    yield "refused receipts", refused - relay.refused, set()
    yield "receipts with several ids", [ids for ids in copies.values() if len(ids) > 1], []
    yield "needless copies", relay.needless(), set()


def _of_packing(look: Look) -> Facts:
    closed, count = ndb.Key(ClosedDay, look.day).get() or ClosedDay(), len(look.orders)
    yield "packed", _keys(PackedOrder), set(look.names)
    found = closed.runs > 0, closed.members, closed.packed
    yield "the callback", found, (True, count, count)


def _of_shipping(look: Look) -> Facts:
    placed = {row.key.id(): row.placed for row in CustomerOrders.query().fetch()}
    shipped = {row.key.id(): row.shipped for row in ShippedOrders.query().fetch()}
    yield "shipped in their order", shipped, placed


def _of_revenue(look: Look) -> Facts:
    revenue = ndb.Key(Revenue, SHOP).get() or Revenue()
    yield "revenue", (revenue.orders, revenue.cents), look.sums


def _of_flows(look: Look) -> Facts:
    ledger = ndb.Key(BilledOrders, SHOP).get() or BilledOrders()
    insured, charges = _runs(InsuredOrder), look.payments.charges()
    refused = look.payments.refused & set(look.names)
    cents = {order.key.id(): order.cents for order in look.orders if order.key.id() not in refused}
    finished = {row.key.id(): row for row in FinishedOrder.query().fetch()}
    yield "bills", (ledger.bills, ledger.cents), (len(cents), sum(cents.values()))
    yield "refused orders", _runs(RefusedOrder), dict.fromkeys(refused, 1)
    yield "finished", {order: row.runs for order, row in finished.items()}, dict.fromkeys(cents, 1)
    charged = {order: [one.cents for one in theirs] for order, theirs in charges.items()}
    yield "charges", charged, {order: [due] for order, due in cents.items()}
    noted = {order: [Charged(row.charge, row.cents)] for order, row in finished.items()}
    yield "charges as the shop has noted them", noted, charges
    yield "charges before the time of a Retry-After", look.payments.early, set()
    # A flow that the first version has ended has no such step.
    yield "insured", insured, {order: 1 for order in look.names if order in insured}


def _of_picking(look: Look) -> Facts:
    yield "picked", _keys(PickedOrder), set(look.names)
    yield "left to pick", PullItem.query().fetch(keys_only=True), []


def _of_stream(look: Look) -> Facts:
    revenue = ndb.Key(StreamedRevenue, SHOP).get() or StreamedRevenue()
    yield "streamed revenue", (revenue.orders, revenue.cents), look.sums
    yield "streamed", _runs(StreamedOrder), look.once()


def _of_audit(look: Look) -> Facts:
    audited, run = _runs(AuditedOrder), ContinuationRun.get_by_id("audit")
    # Orders that were placed meanwhile may be in it.
    yield "audited", audited, {order: 1 for order in look.names if order in audited}
    if look.audited is not None:
        yield "the audit", run and run.state, FINISHED
        yield "not audited", set(look.audited) - set(audited), set()


_OF: Mapping[str, Callable[[Look], Facts]] = {
    "audit": _of_audit,
    "flow": _of_flows,
    "look": _of_looks,
    "mail": _of_mails,
    "pack": _of_packing,
    "pick": _of_picking,
    "revenue": _of_revenue,
    "ship": _of_shipping,
    "stream": _of_stream,
}
PARTS = tuple(_OF)


def _keys(kind: type[ndb.Model]) -> set[str]:
    return {key.id() for key in kind.query().fetch(keys_only=True)}


def _runs(kind: type[Any]) -> dict[str, int]:
    return {row.key.id(): row.runs for row in kind.query().fetch()}
