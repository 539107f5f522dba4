"""A shop: an app of your own on the patterns, in one file and one template.

    rollforward run docs.examples.shop:serve

Buying commits a sale together with the task that ships it. The earnings of each product are a view,
a fork-join queue gathers visits, and a job raises each price exactly once. docs/tutorial.md builds
a similar shop step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flask import Flask, abort, redirect, render_template, request
from flask.typing import ResponseReturnValue
from google.cloud import ndb

import rollforward as rf

PRICES = {"chair": 4_900, "lamp": 2_500, "table": 19_900}


class Product(ndb.Model):
    cents = ndb.IntegerProperty(indexed=False)
    visits = ndb.IntegerProperty(indexed=False, default=0)


class Sale(ndb.Model):
    product = ndb.StringProperty()
    cents = ndb.IntegerProperty(indexed=False)
    is_shipped = ndb.BooleanProperty(default=False)


class SalesByProduct(rf.View):
    """The number of sales and the earnings of each product."""

    source = Sale

    @staticmethod
    def contributions(sale: Sale) -> rf.materialized_views.Contributions:
        return {sale.product: {"cents": sale.cents}}


SALES = rf.ViewGroup("sales", SalesByProduct, queue="default")


@rf.task
def ship(sale_id: str) -> None:
    """Ship a sale. Delivered twice, it ships once, because the sale records it."""

    def body() -> None:
        sale = Sale.get_by_id(sale_id)
        if not sale.is_shipped:
            sale.is_shipped = True
            SALES.save_in_transaction(sale)

    rf.transact(body)


@dataclass(frozen=True)
class Visit:
    """One look at a product."""


@rf.fork_join.fork_join("visits", queue="default", period_s=1)
def count_visits(batch: rf.fork_join.Batch, items: Sequence[Visit]) -> None:
    """Add the visits of one product: a popular page costs one write a second."""
    product = Product.get_by_id(batch.key)
    product.visits += len(items)
    product.put()


@dataclass(frozen=True)
class Raise:
    percent: int


@rf.job(source=rf.EntitySource(Product))
def raise_prices(args: Raise, products: Sequence[Product]) -> None:
    """Raise some prices, in a transaction, perhaps twice, so it reads them again."""
    fresh = ndb.get_multi([product.key for product in products])
    for product in fresh:
        product.cents += product.cents * args.percent // 100
    ndb.put_multi(fresh)


app = Flask(__name__)


@app.get("/")
def show() -> ResponseReturnValue:
    products = [p for p in ndb.get_multi([ndb.Key(Product, name) for name in PRICES]) if p]
    for product in products:
        count_visits.insert(product.key.id(), Visit())
    sold = {row.name: row for row in SALES.read(SalesByProduct).rows}
    return render_template("shop.html", products=products, sold=sold, new_id=rf.clients().new_id)


@app.post("/open")
def open_shop() -> ResponseReturnValue:
    for name, cents in PRICES.items():
        Product.get_or_insert(name, cents=cents)
    return redirect("/", 303)


@app.post("/buy")
def buy() -> ResponseReturnValue:
    """Sell a product. The form's id is the sale's id, so a form that is sent twice sells once."""
    product = Product.get_by_id(request.form["product"]) or abort(404)
    sale_id = request.form["form_id"][:32]

    def body() -> None:
        if Sale.get_by_id(sale_id) is None:
            sale = Sale(id=sale_id, product=product.key.id(), cents=product.cents)
            SALES.save_in_transaction(sale)
            rf.enqueue(ship, ship.bind(sale_id))

    rf.transact(body)
    return redirect("/", 303)


@app.post("/raise")
def raise_all() -> ResponseReturnValue:
    run_id = request.form["form_id"][:32]
    rf.continuations.start(raise_prices, Raise(percent=5), run_id=run_id)
    return redirect("/", 303)


MAINTENANCE = rf.materialized_views.ViewMaintenance(SALES, queue="default")
serve = rf.serve(app, ship, count_visits, raise_prices, MAINTENANCE)
