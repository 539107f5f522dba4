"""Runs of a demo by one press, with sample data, also as stops of the tour.

A form brings an id along: sent twice, it runs the demo once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from flask import Blueprint, flash, redirect, request, url_for
from flask.typing import ResponseReturnValue

from handlers.home.tour import note_start, step_of
from handlers.invitations.forms import made_up_guests, read_details, sample_form
from handlers.numbers.routes import start_run
from handlers.orders.routes import FILLED_IN as FORM_OF_ORDERS
from handlers.orders.routes import sale_form
from handlers.quilt.routes import FILLED_IN, design_for
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import id_in_form
from handlers.shared.quotas import (
    SAMPLE_BYTES,
    let_in_guests,
    let_in_load,
    let_in_orders,
    let_in_quilt,
    let_in_tenants,
    let_in_upload,
)
from handlers.tenants.routes import FILLED_IN as FORM_OF_TENANTS
from handlers.tenants.routes import rush_form
from pipelines.counters import load as click_load
from pipelines.counters.counters import apply_switch
from pipelines.counters.load import ClickLoad
from pipelines.grades import imports as students
from pipelines.grades.imports import ListGoingOnError
from pipelines.grades.students import DEMO
from pipelines.invitations import parties
from pipelines.invitations.imports import import_guests
from pipelines.invitations.sending import Pace
from pipelines.loads import LoadGoesOnError
from pipelines.orders import orders
from pipelines.quilt import quilts
from pipelines.sums import load, sums
from pipelines.sums.load import Load
from pipelines.sums.sums import TooManySumsError
from pipelines.tenants import rushes
from pipelines.weblog.loads import TooManyLogsError, add_sample
from pipelines.zeitgeist import playbacks, player
from rollforward.continuations.errors import OtherJobError
from rollforward.flask.context import clients, settings

bp = Blueprint("demo_runs", __name__)

GUESTS = STUDENTS = 1000
SUM = "visitors"
RATE, WRITERS, SECONDS = 100, 10, 10
CLICK_WAYS, CLICK_RATE, CLICK_SECONDS = ["one-row", "sharded"], 60, 10


@bp.post(
    "/demo/<any(invitations, grades, sums, counters, quilt, orders, tenants, weblog, zeitgeist,"
    " numbers):name>"
)
def run(name: str) -> ResponseReturnValue:
    """Run a demo, and lead to its stage."""
    form_id = id_in_form()
    strike_once_each("/streams/weblog" if name == "weblog" else f"/{name}")
    step = step_of(request.form)
    note_start(step)
    return redirect(_RUNS[name](form_id, step), 303)


def _invitations(form_id: str, tour: int | None) -> str:
    _, _, details = read_details(sample_form(clients().clock.now()))
    if details is None:
        raise AssertionError("the form of a new party is filled in well")
    parties.create_party(clients(), form_id, details)
    let_in_guests(form_id, GUESTS)
    list_id = hashlib.sha256(f"{form_id}.guests".encode()).hexdigest()[:32]
    content = made_up_guests(GUESTS).encode()
    name = f"{GUESTS} made-up guests.csv"
    # Of a deployed app mails leave by a real relay: there a visitor presses Send.
    pace: Pace | None = "watch" if settings().is_local else None
    import_guests(clients(), form_id, list_id, content, name, then_send=pace)
    return url_for("invitations.party", party_id=form_id, tour=tour)


def _grades(form_id: str, tour: int | None) -> str:
    try:
        students.add_many(clients(), DEMO, form_id, STUDENTS)
    except (ListGoingOnError, OtherJobError):
        flash("Another list is being added; this is its page.")
    return url_for("grades.page", tour=tour)


def _sums(form_id: str, tour: int | None) -> str:
    started_ms = round(clients().clock.now().timestamp() * 1000)
    try:
        sums.create(SUM)
        sum_load = Load(form_id, SUM, RATE, WRITERS, SECONDS, started_ms)
        let_in_load(sum_load)
        load.start(clients(), sum_load)
    except LoadGoesOnError:
        flash("Another load is running on this sum; this is its page.")
    except TooManySumsError:
        return url_for("sums.all_sums")
    return url_for("sums.page", name=SUM, tour=tour)


def _quilt(form_id: str, tour: int | None) -> str:
    design = design_for(FILLED_IN)
    let_in_quilt(form_id, design)
    quilts.make(clients(), form_id, design)
    return url_for("quilt.quilt", quilt_id=form_id, tour=tour)


def _orders(form_id: str, tour: int | None) -> str:
    form = sale_form(FORM_OF_ORDERS)
    let_in_orders(form_id, form.orders, orders.PACES_MS[form.pace])
    orders.open_sale(clients(), form_id, form)
    return url_for("orders.sale", sale_id=form_id, tour=tour)


def _tenants(form_id: str, tour: int | None) -> str:
    form = rush_form(FORM_OF_TENANTS)
    count = form.flood + form.behind * form.tasks
    let_in_tenants(form_id, count, rushes.PACES_MS[form.pace])
    rushes.begin(clients(), form_id, form)
    return url_for("tenants.rush", rush_id=form_id, tour=tour)


def _counters(form_id: str, tour: int | None) -> str:
    started_ms = round(clients().clock.now().timestamp() * 1000)
    is_limited = bool(apply_switch(clients()))
    clicks = ClickLoad(form_id, CLICK_WAYS, CLICK_RATE, CLICK_SECONDS, started_ms, is_limited)
    try:
        click_load.start(clients(), clicks)
    except LoadGoesOnError:
        flash("Another load is running; this is its page.")
    return url_for("counters.page", tour=tour)


def _weblog(form_id: str, tour: int | None) -> str:
    let_in_upload(form_id, SAMPLE_BYTES)
    try:
        add_sample(clients(), form_id, "watch")
    except TooManyLogsError:
        flash("Other logs are being read; this is their page.")
    return url_for("weblog.page", tour=tour)


def _zeitgeist(form_id: str, tour: int | None) -> str:
    try:
        player.start_sample(clients(), form_id, playbacks.SAMPLE_SPEED)
    except playbacks.PlaybackGoesOnError:
        flash("Another playback is running; this is its page.")
    return url_for("zeitgeist.page", tour=tour)


def _numbers(form_id: str, tour: int | None) -> str:
    return url_for("numbers.run", run_id=start_run(form_id), tour=tour)


_RUNS: Mapping[str, Callable[[str, int | None], str]] = {
    "invitations": _invitations,
    "grades": _grades,
    "sums": _sums,
    "counters": _counters,
    "quilt": _quilt,
    "orders": _orders,
    "tenants": _tenants,
    "weblog": _weblog,
    "zeitgeist": _zeitgeist,
    "numbers": _numbers,
}
