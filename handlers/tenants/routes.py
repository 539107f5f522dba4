"""Pages of rushes: begin one, in lanes or in one queue, and watch the tenants wait."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import ID_PATTERN, id_in_form, open_tab
from handlers.shared.live import live_part
from handlers.shared.quotas import let_in_tenants
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.tenants.charts import RULE_NAMES, strips_of, when
from handlers.tenants.stage import TenantsStage, timeline
from models.tenants import TenantRush, newest_rushes, rush_key
from pipelines.tenants import rushes
from pipelines.tenants.progress import progress
from pipelines.tenants.rushes import MAX_BEHIND, MAX_FLOOD, MAX_TASKS, PACES_MS, TENANTS, RushForm
from rollforward.flask.context import clients

bp = Blueprint("tenants", __name__, url_prefix="/tenants")

LISTED = 8
MAX_DEAD = 3
TABS = ("how", "code", "table")
WHOLE = re.compile(r"[0-9]{1,6}")
NUMBERS = {
    "flood": (1, MAX_FLOOD),
    "behind": (1, MAX_BEHIND),
    "tasks": (1, MAX_TASKS),
    "dead": (0, MAX_DEAD),
}
WAY_NAMES = {"lanes": "in lanes", "line": "in one queue"}
PACE_NAMES = {"fast": "5 ms a task", "watch": "25 ms a task", "slow": "0.1 s a task"}
CHOSEN_NAMES = {"A": "A, which floods", "B": "B"}
CHOICES = {
    "way": WAY_NAMES,
    "chosen": CHOSEN_NAMES,
    "rule": RULE_NAMES,
    "pace": PACE_NAMES,
}
FILLED_IN = {
    "way": "lanes",
    "flood": "1000",
    "behind": "4",
    "tasks": "5",
    "chosen": "B",
    "rule": "order",
    "pace": "watch",
    "dead": "0",
}


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the newest rush, and offer to begin one."""
    return _page(newest_rushes().get(), {}, {}, 200)


@bp.post("")
def begin() -> ResponseReturnValue:
    """Begin a rush, once for each form."""
    rush_id = id_in_form()
    form = {field: request.form.get(field, "").strip()[:60] for field in FILLED_IN}
    errors = _errors(form)
    if errors:
        return _page(newest_rushes().get(), form, errors, 400)
    asked = rush_form(form)
    let_in_tenants(rush_id, asked.flood + asked.behind * asked.tasks, PACES_MS[asked.pace])
    strike_once_each("/tenants")
    rushes.begin(clients(), rush_id, asked)
    return redirect(url_for(".rush", rush_id=rush_id, _anchor="now"), 303)


def rush_form(form: dict[str, str]) -> RushForm:
    """Return the rush of a form that is filled in well."""
    numbers = {field: int(form[field]) for field in NUMBERS}
    return RushForm(**{**form, **numbers})  # type: ignore[arg-type]


@bp.get("/<rush_id>")
def rush(rush_id: str) -> ResponseReturnValue:
    """Show a rush, under an address that stays."""
    return _page(_rush_or_404(rush_id), {}, {}, 200)


@bp.get("/<rush_id>/live")
def live(rush_id: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("tenants/_live.html", **_live(_rush_or_404(rush_id)))


def _errors(form: dict[str, str]) -> dict[str, str]:
    errors = {
        field: f"a whole number from {lowest} to {highest}"
        for field, (lowest, highest) in NUMBERS.items()
        if not (WHOLE.fullmatch(form[field]) and lowest <= int(form[field]) <= highest)
    }
    for field, choices in CHOICES.items():
        if form[field] not in choices:
            errors[field] = f"one of {', '.join(choices)}"
    return errors


# What the pages are made of


def _page(
    row: TenantRush | None, form: dict[str, str], errors: dict[str, str], status: int
) -> ResponseReturnValue:
    tab = open_tab(TABS)
    html = render_template(
        "tenants/page.html",
        tab=tab,
        errors=errors,
        form={**(_form_of(row) if row else FILLED_IN), **form},
        bounds=NUMBERS,
        choices=CHOICES,
        recent=newest_rushes().fetch(LISTED),
        excerpts=_code() if tab == "code" else [],
        **_live(row),
    )
    return html, status


def _form_of(row: TenantRush) -> dict[str, str]:
    """Return the form of another rush like this."""
    return {field: str(getattr(row, field)) for field in FILLED_IN}


def _live(row: TenantRush | None) -> dict[str, Any]:
    read_at = clients().clock.now()
    rush = progress(clients(), row) if row is not None else None
    length_s = timeline(rush, 0.0).length_s if rush else 0.0
    return {
        "new_id": clients().new_id(),
        "rush": rush,
        "strips": strips_of(rush, length_s) if rush else [],
        "stage": render(TenantsStage(rush), read_at),
        "rules": RULE_NAMES,
        "ways": WAY_NAMES,
        "when": when,
        "tenants": TENANTS,
        "is_moving": rush is not None and rush.is_moving,
    }


def _code() -> list[Excerpt]:
    return [
        excerpt("pipelines.tenants.rushes", "_send", "Tasks wait in lanes, with the data"),
        excerpt("pipelines.tenants.rushes", "lane_of", "The lane with a tenant’s rule"),
        excerpt("pipelines.tenants.rushes", "_work", "The task: no code for lanes"),
        excerpt("pipelines.tenants.progress", "RushProgress", "Does it add up?"),
        excerpt("rollforward.lanes.runs.delivery", "deliver", "A turn: claim, run, give back"),
        excerpt("rollforward.lanes.runs.claims", "_claim", "A claim is one commit"),
    ]


def _rush_or_404(rush_id: str) -> TenantRush:
    row: TenantRush | None = rush_key(rush_id).get() if ID_PATTERN.fullmatch(rush_id) else None
    return row if row is not None else abort(404)
