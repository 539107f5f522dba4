"""Live updates: a page learns that what it shows has changed, and asks for that part again.

    GET /updates/<token>                 {"id": ..., "again_ms": ...}: what the last change is
    GET /updates/<token>/events?after=   the same ids as server-sent events, as they come

A token names the topics of a page, signed, so nobody can watch what no page has shown them. An id
is made of the versions of these topics, which are in memcached: no process has to know what another
one did. Both ways say the same: an id that is not yours means that you should look again. A stream
goes on from `Last-Event-ID`, or `after`: a change that came while nobody listened is told at once.

Whoever publishes (`Clients.publish`) does so after the commit. Requests that change something
publish by themselves: `watch` says which topic the requests below a path belong to. It is all a
hint, so pages also look without being told, but rarely.

A stream keeps one of the process's threads, so there are at most `LIVE_STREAMS` in a process; 0
where the platform holds responses back until they are complete, as App Engine does. The others get
503 and ask. How soon they may ask again follows from how many there are. Streams end after a
minute, and at once when the process is told to end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flask import Blueprint, Flask, Response, abort, current_app, jsonify, request, url_for
from flask.typing import ResponseReturnValue
from itsdangerous import BadSignature, URLSafeSerializer
from markupsafe import Markup

from handlers.endpoints.context import Wiring, clients, settings
from pipelines.runtime import Clients
from pipelines.runtime.topics import version

bp = Blueprint("rollforward_live", __name__, url_prefix="/updates")

MAX_TOKEN_CHARS = 2_000
MAX_ID_CHARS = 400
LOOK_EVERY_S = 0.2
# A listener that has gone is found out by the next write.
HEARTBEAT_S = 5.0
STREAM_S = 60.0
# Of a script whose stream has ended.
RECONNECT_MS = 500
# How often a page asks: as long as the pages of one process ask no more often than this in all.
FAST_MS, SLOW_MS = 400, 15_000
ASKED_PER_S = 10


@dataclass
class Streams:
    """The open streams of a process, up to a number."""

    limit: int
    is_closing: bool = False
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> bool:
        """Take a place; return whether there was one."""
        with self._lock:
            if self.is_closing or self._open >= self.limit:
                return False
            self._open += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._open -= 1

    def close(self) -> None:
        """Let all streams end. Called by a signal: it must not wait for a lock."""
        self.is_closing = True


@dataclass
class Pace:
    """How often pages may ask: each that asks gets the next free moment to ask again.

    So they come evenly, however many there are and however many came at once.
    """

    _next_at_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, now_s: float) -> int:
        """Return after how many milliseconds a page may ask again."""
        with self._lock:
            wait_s = max(FAST_MS / 1000, self._next_at_s - now_s)
            wait_s = min(SLOW_MS / 1000, wait_s)  # Also when the clock was put back.
            self._next_at_s = now_s + wait_s + 1 / ASKED_PER_S
        return round(wait_s * 1000)


@dataclass
class Live:
    """What an app has of live updates."""

    streams: Streams
    pace: Pace = field(default_factory=Pace)
    topics_of: dict[str, str] = field(default_factory=dict)  # By the beginning of a path.


def register(app: Flask) -> None:
    """Mount the endpoints, and publish what requests change."""
    app.register_blueprint(bp)
    wiring: Wiring = app.extensions["wiring"]
    app.extensions["live"] = Live(Streams(wiring.settings.live_streams))
    app.context_processor(lambda: {"updates": updates})

    @app.after_request
    def publish(response: Response) -> Response:
        if request.method == "POST":
            live: Live = app.extensions["live"]
            found = {
                topic for start, topic in live.topics_of.items() if request.path.startswith(start)
            }
            for topic in sorted(found):
                clients().publish(topic)
        return response


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
def latest(token: str) -> ResponseReturnValue:
    """Say what the last change is; its caller compares it with the one it knows."""
    live = _live()
    again_ms = live.pace.ask(clients().clock.now().timestamp())
    return jsonify(id=_id(clients(), _topics(token)), again_ms=again_ms)


@bp.get("/<token>/events")
def events(token: str) -> ResponseReturnValue:
    """Tell changes as they come, as server-sent events."""
    topics, live = _topics(token), _live()
    seen = request.headers.get("Last-Event-ID") or request.args.get("after", "")
    if len(seen) > MAX_ID_CHARS:
        abort(400)
    if request.method == "HEAD" or not live.streams.enter():
        return "", 503, {"Retry-After": "60"}
    response = Response(
        _stream(clients(), live.streams, topics, seen), content_type="text/event-stream"
    )
    response.call_on_close(live.streams.leave)
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _stream(
    clients: Clients, streams: Streams, topics: Sequence[str], seen: str
) -> Iterator[bytes]:
    began = beat = clients.clock.now().timestamp()
    yield f"retry: {RECONNECT_MS}\n\n".encode()
    while not streams.is_closing:
        now = clients.clock.now().timestamp()
        if now - began > STREAM_S:
            return
        if (id_ := _id(clients, topics)) != seen:
            seen, beat = id_, now
            yield f"id: {id_}\nevent: changed\ndata: {id_}\n\n".encode()
        elif now - beat > HEARTBEAT_S:
            beat = now
            yield b":\n\n"
        clients.clock.sleep(LOOK_EVERY_S)


def _id(clients: Clients, topics: Sequence[str]) -> str:
    """Return what differs from what it was when one of the topics was published."""
    return "-".join(version(clients, topic) or "none" for topic in topics)


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


def _live() -> Live:
    return current_app.extensions["live"]  # type: ignore[no-any-return]
