"""The page of zeitgeist: play queries, watch their bands, and hold back a feed."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from demos.zeitgeist import playbacks, player
from demos.zeitgeist.pipeline import FEEDS, ZEITGEIST
from demos.zeitgeist.playbacks import MAX_SERIES, MAX_UPLOAD_BYTES, SPEEDS, Playback
from demos.zeitgeist.progress import Point, board_of, open_counts, points_of
from demos.zeitgeist.series import DAY_MS, MAX_NAME_CHARS, BadSeriesError, Series, read_series
from handlers.endpoints.context import clients
from handlers.forms import id_in_form
from handlers.pages.code import Excerpt, excerpt
from handlers.pages.faults import strike_once_each, switches_of
from handlers.pages.incidents import Delivery, incidents
from handlers.pages.live import live_part
from handlers.pages.stage import Stage, seconds, stage_of
from handlers.pages.weblog_charts import BOX_HEIGHT, BOX_WIDTH, picture_of
from handlers.pages.zeitgeist_charts import Chart, chart_of, clock
from pipelines.streams import FOREVER

bp = Blueprint("zeitgeist", __name__, url_prefix="/zeitgeist")

TASKS = "/tasks/streams/zeitgeist/"
TABS = ("how", "code")
SHOWN_MS = 2 * DAY_MS
SHOWN_BUCKETS = 24
SHOWN_ALERTS = 12
SPEED = 10_000
STEERED = {"rumour": playbacks.RUMOUR, "quiet": playbacks.SILENCE}


@dataclass(frozen=True)
class Row:
    """How far a computation is."""

    name: str
    records: int
    waiting: int
    late: int
    dead: int
    watermark: int
    lag_ms: int


# Looking


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the playback that goes on, or the last one."""
    return _page("", 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the part of the page that changes by itself, for the script to put in place."""
    return live_part("zeitgeist/_live.html", **_live())


# Playbacks


@bp.post("/playbacks")
def start() -> ResponseReturnValue:
    """Play the sample, or series of uploaded files, once for each form."""
    playback_id, speed = id_in_form(), _speed()
    files = [each for each in request.files.getlist("files") if each.filename]
    try:
        if files:
            parts = playbacks.upload_parts(clients(), playback_id, _series(files))
            title = ", ".join(part.name for part in parts)
        elif request.form.get("sample"):
            parts, title = playbacks.sample_parts(playback_id), "the sample"
        else:
            return _page("choose files, or press “Play the sample”", 400)
        wanted = playbacks.new_playback(clients(), playback_id, title, parts, speed)
        if not player.start(clients(), wanted):
            flash("This form was sent before: its playback was started once.")
    except BadSeriesError as error:
        return _page(str(error), 400)
    except playbacks.PlaybackGoesOnError:
        flash("A playback goes on already. Stop it first.")
    strike_once_each("/zeitgeist")
    return redirect(url_for(".page", _anchor="now"), 303)


def _series(files: list[Any]) -> list[Series]:
    if len(files) > MAX_SERIES:
        raise BadSeriesError(f"one playback has at most {MAX_SERIES} series")
    many = []
    for file in files:
        content = file.read(MAX_UPLOAD_BYTES + 1)
        if len(content) > MAX_UPLOAD_BYTES:
            raise BadSeriesError(f"a file has at most {MAX_UPLOAD_BYTES // 1024**2} MiB")
        name = file.filename.rpartition("/")[2].removesuffix(".csv")[:MAX_NAME_CHARS]
        try:
            many.append(read_series(name, content))
        except BadSeriesError as error:
            raise BadSeriesError(f"{name}: {error}") from error
    return many


@bp.post("/playbacks/<playback_id>/<any(rumour, quiet, hold, release, speed, stop):verb>")
def steer(playback_id: str, verb: str) -> ResponseReturnValue:
    """Change a playback while it goes on."""
    query, feed = request.form.get("query", ""), request.form.get("feed", "")
    if verb in STEERED:
        done = playbacks.ask_for(playback_id, query, STEERED[verb])
    elif verb == "speed":
        done = playbacks.change_speed(clients(), playback_id, _speed())
    elif verb == "stop":
        done = playbacks.stop(playback_id)
    else:
        if feed not in FEEDS:
            abort(400, "There is no such feed.")
        done = playbacks.hold(playback_id, feed, is_held=verb == "hold")
    if not done:
        flash("That playback is over, or has no such query. Reload the page.")
    return redirect(url_for(".page", q=request.form.get("query") or None, _anchor="now"), 303)


def _speed() -> int:
    speed = request.form.get("speed", 0, type=int)
    if speed not in SPEEDS:
        abort(400, f"A speed is one of {', '.join(map(str, SPEEDS))}.")
    return speed


# What the page is made of


def _page(error: str, status: int) -> ResponseReturnValue:
    tab = request.args.get("tab", TABS[0]) if request.method == "GET" else TABS[0]
    if tab not in TABS:
        abort(404)
    html = render_template(
        "zeitgeist/page.html",
        error=error,
        tab=tab,
        excerpts=_code() if tab == "code" else [],
        max_mib=MAX_UPLOAD_BYTES // 1024**2,
        max_series=MAX_SERIES,
        **_live(),
    )
    return html, status


def _live() -> dict[str, Any]:
    playback = playbacks.current()
    found = ZEITGEIST.status(clients())
    front = playback.front if playback else 0
    rows = [
        Row(
            each.name, each.records, each.waiting, each.late, each.dead, each.watermark,
            max(0, front - each.watermark) if playback and each.watermark < FOREVER else 0,
        )
        for each in (found.computations[name] for name in ZEITGEIST.graph.order)
    ]  # fmt: skip
    return {
        "rows": rows,
        "came": sum(each.records for each in found.sources.values()),
        "picture": picture_of(ZEITGEIST),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "playback": playback,
        "is_moving": playback is not None
        and (not playback.is_over or any(r.waiting for r in rows)),
        "feeds": FEEDS,
        "speeds": SPEEDS,
        "speed": playback.speed if playback else SPEED,
        "stage": _stage(),
        "new_id": clients().new_id(),
        "is_scrubbed": False,
        **(_of_playback(playback, found.computations["counter"].watermark) if playback else {}),
    }


def _of_playback(playback: Playback, watermark: int) -> dict[str, Any]:
    """Return what is shown of the queries of a playback, and of the chosen one."""
    board = board_of(clients(), playback)
    part = playback.part(request.args.get("q", "")) or playback.parts[0]
    days = max(1, -(-(playback.end - playback.begin) // DAY_MS))
    day = request.args.get("day", 0, type=int)
    span = _span(playback, day if 1 <= day <= days else None)
    points = points_of(clients(), part.query, *span)
    so_far = [] if 1 <= day <= days else open_counts(clients(), part.query)
    return {
        "part": part,
        "board": board,
        "told": board.told[:SHOWN_ALERTS],
        "watermark": min(watermark, playback.last),
        "chart": _chart(playback, board.of(part.query), points, so_far, span, watermark),
        "points": [*points, *so_far][-SHOWN_BUCKETS:],
        "open_from": so_far[0].start if so_far else FOREVER,
        "day": day if 1 <= day <= days else None,
        "days": days,
        "today": min(days, max(1, (playback.front - playback.begin) // DAY_MS + 1)),
    }


def _span(playback: Playback, day: int | None) -> tuple[int, int]:
    """Return from when to when a chart is: two days up to the front, or to the end of a day."""
    if day is not None:
        end = playback.begin + day * DAY_MS
    else:
        # A little ahead, so that the front can be seen to move.
        end = max(playback.begin + SHOWN_MS, min(playback.last, playback.front) + SHOWN_MS // 20)
    return end - SHOWN_MS, end


def _chart(
    playback: Playback, alerts: Any, points: list[Point], so_far: list[Point],
    span: tuple[int, int], watermark: int,
) -> Chart:  # fmt: skip
    return chart_of(
        points, [each for each in so_far if each.start < span[1]], alerts,
        span=span, watermark=watermark, front=playback.front, shift=playback.shift,
    )  # fmt: skip


def _stage() -> Stage:
    """Return the stage, for its switches and for what a kill led to."""
    now = clients().clock.now()
    seen = incidents(now - datetime.timedelta(seconds=30), path=TASKS)
    return stage_of(None, seen, switches_of(seen.rules), now=seconds(now), name=_name)


def _name(delivery: Delivery) -> str:
    return f"zeitgeist {delivery.path.removeprefix(TASKS)}"


def _code() -> list[Excerpt]:
    return [
        excerpt("demos.zeitgeist.pipeline", "Counter", "Counts so far, and complete ones"),
        excerpt("demos.zeitgeist.pipeline", "Usual", "What is usual goes with each count"),
        excerpt("demos.zeitgeist.pipeline", "Watcher", "What is odd"),
        excerpt("demos.zeitgeist.model", "Model.expected", "Mean and spread by hour of the week"),
        excerpt("demos.zeitgeist.detector", "Detector.complete", "Evidence over several buckets"),
        excerpt("demos.zeitgeist.detector", "Side.bar", "How much evidence is enough"),
        excerpt("demos.zeitgeist.player", "play", "A step of a playback"),
    ]


@bp.app_template_filter("series_time")
def series_time(at: int, playback: Playback) -> str:
    """Return a time of the stream as the series has it."""
    return clock(at - playback.shift)
