from flask import Blueprint, Flask, redirect, render_template_string, request
from flask.typing import ResponseReturnValue

import prices
import rollforward as rf
import sales
import visits

PAGE = """<!doctype html><title>A shop</title>
<p>A lamp costs {{ cents }} cents. {{ visits }} visits.</p>
{% for url, button in [("/sell", "Sell a lamp"), ("/raise", "Raise the price")] %}
<form method="post" action="{{ url }}">
  <input type="hidden" name="csrf_token" value="{{ csrf_token() }}">
  <input type="hidden" name="form_id" value="{{ form_id }}">
  <button>{{ button }}</button>
</form>
{% endfor %}
{% for row in rows %}
<p>{{ row.name }}: {{ row.count }} sold, {{ row.sum("shipped") }} shipped,
{{ row.sum("cents") }} cents earned.</p>
{% endfor %}"""

pages = Blueprint("shop", __name__)


@pages.get("/")
def show() -> str:
    visits.count_visits.insert(rf.clients(), "home", visits.Visit())
    page = visits.PageCount.get_by_id("home")
    return render_template_string(
        PAGE,
        cents=prices.Price.get_or_insert("lamp").cents,
        visits=page.visits if page else 0,
        rows=sales.SALES.read(rf.clients(), sales.SalesByProduct).rows,
        form_id=rf.clients().new_id(),
    )


@pages.post("/sell")
def sell() -> ResponseReturnValue:
    cents = prices.Price.get_or_insert("lamp").cents
    sales.sell(rf.clients(), request.form["form_id"][:32], "lamp", cents)
    return redirect("/", 303)


@pages.post("/raise")
def raise_price() -> ResponseReturnValue:
    run_id = request.form["form_id"][:32]
    args = prices.Raise(percent=10)
    rf.continuations.start(rf.clients(), prices.raise_prices, args, run_id=run_id)
    return redirect("/", 303)


def serve() -> Flask:
    app = Flask(__name__)
    app.register_blueprint(pages)
    parts = (sales.ship, sales.MAINTENANCE, visits.count_visits, prices.raise_prices)
    return rf.serve(app, rf.Registry(*parts))
