"""Pages of sales: open one, watch its orders go through their steps, send the courier."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.orders.charts import WORDS, board_of
from handlers.orders.stage import OrdersStage
from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import ID_PATTERN, id_in_form, open_tab
from handlers.shared.live import live_part
from handlers.shared.quotas import let_in_courier, let_in_orders
from handlers.shared.source_excerpts import Excerpt, excerpt
from models.orders import OrderSale, newest_sales, sale_key
from pipelines.orders import orders
from pipelines.orders.orders import (
    COURIERS,
    MAX_ORDERS,
    PACES_MS,
    PATIENCES_S,
    VISITS,
    GoneSaleError,
    SaleForm,
    flow_id_of,
)
from pipelines.orders.progress import progress
from rollforward.flask.context import CONSOLE, clients

bp = Blueprint("orders", __name__, url_prefix="/orders")

LISTED = 8
GONE = "The sale of this form was deleted. Open a new one on the page Orders."
TABS = ("how", "code", "table")
WHOLE = re.compile(r"[0-9]{1,6}")
NUMBERS = {"orders": (1, MAX_ORDERS), "stock": (0, MAX_ORDERS)}
CHOICES = {"patience": PATIENCES_S, "courier": COURIERS, "pace": PACES_MS}
FILLED_IN = {
    "orders": "40",
    "stock": "36",
    "patience": "15",
    "courier": "two-thirds",
    "pace": "watch",
}
PATIENCE_NAMES = {"15": "15 s", "60": "a minute", "300": "five minutes"}
COURIER_NAMES = {"two-thirds": "for two of three", "you": "when you press the button"}
PACE_NAMES = {"fast": "20 ms a call", "watch": "0.4 s a call", "slow": "1.5 s a call"}
VISIT_NAMES = {"all": "for all", "half": "for every second order", "two-thirds": "for two of three"}


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the newest sale, and offer to open one."""
    return _page(newest_sales().get(), {}, {}, 200)


@bp.post("")
def open_sale() -> ResponseReturnValue:
    """Open a sale, once for each form."""
    sale = id_in_form()
    form = {field: request.form.get(field, "").strip()[:60] for field in FILLED_IN}
    errors = _errors(form)
    if errors:
        return _page(newest_sales().get(), form, errors, 400)
    asked = sale_form(form)
    let_in_orders(sale, asked.orders, PACES_MS[asked.pace])
    strike_once_each("/orders")
    try:
        orders.open_sale(clients(), sale, asked)
    except GoneSaleError:
        abort(410, GONE)
    return redirect(url_for(".sale", sale_id=sale, _anchor="now"), 303)


def sale_form(form: dict[str, str]) -> SaleForm:
    """Return what a form asks for, filled in well."""
    return SaleForm(
        int(form["orders"]), int(form["stock"]), form["patience"], form["courier"], form["pace"]
    )


@bp.get("/<sale_id>")
def sale(sale_id: str) -> ResponseReturnValue:
    """Show a sale, under an address that stays."""
    return _page(_sale_or_404(sale_id), {}, {}, 200)


@bp.get("/<sale_id>/live")
def live(sale_id: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("orders/_live.html", **_live(_sale_or_404(sale_id)))


@bp.post("/<sale_id>/courier")
def send_courier(sale_id: str) -> ResponseReturnValue:
    """Send the courier to the orders that are open, or to some, by a task."""
    row = _sale_or_404(sale_id)
    visit = request.form.get("visit", "")
    if visit not in VISITS:
        abort(400, f"visit must be one of {', '.join(VISITS)}.")
    let_in_courier(clients().new_id(), row.orders)
    orders.courier.enqueue(clients(), orders.courier.bind(sale_id, visit))
    flash(f"The courier was sent to {VISIT_NAMES[visit]} of the open orders.")
    return redirect(url_for(".sale", sale_id=sale_id, _anchor="now"), 303)


def _errors(form: dict[str, str]) -> dict[str, str]:
    errors = {
        field: f"a whole number from {least} to {most}"
        for field, (least, most) in NUMBERS.items()
        if not (WHOLE.fullmatch(form[field]) and least <= int(form[field]) <= most)
    }
    for field, choices in CHOICES.items():
        if form[field] not in choices:
            errors[field] = f"one of {', '.join(choices)}"
    return errors


# What the pages are made of


def _page(
    row: OrderSale | None, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    tab = open_tab(TABS)
    html = render_template(
        "orders/page.html",
        tab=tab,
        errors=errors,
        form={**(_form_of(row) if row else FILLED_IN), **form},
        most=MAX_ORDERS,
        patiences=PATIENCE_NAMES,
        couriers=COURIER_NAMES,
        paces=PACE_NAMES,
        recent=newest_sales().fetch(LISTED),
        excerpts=_code() if tab == "code" else [],
        **_live(row),
    )
    return html, status


def _form_of(row: OrderSale) -> dict[str, str]:
    """Return the form of another sale like this."""
    patiences = {seconds: name for name, seconds in PATIENCES_S.items()}
    return {
        "orders": str(row.orders),
        "stock": str(row.stock),
        "patience": patiences.get(row.patience_s, FILLED_IN["patience"]),
        "courier": row.courier,
        "pace": row.pace,
    }


def _live(row: OrderSale | None) -> dict[str, Any]:
    now = clients().clock.now()
    sale = progress(clients(), row) if row is not None else None
    return {
        "new_id": clients().new_id(),
        "sale": sale,
        "board": board_of(sale) if sale else None,
        "stage": render(OrdersStage(sale), now),
        "stage_words": WORDS,
        "visits": VISIT_NAMES,
        "flow_url": flow_url,
        "is_moving": sale is not None and sale.is_moving,
    }


def flow_url(sale: str, number: int) -> str:
    """Return the page of an order's flow in the app's console."""
    return url_for(f"{CONSOLE}.run", pattern="flows", run_id=f"orders|{flow_id_of(sale, number)}")


def _code() -> list[Excerpt]:
    return [
        excerpt("pipelines.orders.orders", "order", "The flow: its steps, by name"),
        excerpt("pipelines.orders.orders", "reserve", "A step of one commit: exactly once"),
        excerpt("pipelines.orders.bank", "charge", "An outside call: one key, one charge"),
        excerpt("pipelines.orders.orders", "open_orders", "Flows that start with their rows"),
        excerpt("pipelines.orders.orders", "_signal_one", "An event, stored until it is awaited"),
        excerpt("rollforward.flows.steps.calls", "_claim", "Detection of a call in doubt"),
    ]


def _sale_or_404(sale_id: str) -> OrderSale:
    row: OrderSale | None = sale_key(sale_id).get() if ID_PATTERN.fullmatch(sale_id) else None
    return row if row is not None else abort(404)
