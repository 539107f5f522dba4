"""Pages of numbers: measure this stack, and look at what was measured, now and before."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from flask import Blueprint, Response, abort, flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from demos.numbers import runs
from demos.numbers.probes import NOT_MEASURED, PROBES
from demos.numbers.results import Finding, findings
from demos.numbers.runs import RunGoesOnError
from handlers.endpoints.context import clients, settings
from handlers.forms import id_in_form
from handlers.pages.number_charts import exact, strip, ticks, times
from models.demos.numbers import NumbersRun, newest_runs, numbers_run_key

bp = Blueprint("numbers", __name__, url_prefix="/numbers")

RUN_ID = re.compile(r"[0-9a-f]{32}")
LISTED = 10

bp.add_app_template_filter(exact)
bp.add_app_template_filter(times)
bp.add_app_template_filter(strip)


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the last run, or what the talk says when there is none."""
    return _page(runs.newest())


@bp.get("/<run_id>")
def run(run_id: str) -> ResponseReturnValue:
    """Show a run, under an address that stays."""
    return _page(_known(run_id))


@bp.get("/<run_id>/live")
def live(run_id: str) -> ResponseReturnValue:
    """Return the part of the page that changes by itself, for the script to put in place."""
    return render_template("numbers/_live.html", **_live(_known(run_id)))


@bp.get("/<run_id>.csv")
def samples(run_id: str) -> ResponseReturnValue:
    """Return all samples of a run, a line each."""
    found = _known(run_id)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["probe", "title", "sample", "ms"])
    for each in findings(found):
        for number, ms in enumerate(each.samples_ms, start=1):
            lines.writerow([each.probe.name, each.probe.title, number, f"{ms:.4f}"])
    response = Response(text.getvalue(), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="numbers-{run_id[:8]}.csv"'
    return response


@bp.post("")
def measure() -> ResponseReturnValue:
    """Begin a run, once for each form."""
    run_id = id_in_form()
    try:
        runs.start(clients(), run_id, stack=_stack())
    except RunGoesOnError as error:
        flash("A run is measuring already: two would measure each other. Here it is.")
        run_id = error.run_id
    return redirect(url_for(".run", run_id=run_id, _anchor="now"), 303)


# What the page is made of


def _page(found: NumbersRun | None) -> ResponseReturnValue:
    return render_template(
        "numbers/page.html",
        recent=newest_runs().fetch(LISTED),
        stack=_stack(),
        **_live(found),
    )


def _live(found: NumbersRun | None) -> dict[str, Any]:
    before = runs.before(found) if found else None
    rows: list[Finding] = findings(found, before)
    taken = sum(bool(each.samples_ms or each.note) for each in rows)
    return {
        "run": found,
        "before": before,
        "rows": rows,
        "ticks": ticks(),
        "taken": taken,
        "count": len(PROBES),
        "not_measured": NOT_MEASURED,
        "is_complete": found is not None and runs.is_complete(found),
        "is_moving": found is not None and runs.is_moving(clients(), found),
        "new_id": clients().new_id(),
    }


def _stack() -> str:
    """Return in words what the numbers are of."""
    here = settings()
    if here.datastore_emulator:
        return "the Datastore emulator and the Cloud Tasks emulator, on this machine"
    return f"Datastore and Cloud Tasks, from {here.platform}"


def _known(run_id: str) -> NumbersRun:
    found = numbers_run_key(run_id).get() if RUN_ID.fullmatch(run_id) else None
    if found is None:
        abort(404)
    return found  # type: ignore[no-any-return]
