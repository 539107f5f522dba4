"""Pages of quilts: make one, watch its squares being painted, and play it again."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.quilt.stage import QuiltStage, marks_of, number_of, picture_of
from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import ID_PATTERN, id_in_form, open_tab
from handlers.shared.incidents import hits_of
from handlers.shared.live import live_part
from handlers.shared.quotas import let_in_quilt
from handlers.shared.source_excerpts import Excerpt, excerpt
from models.quilt import Quilt, newest_quilts, quilt_key
from pipelines.quilt import quilts
from pipelines.quilt.design import PACES_MS, PALETTES, PATTERNS, SIZES, Design
from pipelines.quilt.progress import progress
from pipelines.quilt.quilts import GoneQuiltError
from rollforward.flask.context import clients

bp = Blueprint("quilt", __name__, url_prefix="/quilt")

LISTED = 8
GONE = "The quilt of this form was deleted. Make a new one on the page Quilt."
TABS = ("how", "code", "table")
SIZE_NAMES = {"8": "8 × 8", "12": "12 × 12", "16": "16 × 16", "4x8": "4 quilts of 64"}
PACE_NAMES = {"fast": "as fast as possible", "watch": "0.4 s a square", "slow": "1.5 s a square"}
FILLED_IN = {"size": "8", "palette": "indigo", "pattern": "diamonds", "pace": "watch"}
CHOICES = {"size": SIZES, "palette": PALETTES, "pattern": PATTERNS, "pace": PACES_MS}


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the newest quilt, and offer to make one."""
    return _page(newest_quilts().get(), {}, 200)


@bp.post("")
def make() -> ResponseReturnValue:
    """Make a quilt, once for each form."""
    quilt = id_in_form()
    form = {field: request.form.get(field, "") for field in CHOICES}
    errors = {
        field: f"one of {', '.join(choices)}"
        for field, choices in CHOICES.items()
        if form[field] not in choices
    }
    if errors:
        return _page(newest_quilts().get(), errors, 400)
    design = design_for(form)
    let_in_quilt(quilt, design)
    strike_once_each("/quilt")
    try:
        quilts.make(clients(), quilt, design)
    except GoneQuiltError:
        abort(410, GONE)
    return redirect(url_for(".quilt", quilt_id=quilt, _anchor="now"), 303)


def design_for(form: dict[str, str]) -> Design:
    """Return the design that a form asks for, filled in well."""
    edge, pieces = SIZES[form["size"]]
    return Design(edge, pieces, form["palette"], form["pattern"], PACES_MS[form["pace"]])


@bp.get("/<quilt_id>")
def quilt(quilt_id: str) -> ResponseReturnValue:
    """Show a quilt, under an address that stays."""
    return _page(_quilt_or_404(quilt_id), {}, 200)


@bp.get("/<quilt_id>/live")
def live(quilt_id: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("quilt/_live.html", **_live(_quilt_or_404(quilt_id)))


@bp.get("/<quilt_id>.svg")
def picture(quilt_id: str) -> ResponseReturnValue:
    """Return a quilt as a picture."""
    row = _quilt_or_404(quilt_id)
    design, is_whole = quilts.design_of(row), row.outcome == "succeeded"
    # One that has succeeded is painted all over, which needs no look at its squares.
    squares = [] if is_whole else progress(clients(), row).squares
    blank = {square.number for square in squares if square.painted_s is None}
    svg = render_template("quilt/picture.svg", design=design, blank=blank)
    response = Response(svg, content_type="image/svg+xml")
    if is_whole:
        response.headers["Cache-Control"] = "private, max-age=86400"
    return response


# What the pages are made of


def _page(row: Quilt | None, errors: dict[str, str], status: int) -> ResponseReturnValue:
    tab = open_tab(TABS)
    html = render_template(
        "quilt/page.html",
        tab=tab,
        errors=errors,
        form={**(_form_of(row) if row else FILLED_IN), **_known_fields()},
        sizes=SIZE_NAMES,
        paces=PACE_NAMES,
        palettes=PALETTES,
        patterns=[(name, name) for name in PATTERNS],
        recent=newest_quilts().fetch(LISTED),
        excerpts=_code() if tab == "code" else [],
        **_live(row),
    )
    return html, status


def _form_of(row: Quilt) -> dict[str, str]:
    """Return the form of another quilt like this."""
    design = quilts.design_of(row)
    sizes = {size: name for name, size in SIZES.items()}
    paces = {ms: name for name, ms in PACES_MS.items()}
    return {
        "size": sizes.get((design.edge, design.pieces), FILLED_IN["size"]),
        "palette": design.palette,
        "pattern": design.pattern,
        "pace": paces.get(design.pace_ms, FILLED_IN["pace"]),
    }


def _known_fields() -> dict[str, str]:
    """Return the valid choices of a form."""
    asked = {field: request.form.get(field, "") for field in CHOICES}
    return {field: value for field, value in asked.items() if value in CHOICES[field]}


def _live(row: Quilt | None) -> dict[str, Any]:
    now = clients().clock.now()
    quilt = progress(clients(), row) if row is not None else None
    stage = render(QuiltStage(quilt), now)
    hits = hits_of(stage.deliveries, number_of)
    return {
        "new_id": clients().new_id(),
        "quilt": quilt,
        "stage": stage,
        "hits": hits,
        "marks": marks_of(quilt, stage.hit, hits) if quilt else None,
        "picture": picture_of(quilt, hits) if quilt else "",
        "is_moving": quilt is not None and quilt.is_moving,
    }


def _code() -> list[Excerpt]:
    return [
        excerpt("pipelines.quilt.quilts", "make", "One commit: the quilt and its members"),
        excerpt("pipelines.quilt.quilts", "paint", "A member: it paints one square, once"),
        excerpt("pipelines.quilt.quilts", "sew", "A member that becomes a batch"),
        excerpt("pipelines.quilt.quilts", "finish", "The completion task, once all have ended"),
        excerpt("rollforward.batches.completion", "end_members", "Detection of the last member"),
    ]


def _quilt_or_404(quilt_id: str) -> Quilt:
    quilt: Quilt | None = quilt_key(quilt_id).get() if ID_PATTERN.fullmatch(quilt_id) else None
    return quilt if quilt is not None else abort(404)
