from flask import Flask, redirect, render_template_string, request
from flask.typing import ResponseReturnValue

import prices
import rollforward as rf
import sales
import visits

app = Flask(__name__)
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


@app.get("/")
def show() -> str:
    visits.count_visits.insert("home", visits.Visit())
    page = visits.PageCount.get_by_id("home")
    return render_template_string(
        PAGE,
        cents=prices.Price.get_or_insert("lamp").cents,
        visits=page.visits if page else 0,
        rows=sales.SALES.read(sales.SalesByProduct).rows,
        form_id=rf.clients().new_id(),
    )


@app.post("/sell")
def sell() -> ResponseReturnValue:
    cents = prices.Price.get_or_insert("lamp").cents
    sales.sell(request.form["form_id"][:32], "lamp", cents)
    return redirect("/", 303)


@app.post("/raise")
def raise_price() -> ResponseReturnValue:
    run_id = request.form["form_id"][:32]
    args = prices.Raise(percent=10)
    rf.continuations.start(prices.raise_prices, args, run_id=run_id)
    return redirect("/", 303)


serve = rf.serve(app, sales.ship, sales.MAINTENANCE, visits.count_visits, prices.raise_prices)
