"""The page of counters: click, count in four ways under load, watch shards come and go."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.counters.charts import by_second, columns
from handlers.counters.stage import CounterStage, Counts
from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.formatting import number
from handlers.shared.forms import id_in_form, open_tab
from handlers.shared.live import live_part
from handlers.shared.source_excerpts import Excerpt, excerpt
from pipelines.counters import counters, load
from pipelines.counters.counters import MAX_CLICK, MAX_SHARDS_BY_HAND, WAYS
from pipelines.counters.load import MAX_RATE, MAX_SECONDS, ClickLoad
from pipelines.loads import LoadGoesOnError
from rollforward.flask.context import clients

bp = Blueprint("counters", __name__, url_prefix="/counters")

TABS = ("ways", "how", "code", "tables")
WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
FILLED_IN = {"amount": "1", "rate": "40", "seconds": "10", "ways": "all", "shards": "20"}
# By way: its name, and what it is.
NAMES = {
    "one-row": ("One row", "exact, in a single shard"),
    "sharded": ("Sharded", "exact; shards are added on conflicts"),
    "gathered": ("Gathered", "by a fork-join queue, a write per batch"),
    "in-memory": (
        "In memory",
        "in each process, flushed four times a second; a crash loses the rest",
    ),
}


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the counter: its total, its shards, the ways side by side."""
    return _page({}, {}, 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("counters/_live.html", **_live())


@bp.post("/clicks")
def click() -> ResponseReturnValue:
    """Add to the counter, once for each form."""
    form_id = id_in_form()
    text = request.form.get("amount", "").strip()
    amount = int(text) if WHOLE.fullmatch(text) else None
    if amount is None or abs(amount) > MAX_CLICK:
        message = f"a whole number from {number(-MAX_CLICK)} to {number(MAX_CLICK)}"
        return _page({"amount": text[:60]}, {"amount": message}, 400)
    counters.apply_switch(clients())
    if counters.click(clients(), amount, form_id).is_duplicate:
        flash("This form was sent before. Nothing was added.")
    else:
        flash(f"Added {number(amount)}.")
    return _back()


@bp.post("/loads")
def put_under_load() -> ResponseReturnValue:
    """Start writers that click, once for each form."""
    form_id = id_in_form()
    fields = {"rate": MAX_RATE, "seconds": MAX_SECONDS}
    form = {field: request.form.get(field, "").strip()[:60] for field in (*fields, "ways")}
    errors = {
        field: f"a whole number from 1 to {limit}"
        for field, limit in fields.items()
        if not (WHOLE.fullmatch(form[field]) and 1 <= int(form[field]) <= limit)
    }
    if form["ways"] not in ("all", *WAYS):
        errors["ways"] = "one of the ways in the list"
    if errors:
        return _page(form, errors, 400)
    strike_once_each(request.path)
    new_load = ClickLoad(
        form_id,
        list(WAYS) if form["ways"] == "all" else [form["ways"]],
        int(form["rate"]),
        int(form["seconds"]),
        started_ms=round(clients().clock.now().timestamp() * 1000),
        is_limited=bool(counters.apply_switch(clients())),
    )
    try:
        load.start(clients(), new_load)
    except LoadGoesOnError:
        message = "another load is running; try again when it has ended"
        return _page(form, {"load": message}, 409)
    return _back()


@bp.post("/shards")
def resize() -> ResponseReturnValue:
    """Give the counter a number of shards, or let it adapt."""
    if request.form.get("how") == "adaptive":
        counters.resize(clients(), None)
        flash("Automatic: shards are added on conflicts.")
        return _back()
    if request.form.get("how", "by-hand") != "by-hand":
        abort(400, "how must be one of by-hand, adaptive.")
    text = request.form.get("shards", "").strip()[:60]
    if not (WHOLE.fullmatch(text) and 1 <= int(text) <= MAX_SHARDS_BY_HAND):
        message = f"a whole number from 1 to {MAX_SHARDS_BY_HAND}"
        return _page({"shards": text}, {"shards": message}, 400)
    counters.resize(clients(), int(text))
    flash(f"It has {text} shards now, until you make it automatic again.")
    return _back()


@bp.post("/write-limit/<any(on, off):to>")
def switch_limit(to: str) -> ResponseReturnValue:
    """Switch the simulation of production's limit; a deployed app has the real one."""
    if counters.limit(clients()) is None:
        abort(404)
    counters.switch_limit(clients(), to=to == "on")
    return _back()


# What the page is made of


def _back() -> ResponseReturnValue:
    return redirect(url_for(".page", _anchor="now"), 303)


def _page(form: dict[str, str], errors: dict[str, str], status: int) -> ResponseReturnValue:
    tab = open_tab(TABS)
    context = _live()
    filled_in = {**FILLED_IN}
    if context["shards"].is_pinned:
        filled_in["shards"] = str(context["shards"].shards)
    html = render_template(
        "counters/page.html",
        form={**filled_in, **form},
        errors=errors,
        limits={"rate": MAX_RATE, "seconds": MAX_SECONDS, "shards": MAX_SHARDS_BY_HAND},
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        **context,
    )
    return html, status


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.counters.counters", "WAYS", "One count in four ways"),
        excerpt("pipelines.counters.load", "_click", "A writer, until it has ended"),
        excerpt("rollforward.counters.commits", "write", "One commit: all of it or nothing"),
    ]


def _live() -> dict[str, Any]:
    is_limited = counters.apply_switch(clients())
    cost_before = clients().meter.cost()
    under = load.status(clients())
    shards = counters.shards(clients())
    sums = counters.sums(clients())
    accepted = {way: under.accepted(way) + (sums.forms if way == "sharded" else 0) for way in WAYS}
    under_way = {way: under.under_way(way) for way in WAYS}
    counts = Counts(sums, accepted, under_way, under.is_moving or not sums.is_stable)
    reads = (clients().meter.cost() - cost_before).reads
    stage = render(CounterStage(under, counts, NAMES, reads), clients().clock.now())
    return {
        "new_id": clients().new_id(),
        "is_limited": is_limited,
        "load": under,
        "shards": shards,
        "columns": columns(shards),
        "counts": counts,
        "names": NAMES,
        "chart": by_second(under, stage.length_s),
        "stage": stage,
    }
