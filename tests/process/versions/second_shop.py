"""A shop, version 2. What has changed since version 1, each change in one deployment:

Sale.gift_note              a new property, which version 1 preserves
Receipt.currency            a new field with a default: of items of a fork-join queue,
Raise.floor_cents           of a job,
Pack.paper                  of members of batches
mail-receipt                its arguments have another shape, under a new path; the old path
                            still takes the old ones
ask-for-review              is now called request-review; the old path does the same
thank, wrap                 a new task, and a new kind of member
SalesByProduct              another key and one more measure: `version = 2`, and a rebuild
the payload of a label      has one more field
HANDED_OVER                 begins with four shards
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from flask import Flask, jsonify, render_template_string, request
from flask.typing import ResponseReturnValue
from google.cloud import ndb

import rollforward as rf

CENTS = 2_500
NOTE = "Happy birthday!"


class Sale(ndb.Model):
    product = ndb.StringProperty()
    cents = ndb.IntegerProperty(indexed=False)
    is_shipped = ndb.BooleanProperty(default=False)
    gift_note = ndb.TextProperty(default="")


class Till(ndb.Model):
    """The takings of a product, as its receipts add up."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    receipts = ndb.IntegerProperty(indexed=False, default=0)


class Parcel(ndb.Model):
    grams = ndb.IntegerProperty(indexed=False)


class Wrapping(ndb.Model):
    """The wrapping of a gift; its key is the sale's."""


class Label(ndb.Model):
    """The label of a sale's parcels, when it is printed."""


class Price(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False, default=CENTS)
    raises = ndb.IntegerProperty(indexed=False, default=0)


# Views


class SalesByProduct(rf.View):
    source = Sale
    row_rate = None
    version = 2

    @staticmethod
    def contributions(sale: Sale) -> rf.materialized_views.Contributions:
        department = "light" if sale.product == "lamp" else "furniture"
        return {
            (department, sale.product): {"cents": sale.cents, "gifts": int(bool(sale.gift_note))}
        }


class SalesByState(rf.View):
    source = Sale
    fan_in = True

    @staticmethod
    def contributions(sale: Sale) -> rf.materialized_views.Contributions:
        return {"shipped" if sale.is_shipped else "sold": {"cents": sale.cents}}


SALES = rf.ViewGroup("sales", SalesByProduct, SalesByState, queue="views")
MAINTENANCE = rf.materialized_views.ViewMaintenance(SALES, queue="default")


# Tasks


MAILS = rf.Counter("mails", queue="default")
HANDED_OVER = rf.Counter("handed-over", queue="default", min_shards=4)


@dataclass(frozen=True)
class Recipient:
    name: str
    address: str


@rf.task
def mail_receipt(sale_id: str, address: str) -> None:
    """Take what version 1 has enqueued."""
    _mail(sale_id, Recipient("", address))


@rf.task("/tasks/mail-receipt-to")
def mail_receipt_to(sale_id: str, to: Recipient) -> None:
    _mail(sale_id, to)


def _mail(sale_id: str, to: Recipient) -> None:
    MAILS.increment(rf.clients(), "receipts", idempotency_key=sale_id)


@rf.task
def ask_for_review(sale_id: str) -> None:
    """Take what version 1 has enqueued."""
    _request_review(sale_id)


@rf.task
def request_review(sale_id: str) -> None:
    _request_review(sale_id)


def _request_review(sale_id: str) -> None:
    MAILS.increment(rf.clients(), "reviews", idempotency_key=sale_id)


@rf.task
def thank(sale_id: str) -> None:
    MAILS.increment(rf.clients(), "thanks", idempotency_key=sale_id)


@dataclass(frozen=True)
class Pack:
    sale_id: str
    number: int
    paper: str = "brown"


@rf.task
def pack(args: Pack) -> dict[str, int]:
    Parcel(id=f"{args.sale_id}-{args.number}", grams=500).put()
    return {"grams": 500}


@rf.task
def wrap(sale_id: str) -> None:
    Wrapping(id=sale_id).put()


@rf.task
def hand_over(done: rf.batches.Completed) -> None:
    HANDED_OVER.increment(rf.clients(), "sales", idempotency_key=done.idempotency_key)


PARCELS = rf.TaskBatch("parcels", members=[pack, wrap], on_complete=hand_over)


@rf.task
def ship(sale_id: str) -> None:
    def body() -> None:
        sale = Sale.get_by_id(sale_id)
        if not sale.is_shipped:
            sale.is_shipped = True
            SALES.save_in_transaction(rf.clients(), sale)
            packed = [(pack, Pack(sale_id, number, paper="gold")) for number in (1, 2)]
            wrapped = [(wrap, wrap.bind(sale_id))] if sale.gift_note else []
            PARCELS.populate_in_transaction(rf.clients(), sale_id, [*packed, *wrapped], seal=True)

    rf.transact(body)


# A fork-join queue, a pull queue and a job


@dataclass(frozen=True)
class Receipt:
    cents: int
    currency: str = "EUR"


@rf.fork_join.fork_join("till", queue="default", period_s=1)
def take_in(clients: rf.Clients, batch: rf.fork_join.Batch, items: Sequence[Receipt]) -> None:
    till = Till.get_by_id(batch.key) or Till(id=batch.key)
    till.cents += sum(receipt.cents for receipt in items)
    till.receipts += len(items)
    till.put()


LABELS = rf.PullQueue("labels", partitions=2)


def print_labels() -> int:
    leases = LABELS.lease(rf.clients(), limit=20, lease_s=2)
    ndb.put_multi([Label(id=json.loads(lease.payload)["sale"]) for lease in leases])
    return len(leases) - len(LABELS.ack(rf.clients(), leases))


@dataclass(frozen=True)
class Raise:
    cents: int
    floor_cents: int = 0


@rf.job("raise-prices", queue="default", source=lambda args: rf.EntitySource(Price), page_size=5)
def raise_prices(
    clients: rf.Clients, args: Raise, prices: Sequence[Price]
) -> Sequence[rf.continuations.ItemError | None]:
    fresh = ndb.get_multi([price.key for price in prices])
    for price in fresh:
        price.cents = max(args.floor_cents, price.cents + args.cents)
        price.raises += 1
    ndb.put_multi(fresh)
    return [None] * len(prices)


# Pages

app = Flask(__name__)
PAGE = """<!doctype html><title>A shop</title>
<form method="post" action="/sell"><input name="csrf_token" value="{{ csrf_token() }}"></form>
{% for row in rows %}<p>{{ row.name }}: {{ row.count }} sold.</p>{% endfor %}"""


@app.get("/")
def show() -> str:
    return render_template_string(PAGE, rows=SALES.read(rf.clients(), SalesByProduct).rows)


@app.post("/sell")
def sell() -> ResponseReturnValue:
    """Sell once for each id of a form."""
    sale_id, product = request.form["id"], request.form["product"]
    to = Recipient("Ada", "ada@example.com")

    def body() -> None:
        if Sale.get_by_id(sale_id) is None:
            sale = Sale(id=sale_id, product=product, cents=CENTS, gift_note=NOTE)
            SALES.save_in_transaction(rf.clients(), sale)
            take_in.insert_in_transaction(rf.clients(), product, Receipt(CENTS, "USD"))
            LABELS.add_in_transaction(rf.clients(), json.dumps({"sale": sale_id, "size": 2}))
            rf.enqueue(mail_receipt_to, mail_receipt_to.bind(sale_id, to))
            rf.enqueue(request_review, request_review.bind(sale_id))
            rf.enqueue(ship, ship.bind(sale_id))
            rf.enqueue(thank, thank.bind(sale_id))

    rf.transact(body)
    return jsonify(version=2)


@app.post("/labels")
def label() -> ResponseReturnValue:
    return jsonify(printed=print_labels())


@app.post("/raise")
def raise_all() -> ResponseReturnValue:
    args = Raise(cents=10, floor_cents=100)
    rf.continuations.start(rf.clients(), raise_prices, args, run_id=request.form["id"])
    return jsonify(version=2)


serve = rf.serve(
    app, mail_receipt, mail_receipt_to, ask_for_review, request_review, thank, ship, hand_over,
    PARCELS, take_in, LABELS, raise_prices, MAINTENANCE, MAILS, HANDED_OVER,
)  # fmt: skip
