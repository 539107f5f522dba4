"""Pages of numbers: measure this stack, and compare the results with earlier ones."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.numbers.charts import strip, ticks, timed, times
from handlers.numbers.stage import NumberStage
from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.forms import id_in_form
from handlers.shared.live import live_part
from handlers.shared.source_excerpts import Excerpt, excerpt
from models.numbers import NumbersRun, newest_runs, numbers_run_key
from pipelines.numbers import runs
from pipelines.numbers.probes import NOT_MEASURED, PROBES
from pipelines.numbers.results import Finding, findings
from pipelines.numbers.runs import RunGoesOnError
from rollforward.flask.context import clients, settings

bp = Blueprint("numbers", __name__, url_prefix="/numbers")

RUN_ID = re.compile(r"[0-9a-f]{32}")
LISTED = 10
TABS = ("table", "how", "code", "limits")
# "long": as if a nanosecond were a second.
SCALES = ("real", "long")

bp.add_app_template_filter(timed)
bp.add_app_template_filter(times)
bp.add_app_template_filter(strip)


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the last run, or the talk's numbers without one."""
    return _page(runs.newest())


@bp.get("/<run_id>")
def run(run_id: str) -> ResponseReturnValue:
    """Show a run, under an address that stays."""
    return _page(_known(run_id))


@bp.get("/<run_id>/live")
def live(run_id: str) -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("numbers/_live.html", **_live(_known(run_id)))


@bp.get("/<run_id>.csv")
def samples(run_id: str) -> ResponseReturnValue:
    """Return all samples of a run, a line each."""
    run = _known(run_id)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["probe", "title", "sample", "ms"])
    for finding in findings(run):
        for number, ms in enumerate(finding.samples_ms, start=1):
            lines.writerow([finding.probe.name, finding.probe.title, number, f"{ms:.4f}"])
    response = Response(text.getvalue(), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="numbers-{run_id[:8]}.csv"'
    return response


@bp.post("")
def measure() -> ResponseReturnValue:
    """Begin a run, once for each form."""
    run_id = id_in_form()
    strike_once_each(request.path)
    return redirect(url_for(".run", run_id=start_run(run_id), _anchor="now"), 303)


def start_run(run_id: str) -> str:
    """Start a run; return its id, or the id of the one that is measuring already."""
    try:
        runs.start(clients(), run_id, stack=_stack_in_words())
    except RunGoesOnError as error:
        flash("Another run is measuring, and two would distort each other. This is its page.")
        return error.run_id
    return run_id


# What the page is made of


def _page(run: NumbersRun | None) -> ResponseReturnValue:
    tab = request.args.get("tab", TABS[0])
    if tab not in TABS:
        abort(404)
    return render_template(
        "numbers/page.html",
        recent=newest_runs().fetch(LISTED),
        stack=_stack_in_words(),
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        not_measured=NOT_MEASURED,
        **_live(run),
    )


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.numbers.probes", "_timed", "Takes one sample"),
        excerpt("pipelines.numbers.runs", "measure_numbers", "One operation after another"),
        excerpt("pipelines.numbers.echo", "echo", "A task that records its delivery latency"),
    ]


def _live(run: NumbersRun | None) -> dict[str, Any]:
    scale = request.args.get("scale", SCALES[0])
    if scale not in SCALES:
        abort(404)
    spent = clients().meter.cost()
    earlier = runs.before(run) if run else None
    rows: list[Finding] = findings(run, earlier)
    reads = (clients().meter.cost() - spent).reads + (run is not None)
    is_complete = run is not None and runs.is_complete(run)
    is_moving = run is not None and runs.is_moving(clients(), run)
    now = clients().clock.now()
    return {
        "run": run,
        "rows": rows,
        "is_long": scale == "long",
        "scale": scale if scale != SCALES[0] else None,
        "ticks": ticks(is_long=scale == "long"),
        "taken": sum(bool(finding.samples_ms or finding.note) for finding in rows),
        "count": len(PROBES),
        "is_complete": is_complete,
        "is_moving": is_moving,
        "stage": render(NumberStage(run, rows, reads, is_moving, is_complete), now),
        "new_id": clients().new_id(),
    }


def _stack_in_words() -> str:
    """Return a description of the measured stack."""
    if settings().datastore_emulator:
        words = "the Datastore emulator and the Cloud Tasks emulator, on this machine"
        profile = settings().cloud_profile
        return f"{words}, as slow as {Path(profile).stem} says" if profile else words
    return "Datastore and Cloud Tasks"


def _known(run_id: str) -> NumbersRun:
    run = numbers_run_key(run_id).get() if RUN_ID.fullmatch(run_id) else None
    if run is None:
        abort(404)
    return run  # type: ignore[no-any-return]
