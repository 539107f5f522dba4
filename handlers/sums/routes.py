"""Pages of sums: add to one, put it under load, and watch many small writes become few."""

from __future__ import annotations

import re
import time
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.formatting import duration, number
from handlers.shared.forms import id_in_form, open_tab
from handlers.shared.live import live_part
from handlers.shared.quotas import let_in_load
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.sums.charts import gantt, sizes, took_s
from handlers.sums.stage import SumStage
from pipelines.loads import LoadGoesOnError
from pipelines.sums import load, sums
from pipelines.sums.load import MAX_RATE, MAX_SECONDS, MAX_WRITERS, Load
from pipelines.sums.reconciliation import reconcile
from pipelines.sums.sums import MAX_AMOUNT, MAX_SUMS, TooManySumsError, add_up
from rollforward.flask.context import clients

bp = Blueprint("sums", __name__, url_prefix="/sums")

WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
BATCHES_SHOWN = 30
TABS = ("how", "code", "batches", "decided")
AMOUNTS = ("one", "random")
LOAD_FIELDS = {"rate": MAX_RATE, "writers": MAX_WRITERS, "seconds": MAX_SECONDS}
FILLED_IN = {"amount": "1", "rate": "100", "writers": "10", "seconds": "5", "amounts": "one"}

bp.add_app_template_filter(took_s, "took")


@bp.get("")
def all_sums() -> ResponseReturnValue:
    """List the sums, with a form for a new one."""
    return _list("visitors" if not sums.names() else "", {}, 200)


@bp.post("")
def create() -> ResponseReturnValue:
    """Make a sum; one that exists is shown."""
    name = request.form.get("name", "").strip()
    if not sums.NAME.fullmatch(name):
        message = "a letter from a to z, then letters, digits and -, 40 at most"
        return _list(name[:60], {"name": message}, 400)
    try:
        is_new = sums.create(name)
    except TooManySumsError:
        return _list(name, {"name": f"there are {MAX_SUMS} sums already, which is the most"}, 409)
    if not is_new:
        flash("A sum of this name exists; this is its page.")
    return redirect(url_for(".page", name=name), 303)


def _list(name: str, errors: dict[str, str], status: int) -> ResponseReturnValue:
    html = render_template(
        "sums/sums.html",
        sums=sums.listed(),
        name=name,
        errors=errors,
        new_id=clients().new_id(),
    )
    return html, status


@bp.get("/<name>")
def page(name: str) -> ResponseReturnValue:
    """Show a sum: its forms, its batches, its reconciliation."""
    return _page(_known(name), {}, {}, 200)


@bp.get("/<name>/live")
def live(name: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("sums/_live.html", **_live(_known(name)))


@bp.post("/<name>/additions")
def add(name: str) -> ResponseReturnValue:
    """Add to a sum, once for each form."""
    form_id = id_in_form()
    text = request.form.get("amount", "").strip()
    amount = int(text) if WHOLE.fullmatch(text) else None
    if amount is None or abs(amount) > MAX_AMOUNT:
        message = f"a whole number from {number(-MAX_AMOUNT)} to {number(MAX_AMOUNT)}"
        return _page(_known(name), {"amount": text[:60]}, {"amount": message}, 400)
    started = time.perf_counter()
    if sums.add_once(clients(), _known(name), form_id, amount):
        took = duration(time.perf_counter() - started)
        flash(f"{number(amount)} is accepted, in {took}. It is in the sum within about a second.")
    else:
        flash("This form was sent before. Nothing was added.")
    return redirect(url_for(".page", name=name, _anchor="now"), 303)


@bp.post("/<name>/loads")
def put_under_load(name: str) -> ResponseReturnValue:
    """Start writers that add to a sum, once for each form."""
    form_id = id_in_form()
    form = {field: request.form.get(field, "").strip()[:60] for field in (*LOAD_FIELDS, "amounts")}
    errors = {
        field: f"a whole number from 1 to {limit}"
        for field, limit in LOAD_FIELDS.items()
        if not (WHOLE.fullmatch(form[field]) and 1 <= int(form[field]) <= limit)
    }
    if form["amounts"] not in AMOUNTS:
        errors["amounts"] = f"one of {', '.join(AMOUNTS)}"
    if errors:
        return _page(_known(name), form, errors, 400)
    rate, seconds = int(form["rate"]), int(form["seconds"])
    new_load = Load(
        form_id,
        _known(name),
        rate,
        min(int(form["writers"]), rate * seconds),
        seconds,
        started_ms=round(clients().clock.now().timestamp() * 1000),
        is_random=form["amounts"] == "random",
    )
    let_in_load(new_load)
    strike_once_each(request.path)
    try:
        load.start(clients(), new_load)
    except LoadGoesOnError:
        message = "another load is running on this sum; try again when it has ended"
        return _page(name, form, {"load": message}, 409)
    return redirect(url_for(".page", name=name, _anchor="now"), 303)


# What the page is made of


def _page(
    name: str, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    tab = open_tab(TABS)
    html = render_template(
        "sums/page.html",
        form={**FILLED_IN, **form},
        errors=errors,
        limits=LOAD_FIELDS,
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        tuning=add_up.policy(clients(), name) if tab == "decided" else None,
        **_live(name),
    )
    return html, status


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.sums.sums", "add_up", "Folds a batch: one write for all its items"),
        excerpt("pipelines.sums.load", "_insert", "A writer, until it has ended or is killed"),
    ]


def _live(name: str) -> dict[str, Any]:
    cost_before = clients().meter.cost()
    reconciliation = reconcile(clients(), name)
    recent = reconciliation.status.recent
    open_batch = add_up.peek(clients(), name)
    reads = (clients().meter.cost() - cost_before).reads
    now = clients().clock.now()
    stage = render(SumStage(reconciliation, reads), now)
    return {
        "name": name,
        "new_id": clients().new_id(),
        "reconciliation": reconciliation,
        "status": reconciliation.status,
        "load": reconciliation.load,
        "open_batch": open_batch,
        "batches": recent[:BATCHES_SHOWN],
        "stage": stage,
        "gantt": gantt(reconciliation.load, recent, now, stage.length_s),
        "sizes": sizes(recent[:BATCHES_SHOWN], open_batch.items if open_batch else 0),
    }


# What addresses and forms hold


def _known(name: str) -> str:
    if not sums.exists(clients(), name):
        abort(404)
    return name
