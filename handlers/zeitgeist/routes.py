"""The page of zeitgeist: play queries, watch their bands, and hold back a feed."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, abort, flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from handlers.shared.demo_stage import render
from handlers.shared.faults import strike_once_each, workers
from handlers.shared.formatting import number, plural
from handlers.shared.forms import about_file, id_in_form, open_tab
from handlers.shared.incidents import hits_of
from handlers.shared.live import live_part
from handlers.shared.pipeline_graph import BOX_HEIGHT, BOX_WIDTH, counts_of, picture_of
from handlers.shared.quotas import let_in_upload
from handlers.shared.source_excerpts import Excerpt, excerpt
from handlers.shared.stream_stage import box_of
from handlers.zeitgeist.charts import Chart, Spark, chart_of, clock, spark_of
from handlers.zeitgeist.stage import ZeitgeistStage, rows_of, sums_of
from pipelines.zeitgeist import intervals, playbacks, player
from pipelines.zeitgeist.check import MAX_BUCKETS, Check, check
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.playbacks import (
    MAX_SERIES,
    MAX_UPLOAD_BYTES,
    SAMPLE_SPEED,
    SPEEDS,
    Playback,
)
from pipelines.zeitgeist.progress import Board, Point, board_of, open_counts, points_of
from pipelines.zeitgeist.quality.published import SCORES
from pipelines.zeitgeist.series import (
    BUCKET_MS,
    DAY_MS,
    MAX_NAME_CHARS,
    BadSeriesError,
    Series,
    read_series,
)
from rollforward.flask.context import clients, settings
from rollforward.streams import FOREVER, StreamError
from rollforward.streams.model.limits import SLOTS

bp = Blueprint("zeitgeist", __name__, url_prefix="/zeitgeist")

TABS = ("how", "compare", "quality", "code")
SHOWN_MS = 2 * DAY_MS
SHOWN_BUCKETS = 24
# A line of a series.
EXAMPLE = "2026-01-05 00:05,12"
SHOWN_ALERTS = 12
STEERED = {"rumour": playbacks.RUMOUR, "quiet": playbacks.SILENCE}


# Looking


@bp.get("")
def page() -> ResponseReturnValue:
    """Show the current playback, or the last one."""
    return _page("", 200)


@bp.get("/live")
def live() -> ResponseReturnValue:
    """Return the live part of the page; its script replaces it."""
    return live_part("zeitgeist/_live.html", **_live())


# Playbacks


@bp.post("/playbacks")
def start() -> ResponseReturnValue:
    """Play the sample, or series of uploaded files, once for each form."""
    playback_id, speed = id_in_form(), _speed()
    files = [file for file in request.files.getlist("files") if file.filename]
    try:
        if files:
            _check_none_goes_on(playback_id)
            many = _series(files)
            let_in_upload(playback_id, sum(8 * len(series.buckets) for series in many))
            parts = playbacks.upload_parts(clients(), playback_id, many)
            title = ", ".join(part.name for part in parts)
            playback = playbacks.new_playback(clients(), playback_id, title, parts, speed)
            is_new = player.start(clients(), playback)
        elif request.form.get("sample"):
            is_new = player.start_sample(clients(), playback_id, speed)
        else:
            return _page("choose files, or press “Play the sample”", 400)
        if not is_new:
            flash("This form was sent before. Its playback was started once.")
    except BadSeriesError as error:
        return _page(str(error), 400)
    except playbacks.PlaybackGoesOnError:
        flash("Another playback is running. Stop it first.")
    strike_once_each("/zeitgeist")
    return redirect(url_for(".page", _anchor="now"), 303)


def _check_none_goes_on(playback_id: str) -> None:
    """Check that before a file is read or stored; `start` checks it again.

    Raises:
        PlaybackGoesOnError: another playback is running.
    """
    playback = playbacks.current()
    if playback is not None and playback.id != playback_id and not playback.is_over:
        raise playbacks.PlaybackGoesOnError(f"{playback.title} is being played")


def _series(files: list[Any]) -> list[Series]:
    if len(files) > MAX_SERIES:
        raise BadSeriesError(f"one playback has at most {MAX_SERIES} series")
    many = []
    for file in files:
        content = file.read(MAX_UPLOAD_BYTES + 1)
        if len(content) > MAX_UPLOAD_BYTES:
            limit = MAX_UPLOAD_BYTES // 1024**2
            raise BadSeriesError(about_file(file.filename, f"a file has at most {limit} MiB"))
        name = file.filename.rpartition("/")[2].removesuffix(".csv")[:MAX_NAME_CHARS]
        try:
            many.append(read_series(name, content))
        except BadSeriesError as error:
            raise BadSeriesError(about_file(file.filename, str(error), EXAMPLE)) from error
        if sum(len(series.buckets) for series in many) > playbacks.MAX_BUCKETS:
            buckets = number(playbacks.MAX_BUCKETS)
            raise BadSeriesError(f"one playback has at most {buckets} buckets")
    return many


@bp.post("/playbacks/<playback_id>/<any(rumour, quiet, hold, release, speed, stop):verb>")
def steer(playback_id: str, verb: str) -> ResponseReturnValue:
    """Change a running playback."""
    query, feed = request.form.get("query", ""), request.form.get("feed", "")
    playback = playbacks.current()
    if playback is None or playback.id != playback_id:
        abort(404, "There is no such playback. Another one may have begun: open the page again.")
    if verb in STEERED and playback.part(query) is None:
        abort(400, "query must be a query of this playback. Open the page again.")
    if verb in STEERED:
        done = playbacks.ask_for(clients(), playback_id, query, STEERED[verb])
    elif verb == "speed":
        done = playbacks.change_speed(clients(), playback_id, _speed())
    elif verb == "stop":
        done = playbacks.stop(clients(), playback_id)
    else:
        if feed not in FEEDS:
            abort(400, f"feed must be one of {', '.join(FEEDS)}.")
        done = playbacks.hold(playback_id, feed, is_held=verb == "hold")
    if not done:
        flash(f"Nothing changed: it has ended, or has had {playbacks.MAX_CHANGES} changes.")
    return _back()


@bp.post("/intervals/<any(split, merge):verb>")
def reshape(verb: str) -> ResponseReturnValue:
    """Split the busiest interval, or merge split ones again. Local only."""
    playback = playbacks.current()
    if not settings().is_local:
        abort(404)
    try:
        if verb == "merge":
            flash(f"Undone: {plural(intervals.merge_all(clients()), 'split')}.")
        elif playback is None:
            flash("No playback yet: there is nothing to split.")
        else:
            flash(_split_in_words(intervals.split_busiest(clients(), playback)))
    except StreamError as error:
        flash(f"{error}.")
    return _back()


@bp.post("/detector/<int:version>")
def replace_detector(version: int) -> ResponseReturnValue:
    """Replace the detector by another version while the pipeline runs. Local only."""
    if not settings().is_local:
        abort(404)
    try:
        ZEITGEIST.replace(clients(), "detector", version=version)
        flash(f"Version {version} of the detector takes over, interval by interval.")
    except StreamError as error:
        flash(f"{error}.")
    return _back()


def _back() -> ResponseReturnValue:
    return redirect(url_for(".page", q=request.form.get("query") or None, _anchor="now"), 303)


def _split_in_words(split: intervals.Split | None) -> str:
    if split is None:
        return "Each query has an interval of its own already."
    share = 100 * split.slot // SLOTS
    return (
        f"The keys of {split.computation} were cut at {share} %: {split.intervals - 1} intervals "
        f"before, {split.intervals} now. “Compare” below shows that the results are the same."
    )


def _speed() -> int:
    speed = request.form.get("speed", 0, type=int)
    if speed not in SPEEDS:
        abort(400, f"speed must be one of {', '.join(map(str, SPEEDS))}.")
    return speed


# What the page is made of


def _page(error: str, status: int) -> ResponseReturnValue:
    tab = open_tab(TABS)
    live = _live()
    html = render_template(
        "zeitgeist/page.html",
        error=error,
        tab=tab,
        check=_check(live) if tab == "compare" else None,
        excerpts=_code() if tab == "code" else [],
        scores=sorted(SCORES.items(), key=lambda pair: -pair[1]),
        max_mib=MAX_UPLOAD_BYTES // 1024**2,
        max_series=MAX_SERIES,
        **live,
    )
    return html, status


def _check(live: dict[str, Any]) -> Check | None:
    """Compare the pipeline's results for the chosen query with those from a plain run.

    None: there is none, or it is too long.
    """
    if live["playback"] is None or live["part"].buckets > MAX_BUCKETS:
        return None
    computations = live["status"].computations
    # Of those that keep what is compared.
    final = min(computations["history"].watermark, computations["board"].watermark)
    return check(clients(), live["playback"], live["part"], final)


def _live() -> dict[str, Any]:
    playback, status = playbacks.current(), ZEITGEIST.status(clients())
    topology = ZEITGEIST.topology(clients(), snapshot=status)
    rows = rows_of(status, topology, playback.front if playback else 0)
    goes_on = playback is not None and not playback.is_over
    is_moving = goes_on or any(row.waiting or row.lag_ms or row.change for row in rows)
    sums, now = sums_of(status), clients().clock.now()
    stage = render(ZeitgeistStage(playback, sums, is_moving), now)
    is_held_back = status.sources["queries"].paused
    source = [(f"{number(sums.received)} in", False), ("backpressure", True)]
    cells = {r.name: counts_of(r.records, r.lag_ms, r.waiting, r.late, r.dead) for r in rows}
    return {
        "status": status,
        "rows": rows,
        "hits": hits_of(stage.deliveries, box_of),
        "came": sums.received,
        "picture": picture_of(ZEITGEIST),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "playback": playback,
        "goes_on": goes_on,
        "is_moving": is_moving,
        "cells": {**cells, "queries": source if is_held_back else source[:1]},
        "feeds": FEEDS,
        "speeds": SPEEDS,
        "sample_speed": SAMPLE_SPEED,
        "speed": playback.speed if playback else SAMPLE_SPEED,
        "stage": stage,
        "workers": workers(),
        "usual_intervals": ZEITGEIST.intervals,
        "versions": _versions(topology),
        "replaced": topology.changes[:1],
        "new_id": clients().new_id(),
        **(_of_playback(playback, status) if playback else {}),
    }


def _versions(topology: Any) -> tuple[int, int]:
    """Return which version of the detector runs, and the other one that this code has."""
    part = topology.parts["detector"]
    return part.version, next(version for version in part.versions if version != part.version)


def _of_playback(playback: Playback, status: Any) -> dict[str, Any]:
    """Return the template's context for a playback: all queries, and the chosen one."""
    board = board_of(clients(), playback, status)
    part = playback.part(request.args.get("q", "")) or playback.parts[0]
    days = max(1, -(-(playback.end - playback.begin) // DAY_MS))
    day = request.args.get("day", 0, type=int)
    span = _span(playback, day if 1 <= day <= days else None)
    points = points_of(clients(), [part.query for part in playback.parts], *span, status)
    shown = points[part.query]
    # They were read after the status, and what is complete lies before the watermark.
    ends = [series[-1].start + BUCKET_MS for series in points.values() if series]
    watermark = max([status.computations["counter"].watermark, *ends])
    so_far = [] if 1 <= day <= days else open_counts(clients(), part.query, status)
    return {
        "part": part,
        "board": board,
        "told": board.alerts[:SHOWN_ALERTS],
        "watermark": min(watermark, playback.last),
        "chart": _chart(playback, board.of(part.query), shown, so_far, span, watermark),
        "sparks": _sparks(playback, board, points, span, watermark),
        "points": [*shown, *so_far][-SHOWN_BUCKETS:],
        "open_from": so_far[0].start if so_far else FOREVER,
        "day": day if 1 <= day <= days else None,
        "days": days,
        "today": min(days, max(1, (playback.front - playback.begin) // DAY_MS + 1)),
    }


def _sparks(
    playback: Playback, board: Board, points: dict[str, list[Point]], span: tuple[int, int],
    watermark: int,
) -> dict[str, Spark]:  # fmt: skip
    return {
        query: spark_of(
            series, board.of(query), span=span, watermark=watermark, shift=playback.shift
        )
        for query, series in points.items()
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
        points, [point for point in so_far if point.start < span[1]], alerts,
        span=span, watermark=watermark, front=playback.front, shift=playback.shift,
    )  # fmt: skip


def _code() -> list[Excerpt]:
    return [
        excerpt("pipelines.zeitgeist.pipeline", "Counter", "Counts so far, and complete ones"),
        excerpt("pipelines.zeitgeist.pipeline", "Usual", "Each count with its usual value"),
        excerpt("pipelines.zeitgeist.pipeline", "Watcher", "Anomalies"),
        excerpt("pipelines.zeitgeist.model", "Model.expected", "Mean and spread by hour of week"),
        excerpt("pipelines.zeitgeist.pipeline", "NewWatcher", "The version that replaces it"),
        excerpt("pipelines.zeitgeist.detector", "Detector.complete", "Evidence over some buckets"),
        excerpt("pipelines.zeitgeist.detector", "Side.bar", "The evidence of an alert"),
        excerpt("pipelines.zeitgeist.player", "play", "A step of a playback"),
    ]


@bp.app_template_filter("series_time")
def series_time(at: int, playback: Playback) -> str:
    """Return a time of the stream as the series has it."""
    return clock(at - playback.shift)
