from flask import Flask, redirect, render_template_string, request
from flask.typing import ResponseReturnValue

import rollforward as rf
import sales

app = Flask(__name__)
PAGE = """<!doctype html><title>A shop</title>
<form method="post" action="/sell">
  <input type="hidden" name="csrf_token" value="{{ csrf_token() }}">
  <input type="hidden" name="form_id" value="{{ form_id }}">
  <button>Sell a lamp</button>
</form>
{% for row in rows %}
<p>{{ row.name }}: {{ row.count }} sold, {{ row.sum("shipped") }} shipped,
{{ row.sum("cents") }} cents earned.</p>
{% endfor %}"""


@app.get("/")
def show() -> str:
    rows = sales.SALES.read(sales.SalesByProduct).rows
    return render_template_string(PAGE, rows=rows, form_id=rf.clients().new_id())


@app.post("/sell")
def sell() -> ResponseReturnValue:
    sales.sell(request.form["form_id"][:32], "lamp", 2_500)
    return redirect("/", 303)


serve = rf.serve(app, sales.ship, sales.MAINTENANCE)
