"""The page of the web log: give it a log, and watch its windows fill while the watermark moves."""

from __future__ import annotations

import datetime
import itertools
import json
from typing import Any
from urllib.parse import unquote

from flask import (
    Blueprint,
    Response,
    abort,
    flash,
    make_response,
    redirect,
    render_template,
    request,
    url_for,
)
from flask.typing import ResponseReturnValue

from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each
from handlers.shared.formatting import number
from handlers.shared.forms import about_file, id_in_form, open_tab
from handlers.shared.incidents import hits_of
from handlers.shared.live import live_part
from handlers.shared.pipeline_graph import BOX_HEIGHT, BOX_WIDTH, Cell, counts_of, picture_of
from handlers.shared.quotas import SAMPLE_BYTES, let_in_upload
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.shared.stream_stage import box_of
from handlers.weblog.charts import SECONDS_HIGH, by_second, log_chart
from handlers.weblog.stage import WeblogStage
from pipelines.weblog.loads import (
    MAX_LOG_BYTES,
    PACES,
    BadLogError,
    TooManyLogsError,
    add_log,
    add_sample,
    check_log,
)
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.progress import Dates, Progress, progress
from rollforward.flask.context import clients

bp = Blueprint("weblog", __name__, url_prefix="/streams/weblog")


TABS = ("table", "results", "state", "how", "code")
PACE_NAMES = {"watch": "200 lines a second", "fast": "as fast as possible"}
RESULTS_SHOWN = 12
KEYS_SHOWN = 20
MAX_KEY_CHARS = 200
# A line of a log.
EXAMPLE = '10.0.0.1 - - [17/May/2026:08:00:00 +0000] "GET / HTTP/1.1" 200 512'
RETRY_AFTER_S = 10


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the pipeline, and a form for a log."""
    return _page({}, 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("weblog/_live.html", **_live())


@bp.post("/logs")
def give() -> ResponseReturnValue:
    """Give the pipeline a log, once for each form: an upload, or the sample."""
    log_id, pace = id_in_form(), request.form.get("pace", "fast")
    if pace not in PACES:
        return _page({"pace": f"one of {', '.join(PACES)}"}, 400)
    try:
        is_new = _give(log_id, pace)
    except BadLogError as error:
        return _page({"log": str(error)}, 400)
    except TooManyLogsError as error:
        abort(_too_many(f"{error}; try again when some of them are"))
    if not is_new:
        flash("This form was sent before. Its log is read once.")
    return redirect(url_for(".page", _anchor="now"), 303)


def _too_many(error: str) -> Response:
    response = make_response(_page({"log": error}, 429))
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _give(log_id: str, pace: str) -> bool:
    """Give a form's logs to the pipeline; return whether they are new.

    Raises:
        BadLogError: it is no log.
        TooManyLogsError: too many wait.
    """
    file = request.files.get("file")
    if request.form.get("sample"):
        let_in_upload(log_id, SAMPLE_BYTES)
        strike_once_each(request.path)
        return add_sample(clients(), log_id, pace)
    if file is None or not file.filename:
        raise BadLogError("choose a file, or press “Sample”")
    content = file.read(MAX_LOG_BYTES + 1)
    try:
        check_log(content)
    except BadLogError as error:
        raise BadLogError(about_file(file.filename, str(error), EXAMPLE)) from error
    let_in_upload(log_id, len(content))
    strike_once_each(request.path)
    return add_log(clients(), log_id, file.filename, content, pace)


# What the page is made of


def _page(errors: dict[str, str], status: int) -> ResponseReturnValue:
    tab = open_tab(TABS)
    html = render_template(
        "weblog/page.html",
        errors=errors,
        max_mib=MAX_LOG_BYTES // 1024**2,
        paces=PACE_NAMES,
        # Another one: who presses “Sample” first may send this form all the same.
        upload_id=clients().new_id(),
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        looked_up=_looked_up() if tab == "state" else None,
        results_shown=RESULTS_SHOWN,
        **_live(),
    )
    return html, status


def _live() -> dict[str, Any]:
    cost_before, now = clients().meter.cost(), clients().clock.now()
    run = progress(clients())
    reads = (clients().meter.cost() - cost_before).reads
    stage = render(WeblogStage(run, reads), now)
    return {
        "run": run,
        "cells": _cells(run),
        "picture": picture_of(WEBLOG),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "chart": log_chart(run),
        "seconds": by_second(run.results, stage.length_s) if run.started else [],
        "seconds_high": SECONDS_HIGH,
        "hits": hits_of(stage.deliveries, box_of),
        "stage": stage,
        "new_id": clients().new_id(),
    }


def _cells(run: Progress) -> dict[str, list[Cell]]:
    """Return the lines of each box."""
    cells = {
        part.name: counts_of(
            part.counted.records,
            part.lag_ms,
            part.waiting,
            part.counted.late,
            part.counted.dead,
            part.rate,
        )
        for part in run.parts
    }
    totals = [f"{number(run.totals.requests)} in", f"{number(run.totals.bad)} unreadable"]
    return {**cells, "requests": [(text, False) for text in totals]}


def _looked_up() -> dict[str, Any]:
    """Return the state of the key that is asked for, or the keys that there are."""
    name = request.args.get("computation", "hits")
    if name not in WEBLOG.computations:
        abort(404)
    key = request.args.get("key", "")[:MAX_KEY_CHARS]
    if key:
        states = [(key, WEBLOG.state(clients(), name, key))]
    else:
        states = list(itertools.islice(WEBLOG.states(clients(), name), KEYS_SHOWN + 1))
    return {
        "computation": name,
        "computations": list(WEBLOG.graph.order),
        "key": key,
        "states": [(row, _windows(state), _as_text(state)) for row, state in states[:KEYS_SHOWN]],
        "is_truncated": len(states) > KEYS_SHOWN,
    }


def _windows(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the open windows of a state, the one that began first before the others."""
    return sorted(state.get("windows", {}).values(), key=lambda window: window["start"])


def _as_text(state: dict[str, Any]) -> str:
    return json.dumps(state, ensure_ascii=False, indent=1) if state else ""


def _code() -> list[Excerpt]:
    """Return the lines that matter, as they run."""
    return [
        excerpt("pipelines.weblog.pipeline", "HITS", "A window for each path and minute"),
        excerpt("pipelines.weblog.pipeline", "SESSIONS", "A visit ends after a pause"),
        excerpt("pipelines.weblog.pipeline", "ERRORS_BY_SHARD", "Counted in shards first"),
        excerpt("pipelines.weblog.pipeline", "ERROR_RATES", "Then merged, over 5 minutes"),
        excerpt("pipelines.weblog.board", "Board.record", "A custom computation"),
        excerpt("pipelines.weblog.source", "read_logs", "A source: a position, and its records"),
    ]


@bp.app_template_filter("log_time")
def log_time(at: int, dates: Dates) -> str:
    """Return a time of the stream as the log had it.

    >>> log_time(86_400_000 + 3_600_000, Dates([(86_400_000, 0)]))
    '1970-01-01 01:00'
    """
    date = dates.of(at)
    return "–" if date is None else f"{date:%Y-%m-%d %H:%M}"


@bp.app_template_filter("readable_path")
def readable_path(path: str) -> str:
    """Return a path as people write it, if all of it can be shown.

    >>> readable_path("/%E3%83%91%E3%83%B3"), readable_path("/%0A"), readable_path("/%FF")
    ('/パン', '/%0A', '/%FF')
    """
    text = unquote(path, errors="surrogateescape")
    return text if text.isprintable() else path


@bp.app_template_filter("time_tag")
def time_tag(at: datetime.datetime) -> str:
    """Return a time of day, with its day.

    >>> time_tag(datetime.datetime(2015, 5, 17, 8, 5))
    '17 May 2015, 08:05'
    """
    return f"{at.day} {at:%b %Y, %H:%M}"
