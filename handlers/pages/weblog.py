"""The page of the web log: give it a log, and watch its windows fill while the watermark moves."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from demos.weblog.loads import MAX_LOG_BYTES, BadLogError, add_log, add_sample
from demos.weblog.pipeline import WEBLOG
from handlers.endpoints.context import clients
from handlers.forms import id_in_form
from handlers.pages.faults import switches_of
from handlers.pages.incidents import Delivery, incidents
from handlers.pages.live import live_part
from handlers.pages.stage import Stage, seconds, stage_of
from handlers.pages.weblog_charts import BOX_HEIGHT, BOX_WIDTH, picture_of
from models.demos.weblog import access_logs

bp = Blueprint("weblog", __name__, url_prefix="/streams/weblog")

TASKS = "/tasks/streams/weblog/"
KINDS = ("tops", "rates", "visits", "hits")
SHOWN = 10


@dataclass(frozen=True)
class Row:
    """How far a computation is, and whether all that came to it can be accounted for.

    `came` is None for what reads no source: then nobody else has counted its records.
    """

    name: str
    came: int | None
    records: int
    late: int
    dead: int
    waiting: int
    watermark: int
    lag_ms: int

    @property
    def missing(self) -> int:
        """Return how many records came and are in no window, not late, not dead, not waiting."""
        return (self.came or 0) - self.records - self.late - self.dead - self.waiting


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the pipeline, and a form for a log."""
    return _page("", 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the part of the page that changes by itself, for the script to put in place."""
    return live_part("weblog/_live.html", **_live())


@bp.post("/logs")
def give() -> ResponseReturnValue:
    """Give the pipeline a log, once for each form: an upload, or the sample."""
    log_id, file = id_in_form(), request.files.get("file")
    try:
        if file is not None and file.filename:
            is_new = add_log(clients(), log_id, file.filename, file.read(MAX_LOG_BYTES + 1))
        elif request.form.get("sample"):
            is_new = add_sample(clients(), log_id)
        else:
            return _page("choose a file, or press “sample”", 400)
    except BadLogError as error:
        return _page(str(error), 400)
    if not is_new:
        flash("This form was sent before: its log is read once.")
    return redirect(url_for(".page", _anchor="now"), 303)


def _page(error: str, status: int) -> ResponseReturnValue:
    limit = MAX_LOG_BYTES // 1024**2
    return render_template("weblog/page.html", error=error, max_mib=limit, **_live()), status


def _live() -> dict[str, Any]:
    found = WEBLOG.status(clients())
    came = {name: each.records for name, each in found.sources.items()}
    front = max((each.watermark for each in found.sources.values()), default=0)
    rows = [
        Row(
            name=each.name,
            came=sum(came[s] for s in _streams(each.name)) if _reads_sources(each.name) else None,
            records=each.records,
            late=each.late,
            dead=each.dead,
            waiting=each.waiting,
            watermark=each.watermark,
            lag_ms=max(0, front - each.watermark),
        )
        for each in (found.computations[name] for name in WEBLOG.graph.order)
    ]
    board = dict(WEBLOG.states(clients(), "board"))
    return {
        "rows": rows,
        "came": sum(came.values()),
        "is_moving": any(row.waiting or row.lag_ms for row in rows),
        "board": {kind: _last(board.get(kind, {})) for kind in KINDS},
        "picture": picture_of(WEBLOG),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "logs": access_logs(),
        "stage": _stage(),
        "new_id": clients().new_id(),
    }


def _streams(name: str) -> list[str]:
    return list(WEBLOG.computations[name].inputs)


def _reads_sources(name: str) -> bool:
    return all(stream in WEBLOG.sources for stream in _streams(name))


def _last(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the newest results of a kind, the newest first."""
    return list(reversed(state.get("last", [])))[:SHOWN]


def _stage() -> Stage:
    """Return the stage, for its switches and for what a kill led to."""
    now = clients().clock.now()
    seen = incidents(now - datetime.timedelta(seconds=30), path=TASKS)
    return stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name)


def _name(delivery: Delivery) -> str:
    return f"streams {delivery.path.removeprefix(TASKS)}"


@bp.app_template_filter("log_time")
def log_time(at: int) -> str:
    """Return a time of the stream as its day since the first one, and its time of day.

    >>> log_time(86_400_000 + 3_600_000)
    'day 1, 01:00'
    """
    minutes = at // 60_000
    return f"day {minutes // 1440}, {minutes % 1440 // 60:02}:{minutes % 60:02}"
