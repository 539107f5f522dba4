"""A shop, version 1: it sells, mails, ships in two parcels, prints labels and raises prices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from flask import Flask, jsonify, render_template_string, request
from flask.typing import ResponseReturnValue
from google.cloud import ndb

import rollforward as rf

CENTS = 2_500


class Sale(ndb.Model):
    product = ndb.StringProperty()
    cents = ndb.IntegerProperty(indexed=False)
    is_shipped = ndb.BooleanProperty(default=False)


class Till(ndb.Model):
    """The takings of a product, as its receipts add up."""

    cents = ndb.IntegerProperty(indexed=False, default=0)
    receipts = ndb.IntegerProperty(indexed=False, default=0)


class Parcel(ndb.Model):
    grams = ndb.IntegerProperty(indexed=False)


class Label(ndb.Model):
    """The label of a sale's parcels, when it is printed."""


class Price(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False, default=CENTS)
    raises = ndb.IntegerProperty(indexed=False, default=0)


# Views: one changes in version 2, the other does not.


class SalesByProduct(rf.View):
    source = Sale
    row_rate = None

    @staticmethod
    def contributions(sale: Sale) -> rf.materialized_views.Contributions:
        return {sale.product: {"cents": sale.cents}}


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
HANDED_OVER = rf.Counter("handed-over", queue="default")


@rf.task
def mail_receipt(sale_id: str, address: str) -> None:
    MAILS.increment(rf.clients(), "receipts", idempotency_key=sale_id)


@rf.task
def ask_for_review(sale_id: str) -> None:
    MAILS.increment(rf.clients(), "reviews", idempotency_key=sale_id)


@dataclass(frozen=True)
class Pack:
    sale_id: str
    number: int


@rf.task
def pack(args: Pack) -> dict[str, int]:
    Parcel(id=f"{args.sale_id}-{args.number}", grams=500).put()
    return {"grams": 500}


@rf.task
def hand_over(done: rf.batches.Completed) -> None:
    HANDED_OVER.increment(rf.clients(), "sales", idempotency_key=done.idempotency_key)


PARCELS = rf.TaskBatch("parcels", members=[pack], on_complete=hand_over)


@rf.task
def ship(sale_id: str) -> None:
    def body() -> None:
        sale = Sale.get_by_id(sale_id)
        if not sale.is_shipped:
            sale.is_shipped = True
            SALES.save_in_transaction(rf.clients(), sale)
            work = [(pack, Pack(sale_id, number)) for number in (1, 2)]
            PARCELS.populate_in_transaction(rf.clients(), sale_id, work, seal=True)

    rf.transact(body)


# A fork-join queue, a pull queue and a job


@dataclass(frozen=True)
class Receipt:
    cents: int


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


@rf.job("raise-prices", queue="default", source=lambda args: rf.EntitySource(Price), page_size=5)
def raise_prices(
    clients: rf.Clients, args: Raise, prices: Sequence[Price]
) -> Sequence[rf.continuations.ItemError | None]:
    fresh = ndb.get_multi([price.key for price in prices])
    for price in fresh:
        price.cents += args.cents
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

    def body() -> None:
        if Sale.get_by_id(sale_id) is None:
            SALES.save_in_transaction(rf.clients(), Sale(id=sale_id, product=product, cents=CENTS))
            take_in.insert_in_transaction(rf.clients(), product, Receipt(CENTS))
            LABELS.add_in_transaction(rf.clients(), json.dumps({"sale": sale_id}))
            rf.enqueue(mail_receipt, mail_receipt.bind(sale_id, "ada@example.com"))
            rf.enqueue(ask_for_review, ask_for_review.bind(sale_id))
            rf.enqueue(ship, ship.bind(sale_id))

    rf.transact(body)
    return jsonify(version=1)


@app.post("/labels")
def label() -> ResponseReturnValue:
    return jsonify(printed=print_labels())


@app.post("/raise")
def raise_all() -> ResponseReturnValue:
    run_id = request.form["id"]
    rf.continuations.start(rf.clients(), raise_prices, Raise(cents=10), run_id=run_id)
    return jsonify(version=1)


serve = rf.serve(
    app, mail_receipt, ask_for_review, ship, hand_over, PARCELS, take_in, LABELS, raise_prices,
    MAINTENANCE, MAILS, HANDED_OVER,
)  # fmt: skip
