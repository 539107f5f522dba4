"""Live updates: a page learns that what it shows has changed, and asks for that part again.

    GET /updates/<token>                 {"id": ..., "again_ms": ...}: what the last change is
    GET /updates/<token>/events?after=   the same ids as server-sent events, as they come

A token names the topics of a page, signed, so nobody can watch what no page has shown them. An id
is made of the versions of these topics, which are in memcached: no process has to know what another
one did. Both ways say the same: an id that is not yours means that you should look again. A stream
goes on from `Last-Event-ID`, or `after`: a change that came while nobody listened is told at once.

Whoever publishes (`Clients.publish`) does so after the commit. Requests that change something
publish by themselves: `watch` says which topic the requests below a path belong to. What is refused
publishes nothing, or any stranger could make all pages ask. It is all a hint, so pages also look
without being told, but rarely.

A stream keeps one of the process's threads, so there are at most `LIVE_STREAMS` in a process; 0
where the platform holds responses back until they are complete, as App Engine does. The others get
503 and ask. How soon they may ask again follows from how many there are. Streams have turns, too:
each event makes a page ask for its part, and all at once would keep others waiting. A stream that
is alone has its turn at once. Streams end after a minute, and at once when the process is told to
end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flask import Blueprint, Flask, Response, abort, current_app, jsonify, request, url_for
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer
from markupsafe import Markup

from rollforward.flask.auth import is_proved
from rollforward.flask.callers import caller
from rollforward.flask.context import Wiring, clients, settings
from rollforward.flask.fields import limits
from rollforward.flask.shares import Pace, Place, Streams
from rollforward.runtime import Clients
from rollforward.runtime.topics import version

bp = Blueprint("rollforward_live", __name__, url_prefix="/updates")

MAX_TOKEN_CHARS = 2_000
MAX_ID_CHARS = 400
LOOK_EVERY_S, MIN_PAUSE_S = 0.2, 0.001
# A listener that has gone is found out by the next write.
HEARTBEAT_S = 5.0
STREAM_S = 60.0
# Of a script whose stream has ended.
RECONNECT_MS = 500
# How often a page asks: as long as the pages of one process ask no more often than this in all.
FAST_MS, SLOW_MS = 400, 15_000
ASKED_PER_S = 10
# And how often its streams tell them something, in all.
TOLD_PER_S = 10


@dataclass
class Live:
    """What an app has of live updates."""

    streams: Streams
    asking: Pace = field(default_factory=lambda: Pace(ASKED_PER_S, SLOW_MS / 1000))
    telling: Pace = field(default_factory=lambda: Pace(TOLD_PER_S, SLOW_MS / 1000))
    topics_of: dict[str, str] = field(default_factory=dict)  # By the beginning of a path.
    # Never put back: else turns would be an hour away, and streams would not end for an hour.
    elapsed_s: Callable[[], float] = time.monotonic


def register(app: Flask) -> None:
    """Mount the endpoints, and publish what requests change."""
    app.register_blueprint(bp)
    wiring: Wiring = app.extensions["wiring"]
    app.extensions["live"] = Live(Streams(wiring.settings.live_streams))
    app.context_processor(lambda: {"updates": updates})

    @app.after_request
    def publish(response: Response) -> Response:
        if request.method == "POST" and _may_have_changed_something(response):
            live: Live = app.extensions["live"]
            path = request.path  # Once: to look for it takes longer than to compare it.
            found = {topic for start, topic in live.topics_of.items() if path.startswith(start)}
            for topic in sorted(found):
                clients().publish(topic)
        return response


def _may_have_changed_something(response: Response) -> bool:
    """Return whether a request was taken; a delivery that failed may have committed before."""
    return response.status_code < 400 or is_proved()


def watch(app: Flask, topic: str, *paths: str) -> None:
    """Publish a topic after each POST to a path that begins like one of these: forms, and tasks."""
    app.extensions["live"].topics_of.update(dict.fromkeys(paths, topic))


def updates(*topics: str) -> Markup:
    """Return what a template writes into the element that is to stay fresh; nothing, without
    memcached: its script then asks for the element itself.
    """
    if settings().memcached is None:
        return Markup()
    address = url_for("rollforward_live.latest", token=_tokens().dumps(topics))
    streams = "yes" if settings().live_streams else "no"
    return Markup('data-updates="{}" data-streams="{}"').format(address, streams)


@bp.get("/<token>")
@limits(after=1_000)
def latest(token: str) -> ResponseReturnValue:
    """Say what the last change is; its caller compares it with the one it knows."""
    topics, live = _topics(token), _live()  # A token that is none takes nobody's turn.
    again_s = live.asking.wait_s(live.elapsed_s(), _caller(), FAST_MS / 1000)
    return jsonify(id=_id(clients(), topics), again_ms=round(again_s * 1000))


@bp.get("/<token>/events")
@limits(after=1_000)
def events(token: str) -> ResponseReturnValue:
    """Tell changes as they come, as server-sent events."""
    topics, live = _topics(token), _live()
    seen = request.headers.get("Last-Event-ID") or request.args.get("after", "")
    if len(seen) > MAX_ID_CHARS:
        abort(400)
    # Nobody would read the stream of a HEAD, and end it.
    place = live.streams.enter(_caller()) if request.method == "GET" else None
    if place is None:
        return "", 503, {"Retry-After": "60"}
    stream = _stream(clients(), live, place, topics, seen)
    response = Response(stream, content_type="text/event-stream")
    response.call_on_close(lambda: live.streams.leave(place))
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _stream(
    clients: Clients, live: Live, place: Place, topics: Sequence[str], seen: str
) -> Iterator[bytes]:
    began = beat = live.elapsed_s()
    turn_at: float | None = None  # To tell of a change.
    yield f"retry: {RECONNECT_MS}\n\n".encode()
    while not (live.streams.is_closing or place.is_ending):
        now, pause_s = live.elapsed_s(), LOOK_EVERY_S
        if now - began > STREAM_S:
            return
        if turn_at is None and _id(clients, topics) != seen:
            turn_at = now + live.telling.wait_s(now, place.caller)
        if turn_at is not None and now > turn_at - MIN_PAUSE_S:
            seen, beat, turn_at = _id(clients, topics), now, None
            yield f"id: {seen}\nevent: changed\ndata: {seen}\n\n".encode()
        elif turn_at is not None:
            pause_s = min(pause_s, turn_at - now)
        elif now - beat > HEARTBEAT_S:
            beat = now
            yield b":\n\n"
        clients.clock.sleep(pause_s)


def _id(clients: Clients, topics: Sequence[str]) -> str:
    """Return what differs from what it was when one of the topics was published."""
    return "-".join(version(clients.cache, topic) or "none" for topic in topics)


def _topics(token: str) -> list[str]:
    if len(token) > MAX_TOKEN_CHARS:
        abort(404)
    try:
        topics: list[str] = _tokens().loads(token)
    except BadSignature:
        abort(404)
    return topics


def _tokens() -> URLSafeSerializer:
    """Return what signs topics: by the first key, and reads what any of them has signed."""
    return URLSafeSerializer(list(reversed(settings().secret_keys)), salt="live updates")


def _caller() -> str:
    return caller(settings().platform)


def _live() -> Live:
    return current_app.extensions["live"]  # type: ignore[no-any-return]
